"""The table of linear forms for V-half and V-min, whose idle time has no closed form.

``python -m surrogate.pipeline.schedule_tables`` builds it anew from the task orders and writes
it; every run gives the same file. ``schedules`` reads it.

For p ranks and m microbatches the idle time is the largest of a few forms a*t_f + b*t_b + c*t_w
with whole a, b, c (``critical_paths``). The table has these forms for every m up to 2p and for a
few longer steps, between which idle time is interpolated: it grows linearly there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specs.choices import Schedule
from surrogate.pipeline.critical_paths import CriticalPaths, Floats

TABULATED = (Schedule.V_HALF, Schedule.V_MIN)

MAX_RANKS = 32
"""Longest pipeline in the table."""

LONG_STEPS = (3, 4, 6, 8)
"""Steps of more than 2p microbatches in the table, in units of p."""

TOLERANCE = 2e-3
"""Largest shortfall of the forms, as a fraction of the makespan, for times in TIMES_CONE."""

TIMES_CONE = np.array([[-0.5, 1, 0], [4, -1, 0], [-0.1, 0, 1], [2, 0, -1]])
"""Times where TIMES_CONE @ (t_f, t_b, t_w) >= 0: t_b from 0.5 to 4 t_f, t_w from 0.1 to 2 t_f.

Plain layers have t_b = t_w = t_f. Recomputation adds t_f to t_b; attention scores and all-to-alls
have no weight gradient, so they raise t_f and t_b alone; a 16-bit weight gradient after an 8-bit
forward doubles t_w. Outside the cone the table gives a lower bound of the idle time.
"""

EXACT_TIMES = np.array([[1, 1, 1], [1, 1.2, 0.8], [1, 2, 1]])
"""Times at which the table has no shortfall: plain layers, some attention, full recomputation."""

_NUM_CHUNKS = 2
_FILE = Path(__file__).parents[1] / "data" / "schedules.npz"


@dataclass(frozen=True)
class FormsTable:
    """Idle time of one schedule as forms in the times of one microbatch in one rank.

    Attributes:
        forms: (k, 3, rows), form, coefficient of t_f, t_b, t_w, row.
        first_row: (MAX_RANKS + 1,) row of m = 1 for each p; p has 2p + len(LONG_STEPS) rows.
    """

    forms: Floats
    first_row: NDArray[np.int64]


@cache
def read_table(schedule: Schedule) -> FormsTable:
    """The shipped table of a schedule in TABULATED."""
    with np.load(_FILE) as file:
        counts = file[schedule.name.lower()].astype(np.float64)
    return FormsTable(np.ascontiguousarray(counts.T / _NUM_CHUNKS), _first_rows())


def microbatches_of_rows(p: int) -> list[int]:
    """Microbatches of the rows of p ranks, in order."""
    return [*range(1, 2 * p + 1), *(steps * p for steps in LONG_STEPS)]


def idle_forms(schedule: Schedule, p: int, m: int) -> NDArray[np.int64]:
    """Forms (k, 3) of the idle time in chunk times, most useful first.

    A convex function exceeds the largest of some of its tangents most on a corner of that maximum,
    so forms are added at the worst corner until it is within TOLERANCE.
    """
    paths = CriticalPaths(schedule, p, m, _NUM_CHUNKS)
    forms = np.unique(paths.counts(EXACT_TIMES), axis=0)
    while True:
        corners = _corners(forms)
        shortfall = paths.makespan(corners) / (corners @ forms.T).max(axis=1) - 1
        worst = int(shortfall.argmax())
        if shortfall[worst] <= TOLERANCE:
            return forms - _NUM_CHUNKS * m
        forms = np.vstack([forms, paths.counts(corners[worst : worst + 1])])


def write_table(path: Path = _FILE, max_ranks: int = MAX_RANKS) -> None:
    """Build the table of all schedules in TABULATED and write it."""
    arrays = {}
    for schedule in TABULATED:
        rows = [
            idle_forms(schedule, p, m)
            for p in range(1, max_ranks + 1)
            for m in microbatches_of_rows(p)
        ]
        most = max(map(len, rows))
        padded = [np.vstack([row, np.repeat(row[:1], most - len(row), axis=0)]) for row in rows]
        arrays[schedule.name.lower()] = np.array(padded, dtype=np.int16).transpose(0, 2, 1)
    np.savez_compressed(path, allow_pickle=False, **arrays)


def _first_rows() -> NDArray[np.int64]:
    lengths = [0, *(len(microbatches_of_rows(p)) for p in range(1, MAX_RANKS))]
    return np.concatenate([[0], np.cumsum(lengths)])


def _corners(forms: NDArray[np.int64]) -> Floats:
    """Corners (q, 3), scaled to sum 1, of the parts of TIMES_CONE where one form is largest."""
    first, second = np.triu_indices(len(forms), 1)
    edges = np.unique(np.vstack([forms[first] - forms[second], TIMES_CONE]), axis=0)
    first, second = np.triu_indices(len(edges), 1)
    points = np.cross(edges[first], edges[second])
    total = points.sum(axis=1)
    crossing = np.abs(total) > 1e-9
    points = points[crossing] / total[crossing, None]
    borders = points @ TIMES_CONE.T
    inside = (borders >= -1e-9).all(axis=1)
    points, borders = points[inside], borders[inside]
    values = points @ forms.T
    tight = (values >= values.max(axis=1, keepdims=True) * (1 - 1e-9)).sum(axis=1)
    on_border = (np.abs(borders) < 1e-9).sum(axis=1)
    corners: Floats = np.unique(np.round(points[np.minimum(tight, 3) + on_border >= 3], 12), axis=0)
    return corners


if __name__ == "__main__":
    write_table()
