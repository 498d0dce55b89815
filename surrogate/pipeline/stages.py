"""What each pipeline stage holds, as columns: the bookkeeping that memory and time share.

A pipeline stage here is all chunks of one pipeline rank. Rows that share model, pp, vpp, layout and
recomputed layers share their stages: those are worked out once and gathered. By default only the
few stages that can be the fullest or the slowest are kept, so a row costs the same at any pp.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.choices import Recompute, RecomputeMethod, Schedule
from specs.config import ConfigTable
from specs.layout import rank_of, virtual_stages
from specs.model import Model
from surrogate.cases import Cases

Column = NDArray[Any]


@dataclass(frozen=True)
class StageColumns:
    """Stages of n rows, every column of shape (n, k).

    ``dense_layers`` and ``moe_layers`` are decoder layers; ``mtp_layers`` come on top of them.
    ``recomputed_*`` are those of them that full recomputation rebuilds; ``window_layers`` those
    with sliding-window attention. Rows with fewer than k stages repeat their first one, marked by
    ``valid`` False: a maximum over stages needs no mask, a sum does.
    """

    rank: Column
    dense_layers: Column
    moe_layers: Column
    has_embedding: Column
    has_output: Column
    mtp_layers: Column
    window_layers: Column
    recomputed_dense: Column
    recomputed_moe: Column
    recomputed_mtp: Column
    valid: Column

    @property
    def layers(self) -> Column:
        """Decoder layers of each stage."""
        layers: Column = self.dense_layers + self.moe_layers
        return layers

    @property
    def recomputed(self) -> Column:
        """Decoder layers that full recomputation rebuilds."""
        recomputed: Column = self.recomputed_dense + self.recomputed_moe
        return recomputed

    def take(self, rows: Any) -> StageColumns:
        """The stages of the selected rows."""
        return StageColumns(
            **{name: getattr(self, name).T.take(rows, axis=1).T for name in _COLUMNS}
        )


_COLUMNS = tuple(field.name for field in fields(StageColumns))
_FLAGS = ("has_embedding", "has_output")
_RANK, _DENSE, _MOE, _EMBEDDING, _OUTPUT, _MTP, _WINDOW, _RE_DENSE, _RE_MOE, _RE_MTP = range(10)


class _Layers(NamedTuple):
    """Layer kinds of a model: one flag a decoder layer."""

    is_moe: tuple[bool, ...]
    is_window: tuple[bool, ...]
    mtp_layers: int


class _Recomputed(NamedTuple):
    """Which layers full recomputation rebuilds: the first of each chunk, and these ids."""

    layers_per_chunk: int
    layer_ids: tuple[int, ...]


_IS_V_SHAPED = np.array([schedule.is_v_shaped for schedule in Schedule])
"""Schedule code -> whether a rank holds stages from both ends of the pipeline."""

ALL_LAYERS = 1 << 12
"""Recomputed layers a chunk that stand for every layer (uniform), MTP layers included."""


def stage_columns(cases: Cases, every_stage: bool = False) -> StageColumns:
    """Stages of every row.

    Args:
        cases: n rows.
        every_stage: all pp stages, in rank order, instead of the candidates for the worst one.

    Returns:
        columns of shape (n, k).

    Raises:
        InputError: a layout is malformed or does not hold the layers of its model.
    """
    table, index = stage_table(cases, every_stage)
    return table.take(index)


def stage_table(cases: Cases, every_stage: bool = False) -> tuple[StageColumns, Column]:
    """The distinct sets of stages (u, k) and which of them each row has, shape (n,)."""
    config = cases.config
    keys = (
        np.broadcast_to(cases.model_index, (len(cases),)),
        config.pp,
        config.vpp,
        _IS_V_SHAPED[config.schedule],
        config.layout,
        recomputed_per_chunk(config),
        config.recompute_layer_ids * (config.recompute == int(Recompute.FULL)),
    )
    first, index = distinct_rows(keys)
    layers = [_layers_of(model) for model in cases.models]
    blocks = []
    for row in first:
        model, pp, vpp, v, layout, per_chunk, ids = (int(column[row]) for column in keys)
        recomputed = _Recomputed(per_chunk, config.layer_id_sets[ids])
        where = (config.layouts[layout], pp, vpp, bool(v))
        find = _all_stages if every_stage else _candidate_stages
        blocks.append(find(layers[model], where, recomputed))
    return _stacked(blocks), index


def recomputed_per_chunk(config: ConfigTable) -> Column:
    """Layers of each model chunk that full recomputation rebuilds, before layer ids.

    Block (or a bare number of layers) rebuilds that many, uniform and a bare "full" all of them.
    """
    number = config.recompute_layers
    block = (config.recompute_method == int(RecomputeMethod.BLOCK)) | (
        (config.recompute_method == int(RecomputeMethod.NONE)) & (number > 0)
    )
    by_id = (config.recompute_layer_ids > 0) & (config.recompute_method == 0)
    per_chunk = np.where(block, np.minimum(number, ALL_LAYERS - 1), ALL_LAYERS)
    per_chunk = np.where(by_id & ~block, 0, per_chunk)
    return np.where(config.recompute == int(Recompute.FULL), per_chunk, 0)


def distinct_rows(keys: tuple[Column, ...]) -> tuple[Column, Column]:
    """First row of each distinct key and the key number of each row; keys are small integers."""
    rows = len(keys[0])
    if not rows:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    packed: Column = np.zeros(rows, dtype=np.int64)
    size = 1
    for column in keys:
        low, high = int(column.min()), int(column.max())
        count = high - low + 1
        fits_table = size * count <= _TABLE_ENTRIES * rows
        if (size <= _TABLE_ENTRIES * rows and not fits_table) or size * count > _LARGEST_KEY:
            packed, size = _numbered(packed, size)
        packed, size = packed * count + (column - low), size * count
    index, count = _numbered(packed, size)
    first = np.empty(count, dtype=np.int64)
    first[index[::-1]] = np.arange(rows - 1, -1, -1)
    return first, index


_LARGEST_KEY = 1 << 62
_TABLE_ENTRIES = 16
"""Entries a row up to which values are numbered by a table of all of them; else by sorting."""


def _numbered(values: Column, size: int) -> tuple[Column, int]:
    """Values in [0, size) renumbered 0..count-1 in order, and the count."""
    if size > _TABLE_ENTRIES * len(values):
        distinct, numbers = np.unique(values, return_inverse=True)
        return numbers, len(distinct)
    present = np.zeros(size, dtype=bool)
    present[values] = True
    distinct = np.flatnonzero(present)
    number = np.empty(size, dtype=np.int64)
    number[distinct] = np.arange(len(distinct))
    return number[values], len(distinct)


@lru_cache(maxsize=1024)
def _layers_of(model: Model) -> _Layers:
    """Layer kinds of a model; window layers are spread evenly over its depth."""
    depth, windows = model.num_layers, model.window_layers
    is_window = [(i + 1) * windows // depth > i * windows // depth for i in range(depth)]
    return _Layers(tuple(map(bool, model.layer_is_moe())), tuple(is_window), model.mtp_layers)


@lru_cache(maxsize=1 << 16)
def _all_stages(
    layers: _Layers, where: tuple[str, int, int, bool], recomputed: _Recomputed
) -> Column:
    """What every pipeline rank holds, shape (pp, 10)."""
    layout, pp, vpp, v_shaped = where
    held = np.zeros((pp, 10), dtype=np.int64)
    held[:, _RANK] = np.arange(pp)
    ids = set(recomputed.layer_ids)
    depth = len(layers.is_moe)
    stages = virtual_stages(layout, depth, layers.mtp_layers, pp, vpp, v_shaped)
    for number, stage in enumerate(stages):
        row = held[rank_of(number, pp, v_shaped)]
        row[_EMBEDDING] += stage.embedding
        row[_OUTPUT] += stage.output
        row[_MTP] += stage.mtp_layers
        for place in range(stage.layers):
            layer = stage.first_layer + place
            moe = layers.is_moe[layer]
            rebuilt = place < recomputed.layers_per_chunk or layer in ids
            row[_MOE if moe else _DENSE] += 1
            row[_RE_MOE if moe else _RE_DENSE] += rebuilt
            row[_WINDOW] += layers.is_window[layer]
        row[_RE_MTP] += sum(
            recomputed.layers_per_chunk == ALL_LAYERS or depth + d in ids
            for d in range(stage.mtp_layers)
        )
    held.setflags(write=False)
    return held


@lru_cache(maxsize=1 << 16)
def _candidate_stages(
    layers: _Layers, where: tuple[str, int, int, bool], recomputed: _Recomputed
) -> Column:
    """The stages that no other stage dominates, shape (k, 10).

    A stage dominates another if it holds at least as much of everything and as many microbatches in
    flight, which never increase with the rank, or never decrease where the schedule is V-shaped.
    """
    held = _all_stages(layers, where, recomputed)
    in_flight_order = held[:, _RANK] if where[-1] else -held[:, _RANK]
    bulk = np.column_stack(
        [
            in_flight_order,
            held[:, [_DENSE, _MOE, _EMBEDDING, _OUTPUT, _MTP, _RE_DENSE, _RE_MOE, _RE_MTP]],
            held[:, _DENSE] - held[:, _RE_DENSE],
            held[:, _MOE] - held[:, _RE_MOE],
            held[:, _MTP] - held[:, _RE_MTP],
            held[:, _DENSE] + held[:, _MOE] - held[:, _WINDOW],
        ]
    )
    kept: list[int] = []
    ranks = range(len(held))
    for rank in reversed(ranks) if where[-1] else ranks:
        dominated = (bulk[kept] >= bulk[rank]).all(axis=1).any() if kept else False
        if not dominated:
            kept.append(rank)
    chosen = held[sorted(kept)]
    chosen.setflags(write=False)
    return chosen


def _stacked(blocks: list[Column]) -> StageColumns:
    """Blocks of (k_i, 10) as columns of (u, k), short ones filled up with their first stage."""
    k = max((len(block) for block in blocks), default=1)
    full = np.empty((len(blocks), k, 10), dtype=np.int64)
    valid = np.zeros((len(blocks), k), dtype=bool)
    for number, block in enumerate(blocks):
        full[number, : len(block)] = block
        full[number, len(block) :] = block[0]
        valid[number, : len(block)] = True
    columns: dict[str, Column] = {"valid": valid}
    for place, name in enumerate(_COLUMNS[:-1]):
        column = full[:, :, place]
        columns[name] = (column > 0) if name in _FLAGS else column.astype(np.float64)
    return StageColumns(**columns)
