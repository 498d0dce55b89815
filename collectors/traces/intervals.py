"""Arithmetic of time intervals as columns: union, common time and what is left uncovered."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def union(start: Floats, stop: Floats) -> tuple[Floats, Floats]:
    """Disjoint intervals in order that cover the same time; empty ones are dropped.

    Args:
        start, stop: shape (n,), any order; ``stop >= start``.
    """
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    held = stop > start
    start, stop = start[held], stop[held]
    if not len(start):
        return start, stop
    reach = np.maximum.accumulate(stop)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    places = np.flatnonzero(first)
    last = np.concatenate([places[1:] - 1, [len(start) - 1]])
    return start[places], reach[last]


def length(intervals: tuple[Floats, Floats]) -> float:
    """Total time of disjoint intervals."""
    return float((intervals[1] - intervals[0]).sum())


def covered_up_to(intervals: tuple[Floats, Floats], times: Floats) -> Floats:
    """Covered time before each of ``times``, for disjoint intervals in order."""
    start, stop = intervals
    if not len(start):
        return np.zeros(len(times))
    before = np.concatenate([[0.0], np.cumsum(stop - start)])
    index = np.searchsorted(start, times, side="right")
    inside = np.clip(times - start[np.maximum(index - 1, 0)], 0.0, None)
    inside = np.minimum(inside, (stop - start)[np.maximum(index - 1, 0)])
    return np.where(index > 0, before[np.maximum(index - 1, 0)] + inside, 0.0)


def common(first: tuple[Floats, Floats], second: tuple[Floats, Floats]) -> float:
    """Time that both cover; each holds disjoint intervals in order."""
    covered = covered_up_to(first, second[1]) - covered_up_to(first, second[0])
    return float(covered.sum())


def clipped(intervals: tuple[Floats, Floats], start: float, stop: float) -> tuple[Floats, Floats]:
    """The part of disjoint intervals between two times."""
    begin, end = np.clip(intervals[0], start, stop), np.clip(intervals[1], start, stop)
    held = end > begin
    return begin[held], end[held]
