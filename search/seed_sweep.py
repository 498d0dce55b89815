"""The seed sweep: one axis at a time, anchored at the baseline of the input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from search.companions import with_companions
from search.proposals import Proposal
from specs.config import AXES, TrainingConfig

PROPOSER = "seed sweep"


def seed_sweep(baseline: TrainingConfig, axes: Mapping[str, Sequence[Any]]) -> list[Proposal]:
    """The baseline, then every other value of every axis, each by itself.

    The values of an axis come nearest first, and the axes take turns, so that a budget which ends
    early has touched all of them. Companions follow the axis (``search.companions``). A config is
    proposed once. Legality is judged by the caller, who keeps the refused ones as notes.
    """
    proposals = {baseline: Proposal(baseline, PROPOSER, "baseline of the input")}
    turns = zip_longest(*(list(_one_axis(baseline, name, axes[name])) for name in axes))
    for proposal in (item for turn in turns for item in turn if item is not None):
        proposals.setdefault(proposal.config, proposal)
    return list(proposals.values())


def _one_axis(baseline: TrainingConfig, name: str, values: Sequence[Any]) -> Iterator[Proposal]:
    held = getattr(baseline, name)
    axis = AXES[name]
    for value in sorted(values, key=lambda value: _distance(held, value)):
        if value != held:
            config = with_companions(baseline, {name: value})
            yield Proposal(config, PROPOSER, f"{name} {axis.label(held)} -> {axis.label(value)}")


def _distance(held: Any, value: Any) -> float:
    """How far a value is from the one held: in doublings for sizes, in steps for choices."""
    if isinstance(held, str | tuple):
        return 0.0
    return abs(math.log2(int(value) + 1) - math.log2(int(held) + 1))
