"""Oracles: what evaluates a trial. The surrogate is the first; others adapt real measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

from specs.config import TrainingConfig


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an oracle says of one config.

    ``tokens_per_s_per_gpu`` is the value of the trial; ``memory_gib`` is the constraint, GiB above
    what the GPU holds (0 or less: it fits); ``details`` is readable JSON: the projection or the
    measurement behind the two; ``cost_s`` is what it took to find out.
    """

    tokens_per_s_per_gpu: float
    memory_gib: float
    details: dict[str, Any]
    cost_s: float


@dataclass(frozen=True, slots=True)
class Crash:
    """The oracle itself failed on a config; ``reason`` is one sentence."""

    reason: str
    cost_s: float


class Oracle(Protocol):
    """Evaluates configs in order, yielding each outcome as soon as it is known.

    ``name`` is what ``--oracle`` calls it. ``fingerprint`` changes whenever the same config could
    get another value: trials of different fingerprints never share a study.
    """

    name: str
    fingerprint: str

    def evaluate(self, configs: Sequence[TrainingConfig]) -> Iterator[Evaluation | Crash]:
        """One outcome a config, in the order of ``configs``."""
        ...


def data_fingerprint() -> str:
    """A hash of the fitted facts that ship with the surrogate: another fit, other values."""
    digest = hashlib.sha256()
    folder = resources.files("surrogate") / "data"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_file():
            digest.update(entry.name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
