"""Exhaustive ranking: every legal config is projected, chunk by chunk, and the best are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specs.config import ConfigTable, TrainingConfig

Column = NDArray[Any]
FIT_PROBABILITY = 0.5
"""From this probability on a config counts as fitting: as likely as not, no hidden margin."""


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


@dataclass(frozen=True)
class Ranking:
    """The best fitting configs, best first, and what was seen on the way.

    ``table`` and the columns have k rows. ``refused_by_memory`` legal configs do not fit;
    ``leanest`` is the legal config that misses least memory (``missing_gib`` above capacity, below
    0 where it fits), None where nothing is legal.
    """

    table: ConfigTable
    tokens_per_s_per_gpu: Column
    device_gib: Column
    fit_probability: Column
    legal: int
    refused_by_memory: int
    leanest: TrainingConfig | None
    missing_gib: float

    def __len__(self) -> int:
        return len(self.table)


def rank(
    chunks: Iterable[ConfigTable],
    project: Callable[[ConfigTable], Projected],
    capacity_gib: float,
    keep: int,
    advance: Callable[[int], None] = lambda _: None,
) -> Ranking:
    """Projects every row of ``chunks`` and keeps the ``keep`` fastest that fit.

    Ties go to the config that comes first, so the result does not depend on the chunk size.
    Memory use is one chunk plus ``keep`` rows, whatever the size of the space.
    """
    best: list[tuple[ConfigTable, Column]] = []
    legal = fitting = 0
    leanest: TrainingConfig | None = None
    missing_gib = np.inf
    for table in chunks:
        if not len(table):
            continue
        seen = project(table)
        legal += len(table)
        fits = np.flatnonzero(seen.fit_probability >= FIT_PROBABILITY)
        fitting += len(fits)
        lean = int(np.argmin(seen.device_gib))
        if seen.device_gib[lean] - capacity_gib < missing_gib:
            leanest = table.config(lean)
            missing_gib = float(seen.device_gib[lean] - capacity_gib)
        rows = fits[_best_first(seen.tokens_per_s_per_gpu[fits], keep)]
        values = [seen.tokens_per_s_per_gpu, seen.device_gib, seen.fit_probability]
        best.append((_compact(table.take(rows)), np.stack([column[rows] for column in values])))
        if sum(len(part) for part, _ in best) > 4 * keep:
            best = [_merge(best, keep)]
        advance(len(table))
    kept, columns = _merge(best, keep)
    return Ranking(
        table=kept,
        tokens_per_s_per_gpu=columns[0],
        device_gib=columns[1],
        fit_probability=columns[2],
        legal=legal,
        refused_by_memory=legal - fitting,
        leanest=leanest,
        missing_gib=missing_gib,
    )


def _best_first(values: Column, keep: int) -> Column:
    """Indices of the ``keep`` largest values, largest first, earlier rows first among equals."""
    if len(values) > keep:
        smallest = np.partition(values, len(values) - keep)[len(values) - keep]
        candidates = np.flatnonzero(values >= smallest)
    else:
        candidates = np.arange(len(values))
    order = np.argsort(-values[candidates], kind="stable")
    return np.asarray(candidates[order][:keep])


def _merge(parts: list[tuple[ConfigTable, Column]], keep: int) -> tuple[ConfigTable, Column]:
    if not parts:
        return ConfigTable.from_configs([]), np.zeros((3, 0))
    table = ConfigTable.concat([part for part, _ in parts])
    columns = np.concatenate([part for _, part in parts], axis=1)
    rows = _best_first(columns[0], keep)
    return _compact(table.take(rows)), columns[:, rows]


def _compact(table: ConfigTable) -> ConfigTable:
    """The same rows without the layouts and layer sets that none of them uses."""
    return ConfigTable.from_configs(table.configs()) if len(table) < len(table.layouts) else table
