"""The makespan of a pipeline order as the maximum of linear forms in the task times.

Once the order is fixed, a step takes as long as its longest chain of tasks that wait for each
other. A chain with a forwards, b input gradients and c weight gradients takes
a*t_f + b*t_b + c*t_w, so the makespan is the largest of such forms: convex and piecewise linear in
the times.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from specs.choices import Schedule
from surrogate.pipeline.orders import Kind, task_orders
from surrogate.pipeline.simulation import events_in_causal_order

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_COUNTS = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [0, 0, 0]])
"""Forwards, input and weight gradients in a task of each Kind; the last row is "no task"."""


class CriticalPaths:
    """Longest chains of tasks of one order, for many task times at once."""

    def __init__(self, schedule: Schedule, p: int, m: int, v: int) -> None:
        events = events_in_causal_order(schedule, task_orders(schedule, p, m, v))
        n = len(events)
        before = np.array([event.before for event in events])
        source = np.array([event.source for event in events])
        depth = np.zeros(n + 1, dtype=np.int64)
        depth[n] = -1
        for index in range(n):
            depth[index] = 1 + max(depth[before[index]], depth[source[index]])
        by_depth = np.argsort(depth[:n], kind="stable")
        place = np.full(n + 1, n)
        place[by_depth] = np.arange(n)
        none = len(Kind)
        self._none = n
        self._kind = np.array([events[i].task.kind for i in by_depth] + [none])
        self._microbatch = np.array([events[i].task.microbatch for i in by_depth] + [-1])
        self._before = np.append(place[before[by_depth]], n)
        self._source = np.append(place[source[by_depth]], n)
        self._depth_starts = np.searchsorted(depth[by_depth], np.arange(depth.max() + 2))
        last_of_rank = {event.rank: index for index, event in enumerate(events)}
        self._last = place[np.array([last_of_rank[rank] for rank in range(p)])]

    def makespan(self, times: Floats) -> Floats:
        """Makespan (q,) for task times (q, 3): t_f, t_b, t_w of one chunk."""
        return np.asarray(self._ends(times)[self._last].max(axis=0))

    def counts(self, times: Floats, window: range | None = None) -> Ints:
        """Tasks of each kind on the longest chain, (q, 3) for task times (q, 3).

        ``window`` counts only tasks of those microbatches.
        """
        ends, columns = self._ends(times), np.arange(len(times))
        at = self._last[ends[self._last].argmax(axis=0)]
        counts = np.zeros((len(times), 3), dtype=np.int64)
        while (at < self._none).any():
            counted = _COUNTS[self._kind[at]]
            if window is not None:
                microbatch = self._microbatch[at, None]
                counted = counted * ((microbatch >= window.start) & (microbatch < window.stop))
            counts += counted
            before, source = self._before[at], self._source[at]
            at = np.where(ends[before, columns] >= ends[source, columns], before, source)
        return counts

    def _ends(self, times: Floats) -> Floats:
        """End of every task, (tasks + 1, q); the last row is time 0."""
        durations = _COUNTS @ times.T
        ends = np.zeros((self._none + 1, len(times)))
        for start, stop in itertools.pairwise(self._depth_starts.tolist()):
            ready = np.maximum(ends[self._before[start:stop]], ends[self._source[start:stop]])
            ends[start:stop] = ready + durations[self._kind[start:stop]]
        return ends
