"""Proposal: a config that a proposer wants evaluated, and why."""

from __future__ import annotations

from dataclasses import dataclass

from specs.config import TrainingConfig


@dataclass(frozen=True, slots=True)
class Proposal:
    """A config, who proposes it and the reason, one phrase for a person."""

    config: TrainingConfig
    proposer: str
    reason: str
