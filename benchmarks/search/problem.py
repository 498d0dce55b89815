"""A search problem: candidates on a grid of axes, what is believed of them, the hidden truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

MEMORY_FILTER = 1.03
"""Predicted share of memory up to which the filter lets a candidate pass."""
PROJECTION, POSTERIOR = "projection", "posterior"


@dataclass(frozen=True)
class Axis:
    """An axis: its name, its number of values, and whether their order means something."""

    name: str
    size: int
    ordinal: bool


@dataclass(frozen=True)
class Problem:
    """n legal candidates; ``codes`` (n, axes) number the value that each has on every axis.

    ``speed`` and ``memory`` (share of capacity) are believed; ``true_speed`` and ``true_memory``
    are hidden: ``evaluate`` reveals them one by one, the speed with ``noise`` (log sd).
    ``loadings`` are what the belief may be unsure of (``search.pool.Belief``), each (n, k), by who
    says so: ``PROJECTION`` for what follows from the projection alone, ``POSTERIOR`` for what the
    fit of the surrogate left open. ``start`` is the candidate that a person would begin with, -1
    where there is none; ``reads_memory`` says whether a run tells its peak.
    """

    name: str
    axes: tuple[Axis, ...]
    codes: Codes
    speed: Floats
    memory: Floats
    true_speed: Floats
    true_memory: Floats
    noise: float
    start: int
    loadings: Mapping[str, Floats] = field(default_factory=dict)
    seed: int = 0
    reads_memory: bool = True

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Which candidates truly fit."""
        return np.asarray(self.true_memory <= 1.0)

    @property
    def best(self) -> float:
        """True speed of the fastest candidate that fits."""
        return float(self.true_speed[self.fits].max())

    def evaluate(self, index: int, count: int) -> tuple[float | None, float | None]:
        """(measured speed, measured share of memory) of the ``count``-th run.

        (None, None) is an OOM; a share of None alone means that nobody read the peak.
        """
        if not self.fits[index]:
            return None, None
        generator = np.random.default_rng([self.seed, 77, index, count])
        factor = float(np.exp(self.noise * generator.standard_normal()))
        share = float(self.true_memory[index]) if self.reads_memory else None
        return float(self.true_speed[index]) * factor, share

    def regret(self, index: int | None) -> float:
        """How far the truth of a candidate is below the best, a fraction; 1 without a candidate."""
        return 1.0 if index is None else 1.0 - float(self.true_speed[index]) / self.best
