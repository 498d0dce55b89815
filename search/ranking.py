"""Exhaustive ranking: every legal config is projected or proved no better, and the best are kept.

A space of millions is not projected row by row. Among configs that differ in recomputation alone
two facts bound all: without it a config is fastest, with full recomputation it is leanest. Cores
(mesh, micro-batch, pipeline) are then worked off from the most promising one; configs that cannot
come within ``within`` of the best found, or cannot fit at all, are left out. Memory comes first: of
configs that do not fit the throughput is never projected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from search.space import Space
from specs.choices import Recompute, RecomputeMethod, RecomputeModules
from specs.config import ConfigTable, TrainingConfig

Column = NDArray[Any]
FIT_PROBABILITY = 0.5
"""From this probability on a config counts as fitting: as likely as not, no hidden margin."""

DIRECT_ROWS = 1 << 20
"""Spaces up to this size are projected row by row."""
BATCH_ROWS = 1 << 16
MEMORY_SLACK = 0.05
"""Fraction above capacity up to which full recomputation leaves hope for less of it."""
SPEED_SLACK = 0.05
"""Fraction by which what was learned from runs may favour a config with recomputation over the
same one without: more than is seen among the faster half of the shipped studies (measured)."""
PER_CORE = 16
"""Configs of one core that are kept: the others differ from them in features only."""

_NO_RECOMPUTE: dict[str, Any] = {
    "recompute": (Recompute.NONE,),
    "recompute_method": (RecomputeMethod.NONE,),
    "recompute_layers": (0,),
    "recompute_modules": (RecomputeModules.NONE,),
    "recompute_layer_ids": ((),),
}
_FULL_RECOMPUTE = _NO_RECOMPUTE | {
    "recompute": (Recompute.FULL,),
    "recompute_method": (RecomputeMethod.UNIFORM,),
    "recompute_layers": (1,),
}


class Projected(Protocol):
    """The columns of a projection that ranking reads, each of shape (n,)."""

    @property
    def tokens_per_s_per_gpu(self) -> Column:
        """Projected throughput."""
        ...

    @property
    def device_gib(self) -> Column:
        """Projected peak of the fullest stage."""
        ...

    @property
    def fit_probability(self) -> Column:
        """Probability that the peak stays below capacity."""
        ...


class Surrogate(Protocol):
    """What projects the rows of a table: all of it, or throughput and memory apart."""

    def project(self, table: ConfigTable) -> Projected:
        """Throughput and memory."""
        ...

    def tokens_per_s_per_gpu(self, table: ConfigTable) -> Column:
        """Throughput alone, shape (n,)."""
        ...

    def device_gib(self, table: ConfigTable) -> Column:
        """Peak memory alone, shape (n,)."""
        ...


Advance = Callable[[int], None]


@dataclass(frozen=True)
class Ranking:
    """The best fitting configs, best first, and what was seen on the way.

    ``table`` and the columns have k rows, ordered by ``expected``. ``fastest`` is the optimum of
    the surrogate: the highest throughput that fits as likely as not. Of ``legal`` configs
    ``projected`` were projected, of which ``refused_by_memory`` do not fit; the others are proved
    no better. ``leanest`` is the projected config that misses least memory (``missing_gib`` above
    capacity, below 0 where it fits). Both are None where there is no such config.
    """

    table: ConfigTable
    tokens_per_s_per_gpu: Column
    device_gib: Column
    fit_probability: Column
    legal: int
    projected: int
    refused_by_memory: int
    fastest: TrainingConfig | None
    leanest: TrainingConfig | None
    missing_gib: float

    def __len__(self) -> int:
        return len(self.table)

    @property
    def expected(self) -> Column:
        """Throughput that a run can be expected to reach, one that runs out of memory counting 0.

        A config at the edge of memory is thus worth less than one that is as fast and surely fits.
        """
        return self.tokens_per_s_per_gpu * self.fit_probability


class Ranker:
    """Collects projected rows and keeps those of the highest expected throughput.

    At most ``per_core`` of a core are kept, and none that does not fit.

    Ties go to the row that came first. Memory use does not grow with the rows that are added.
    """

    def __init__(self, capacity_gib: float, keep: int, per_core: int = PER_CORE) -> None:
        self._capacity_gib, self._keep, self._per_core = capacity_gib, keep, per_core
        self._parts: list[tuple[ConfigTable, Column]] = []
        self._projected = self._fitting = 0
        self._leanest: TrainingConfig | None = None
        self._missing_gib = np.inf
        self._fastest: TrainingConfig | None = None
        self._speed = 0.0

    @property
    def best(self) -> float:
        """The highest expected throughput so far; 0 where nothing fits."""
        values = [part[0, 0] * part[2, 0] for _, part in self._parts if part.shape[1]]
        return float(max(values, default=0.0))

    def refuse(self, table: ConfigTable, device_gib: Column) -> None:
        """Counts rows that do not fit, and remembers the leanest of them."""
        self._projected += len(table)
        self._remember_leanest(table, device_gib)

    def leave_out(self, rows: int) -> None:
        """Counts rows that are not to be recommended, whatever is projected."""
        self._projected += rows

    def add(self, table: ConfigTable, seen: Projected, cores: Column) -> None:
        """Adds projected rows; ``cores`` says which rows share a core."""
        self._projected += len(table)
        fits = np.flatnonzero(seen.fit_probability >= FIT_PROBABILITY)
        self._fitting += len(fits)
        self._remember_leanest(table, seen.device_gib)
        if len(fits):
            top = int(fits[np.argmax(seen.tokens_per_s_per_gpu[fits])])
            if seen.tokens_per_s_per_gpu[top] > self._speed:
                self._fastest = table.config(top)
                self._speed = float(seen.tokens_per_s_per_gpu[top])
        columns = np.stack(
            [seen.tokens_per_s_per_gpu, seen.device_gib, seen.fit_probability, cores]
        )
        kept = self._best(fits, columns)
        self._parts.append((table.take(kept), columns[:, kept]))
        if sum(len(part) for part, _ in self._parts) > 4 * self._keep:
            self._merge()

    def ranking(self, legal: int) -> Ranking:
        """What was kept; ``legal`` is the size of the space that the rows come from."""
        self._merge()
        table, columns = self._parts[0]
        return Ranking(
            table=table,
            tokens_per_s_per_gpu=columns[0],
            device_gib=columns[1],
            fit_probability=columns[2],
            legal=legal,
            projected=self._projected,
            refused_by_memory=self._projected - self._fitting,
            fastest=self._fastest,
            leanest=self._leanest,
            missing_gib=self._missing_gib,
        )

    def _remember_leanest(self, table: ConfigTable, device_gib: Column) -> None:
        lean = int(np.argmin(device_gib))
        missing_gib = float(device_gib[lean] - self._capacity_gib)
        if missing_gib < self._missing_gib:
            self._leanest, self._missing_gib = table.config(lean), missing_gib

    def _best(self, rows: Column, columns: Column) -> Column:
        """The ``keep`` best of ``rows``, best first, at most ``per_core`` of a core."""
        expected = columns[0, rows] * columns[2, rows]
        order = rows[np.argsort(-expected, kind="stable")]
        cores = columns[3, order]
        by_core = np.argsort(cores, kind="stable")
        edges = np.flatnonzero(np.diff(cores[by_core], prepend=np.nan) != 0)
        place = np.arange(len(order)) - np.repeat(edges, np.diff(np.append(edges, len(order))))
        within = np.empty(len(order), dtype=bool)
        within[by_core] = place < self._per_core
        return np.asarray(order[within][: self._keep])

    def _merge(self) -> None:
        if not self._parts:
            self._parts = [(ConfigTable.from_configs([]), np.zeros((4, 0)))]
        table = ConfigTable.concat([part for part, _ in self._parts])
        columns = np.concatenate([part for _, part in self._parts], axis=1)
        rows = self._best(np.arange(len(table)), columns)
        self._parts = [(table.take(rows), columns[:, rows])]


def rank(
    space: Space,
    surrogate: Surrogate,
    capacity_gib: float,
    keep: int,
    within: float = 0.05,
    advance: Advance = lambda _: None,
    per_core: int = PER_CORE,
    exclude: Sequence[TrainingConfig] = (),
) -> Ranking:
    """The best configs of a space: every one within ``within`` of the best of another core is seen.

    Args:
        space: all legal configs.
        surrogate: projects the rows of a table.
        capacity_gib: memory of the GPU.
        keep: configs to keep, at most ``per_core`` of a core.
        within: fraction below the best down to which all cores are projected.
        advance: called with the number of rows that are done with, ``len(space)`` in all.
        exclude: configs that are known to fail; they count as refused.
    """
    ranker = Ranker(capacity_gib, keep, per_core)
    total = len(space)
    if total <= DIRECT_ROWS:
        for positions in _slices(np.array([0]), np.array([total])):
            _add(ranker, space, surrogate, capacity_gib, positions, exclude)
            advance(len(positions))
        return ranker.ranking(total)
    fast, bound = _bounds(space, surrogate, capacity_gib)
    of_core = np.zeros(len(space.core))
    np.maximum.at(of_core, fast.core_of(np.arange(len(fast))), bound)
    promising = np.argsort(-of_core, kind="stable")
    promising = promising[of_core[promising] > 0]
    done = 0
    for cores in _batches(space, promising):
        if of_core[cores[0]] < (1 - within) * ranker.best:
            break
        cores = cores[of_core[cores] >= (1 - within) * ranker.best]
        for positions in _slices(*space.span(cores)):
            advance(len(positions))
            done += len(positions)
            near = bound[space.counterparts(positions, fast)]
            positions = positions[(near > 0) & (near >= (1 - within) * ranker.best)]
            _add(ranker, space, surrogate, capacity_gib, positions, exclude)
    advance(total - done)
    return ranker.ranking(total)


def _bounds(space: Space, surrogate: Surrogate, capacity_gib: float) -> tuple[Space, Column]:
    """The space without recomputation, and an upper bound of the throughput of each of its configs.

    The bound holds for every config that differs in recomputation alone; it is 0 where none of them
    can fit. With full recomputation a config is leanest, but for the activations of the one layer
    that is being recomputed: hence the slack in memory. Where nothing can fit the leanest keeps its
    bound, so that the ranking can say how much is missing.
    """
    fast, lean = space.narrowed_to(_NO_RECOMPUTE), space.narrowed_to(_FULL_RECOMPUTE)
    leanest = np.full(len(fast), np.inf)
    for positions in _slices(np.array([0]), np.array([len(lean)])):
        where = lean.counterparts(positions, fast)
        leanest[where] = surrogate.device_gib(lean.rows(positions))
    known = np.isfinite(leanest)
    hopeful = ~known | (leanest <= (1 + MEMORY_SLACK) * capacity_gib)
    if not hopeful.any():
        hopeful = leanest <= leanest.min(initial=np.inf)
    bound = np.zeros(len(fast))
    places = np.flatnonzero(hopeful)
    for start in range(0, len(places), BATCH_ROWS):
        rows = places[start : start + BATCH_ROWS]
        bound[rows] = surrogate.tokens_per_s_per_gpu(fast.rows(rows)) * (1 + SPEED_SLACK)
    return fast, bound


def _add(
    ranker: Ranker,
    space: Space,
    surrogate: Surrogate,
    capacity_gib: float,
    positions: Column,
    exclude: Sequence[TrainingConfig],
) -> None:
    """Projects configs: memory of all, the rest of those that fit."""
    if not len(positions):
        return
    table = space.rows(positions)
    if exclude:
        kept = np.all([table.axes_changed(config) > 0 for config in exclude], axis=0)
        ranker.leave_out(int(np.count_nonzero(~kept)))
        table, positions = table.take(kept), positions[kept]
        if not len(positions):
            return
    device_gib = surrogate.device_gib(table)
    fits = device_gib <= capacity_gib
    if not fits.all():
        ranker.refuse(table.take(~fits), device_gib[~fits])
    if fits.any():
        held = table.take(fits)
        ranker.add(held, surrogate.project(held), space.core_of(positions[fits]))


def _slices(first: Column, length: Column) -> Iterator[Column]:
    """The positions of some spans, ascending, at most ``BATCH_ROWS`` at a time."""
    order = np.argsort(first)
    first, ends = first[order], np.cumsum(length[order])
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, BATCH_ROWS):
        places = np.arange(start, min(start + BATCH_ROWS, total))
        span = np.searchsorted(ends, places, side="right")
        yield first[span] + places - np.where(span > 0, ends[span - 1], 0)


def _batches(space: Space, cores: Column) -> Iterator[Column]:
    """Cores in order, cut so that each batch has about ``BATCH_ROWS`` configs."""
    if not len(cores):
        return
    ends = np.cumsum(space.span(cores)[1])
    yield from np.split(cores, np.searchsorted(ends, np.arange(BATCH_ROWS, ends[-1], BATCH_ROWS)))
