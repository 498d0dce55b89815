"""Steady state of a run: warm-up, shifts and outliers set apart from the iterations that count."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MAX_POINTS = 512
"""Points that change points are searched in; longer series are medians of neighbours."""
MIN_SEGMENT = 3
OUTLIER_SIGMAS = 5.0
SMALLEST_OUTLIER = 0.03
"""A step counts as an outlier only where it is this far from the level, as a fraction."""
SMALLEST_SHIFT = 0.02


@dataclass(frozen=True)
class SteadyState:
    """Which of n values count.

    ``start`` to ``stop`` (exclusive) is the segment, ``keep`` the mask (n,) of what counts in it.
    ``level`` is the median of those and ``spread`` their robust relative standard deviation.
    ``segments`` are the borders of every stretch with its own level.
    """

    start: int
    stop: int
    keep: NDArray[np.bool_]
    level: float
    spread: float
    segments: tuple[tuple[int, int], ...]

    @property
    def outliers(self) -> int:
        """Values inside the segment that were set apart."""
        return self.stop - self.start - int(self.keep.sum())


def steady_state(values: Floats) -> SteadyState:
    """The longest stretch without a change of level (the latest of equals), outliers left out.

    Args:
        values: n >= 1 positive times or rates in order.
    """
    count = len(values)
    bins = min(count, MAX_POINTS)
    borders = np.linspace(0, count, bins + 1).astype(int)
    logs = np.log(values)
    points = np.array([np.median(logs[a:b]) for a, b in pairwise(borders)])
    cuts = [0, *_change_points(points), bins]
    segments = [(int(borders[a]), int(borders[b])) for a, b in pairwise(cuts)]
    start, stop = max(segments, key=lambda s: (s[1] - s[0], s[0]))
    inside = np.zeros(count, dtype=bool)
    inside[start:stop] = True
    level = float(np.median(logs[inside]))
    deviation = np.abs(logs - level)
    sigma = 1.4826 * float(np.median(deviation[inside]))
    keep = inside & (deviation <= max(OUTLIER_SIGMAS * sigma, SMALLEST_OUTLIER))
    kept = values[keep]
    median = float(np.median(kept))
    spread = 1.4826 * float(np.median(np.abs(kept - median))) / median
    return SteadyState(start, stop, keep, median, spread, tuple(segments))


def _change_points(points: Floats) -> list[int]:
    """Where the level changes: binary segmentation of absolute deviations around medians.

    A cut must save more than noise would (a penalty that grows with the logarithm of the length)
    and the levels beside it must differ by more than SMALLEST_SHIFT.
    """
    count = len(points)
    noise = _noise(points)
    penalty = max(3.0 * noise * np.log(max(count, 2)), 0.5 * SMALLEST_SHIFT)
    cuts: list[int] = []
    open_segments = [(0, count)]
    while open_segments:
        start, stop = open_segments.pop()
        cut = _best_cut(points, start, stop, penalty)
        if cut is not None:
            cuts.append(cut)
            open_segments += [(start, cut), (cut, stop)]
    return sorted(cuts)


def _noise(points: Floats) -> float:
    """Robust standard deviation of one value from differences of neighbours."""
    if len(points) < 3:
        return 0.0
    return float(1.4826 * np.median(np.abs(np.diff(points))) / np.sqrt(2))


def _best_cut(points: Floats, start: int, stop: int, penalty: float) -> int | None:
    """The cut of one segment that saves most; None where none is worth it.

    The first value alone may be a segment: the first iteration of a run compiles and allocates.
    """
    whole = _cost(points[start:stop])
    smallest_head = 1 if start == 0 else MIN_SEGMENT
    best, saved = None, penalty
    for cut in range(start + smallest_head, stop - min(MIN_SEGMENT, stop - start) + 1):
        left, right = points[start:cut], points[cut:stop]
        if not len(right) or abs(np.median(left) - np.median(right)) < SMALLEST_SHIFT:
            continue
        gain = whole - _cost(left) - _cost(right)
        if gain > saved:
            best, saved = cut, gain
    return best


def _cost(points: Floats) -> float:
    """Sum of absolute deviations from the median."""
    return float(np.abs(points - np.median(points)).sum()) if len(points) else 0.0
