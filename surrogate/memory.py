"""Peak memory of a GPU, the fullest pipeline stage counting, in the three readings of counters.

``allocated`` is live tensors, ``reserved`` what the caching allocator holds for them and ``device``
what the driver reports. Peaks are where the backward pass starts: every microbatch in flight, plus
the logits or the layer being rebuilt, or, where it is more, at the optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from specs.choices import Recompute, Schedule
from surrogate.activations import LayerBytes, layer_bytes, sequence_shards, tokens_per_microbatch
from surrogate.buffers import (
    GIB,
    Outside,
    dispatch_bytes,
    logits_bytes,
    outside,
    unsharded_bytes,
)
from surrogate.cases import Cases
from surrogate.memory_constants import MemoryConstants, shipped_memory_constants
from surrogate.stages import StageColumns, stage_table
from surrogate.states import column, stage_parameters, state_bytes

Column = NDArray[Any]

CHUNK_ROWS = 1 << 14


@dataclass(frozen=True)
class Memory:
    """Peak of the fullest stage of n rows, columns of shape (n,); ``stage`` is its rank."""

    allocated_gib: Column
    reserved_gib: Column
    device_gib: Column
    stage: Column


@dataclass(frozen=True)
class StageMemory:
    """Memory of every stage of n rows, columns of shape (n, pp), in rank order.

    ``total_gib`` is the device reading and the sum of the components; ``valid`` is False where a
    row has fewer stages than the widest one.
    """

    weights_gib: Column
    gradients_gib: Column
    optimizer_gib: Column
    activations_gib: Column
    logits_gib: Column
    buffers_gib: Column
    overhead_gib: Column
    allocated_gib: Column
    reserved_gib: Column
    total_gib: Column
    valid: Column


class _Parts(NamedTuple):
    """Bytes by component of each stage, (n, k) or broadcastable; what is alive at the peak."""

    weights: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    buffers: Column
    allocated: Column


def memory(cases: Cases, constants: MemoryConstants | None = None) -> Memory:
    """Peak memory of every row, in chunks that fit the cache.

    Raises:
        InputError: a layout does not hold the layers of its model.
    """
    constants = constants or shipped_memory_constants()
    table, index = stage_table(cases)
    n = len(cases)
    columns = {field.name: np.empty(n) for field in fields(Memory)}
    for start in range(0, n, CHUNK_ROWS):
        rows = slice(start, min(start + CHUNK_ROWS, n))
        stages = table.take(index[rows])
        part = cases.take(rows)
        allocated = _parts(part, stages, constants).allocated
        worst = allocated.argmax(axis=1)
        peak = np.take_along_axis(allocated, worst[:, None], axis=1)[:, 0]
        beyond = outside(part, constants)
        reserved = peak * beyond.reserved_factor + beyond.reserved_base
        columns["allocated_gib"][rows] = peak / GIB
        columns["reserved_gib"][rows] = reserved / GIB
        columns["device_gib"][rows] = (reserved + beyond.device) / GIB
        columns["stage"][rows] = np.take_along_axis(stages.rank, worst[:, None], axis=1)[:, 0]
    return Memory(**columns)


def memory_by_stage(cases: Cases, constants: MemoryConstants | None = None) -> StageMemory:
    """Components of every stage; the maximum of ``total_gib`` is ``memory().device_gib``."""
    constants = constants or shipped_memory_constants()
    table, index = stage_table(cases, every_stage=True)
    stages = table.take(index)
    parts = _parts(cases, stages, constants)
    beyond = Outside(*(column(value) for value in outside(cases, constants)))
    shape = stages.rank.shape
    reserved = parts.allocated * beyond.reserved_factor + beyond.reserved_base
    total = reserved + beyond.device
    named = {
        "weights": parts.weights,
        "gradients": parts.gradients,
        "optimizer": parts.optimizer,
        "activations": parts.activations,
        "logits": parts.logits,
        "buffers": parts.buffers,
    }
    held = {f"{name}_gib": np.broadcast_to(part, shape) / GIB for name, part in named.items()}
    overhead = total - sum(np.broadcast_to(part, shape) for part in named.values())
    return StageMemory(
        **held,
        overhead_gib=overhead / GIB,
        allocated_gib=parts.allocated / GIB,
        reserved_gib=reserved / GIB,
        total_gib=total / GIB,
        valid=stages.valid,
    )


def fit_probability(device_gib: Any, capacity_gib: Any, sd: Any) -> Column:
    """Probability that a run stays below capacity, given the log error of projections.

    Args:
        device_gib: projected device memory.
        capacity_gib: memory of the GPU.
        sd: standard deviation of log(measured / projected) on Folds not seen.
    """
    margin = np.log(np.asarray(capacity_gib) / np.asarray(device_gib))
    return np.asarray(ndtr(margin / np.asarray(sd)))


def in_flight(cases: Cases, rank: Column) -> Column:
    """Microbatches whose activations stage ``rank`` holds at its peak, (n, k)."""
    c = cases.config
    p, v, m = column(c.pp), column(c.vpp), column(cases.microbatches())
    schedule = column(c.schedule)
    group = np.where(column(c.microbatch_group) > 0, column(c.microbatch_group), p)
    warm = np.minimum(m * v, 2 * (p - rank - 1) + (v - 1) * group + 1) / v
    held = np.minimum(m, p - rank)
    held = np.where(schedule == int(Schedule.INTERLEAVED), warm, held)
    held = np.where(schedule == int(Schedule.ZB_H1), np.minimum(m, p), held)
    held = np.where(schedule == int(Schedule.ZB_H2), np.minimum(m, 2 * p - 1), held)
    held = np.where(schedule == int(Schedule.ZBV), np.minimum(m, p), held)
    held = np.where(schedule == int(Schedule.V_HALF), np.minimum(m, p // 2 + 1), held)
    held = np.where(schedule == int(Schedule.V_MIN), np.minimum(m, -(-p // 3) + 1), held)
    held = np.where(
        (schedule == int(Schedule.GPIPE)) | (schedule == int(Schedule.ZB_HEURISTIC)), m, held
    )
    return np.where(p > 1, held, 1.0)


def _parts(cases: Cases, stages: StageColumns, constants: MemoryConstants) -> _Parts:
    """Components of each stage at its peak."""
    parameters = stage_parameters(cases, stages)
    states = state_bytes(cases, parameters, constants)
    layers = layer_bytes(cases, constants)
    kept = _kept(cases, stages, layers) * in_flight(cases, stages.rank)
    working = _working(stages, layers)
    logits = column(logits_bytes(cases, constants)) * (
        stages.has_output * (1.0 + stages.mtp_layers)
    )
    # The logits are freed before the last layer's backward pass fills the working set.
    logits_only = np.maximum(logits - working, 0.0)
    buffers = unsharded_bytes(cases, stages, parameters, constants) + column(
        dispatch_bytes(cases, constants)
    ) * (stages.moe_layers > 0)
    static = states.weights + states.gradients + states.optimizer
    base = constants.allocated_base_gib[cases.stack.framework] * GIB
    alive = kept + working + logits_only + buffers
    at_step = column(constants.optimizer_temporary[cases.stack.framework]) * states.optimizer
    activations = kept + working
    buffers = buffers + np.maximum(at_step - alive, 0.0) + column(base)
    allocated = static + activations + logits_only + buffers
    return _Parts(
        states.weights,
        states.gradients,
        states.optimizer,
        activations,
        logits_only,
        buffers,
        allocated,
    )


def _kept(cases: Cases, stages: StageColumns, layers: LayerBytes) -> Column:
    """Bytes that all layers of a stage keep for one microbatch, (n, k)."""
    is_moe = column(cases.model.num_experts > 0)
    dense, moe = column(layers.dense), column(layers.moe)
    dense_kept = stages.dense_layers - stages.recomputed_dense
    moe_kept = stages.moe_layers - stages.recomputed_moe
    mtp_kept = stages.mtp_layers - stages.recomputed_mtp
    kept: Column = dense * dense_kept + moe * moe_kept
    kept = kept + np.where(is_moe, moe, dense) * mtp_kept
    if np.any(cases.config.recompute == int(Recompute.FULL)):
        kept = kept + column(layers.checkpoint) * (
            stages.recomputed_dense + stages.recomputed_moe + stages.recomputed_mtp
        )
    if stages.mtp_layers.any():
        # Concatenated hidden state and embedding, and their norms.
        joined = 10.0 * cases.model.hidden_size / sequence_shards(cases)
        kept = kept + column(tokens_per_microbatch(cases) * joined) * stages.mtp_layers
    return kept


def _working(stages: StageColumns, layers: LayerBytes) -> Column:
    """The largest layer that is being rebuilt, and its gradients, (n, k)."""
    dense = np.where(
        stages.recomputed_dense > 0, column(layers.whole_dense), column(layers.rebuilt_dense)
    ) + column(layers.gradients_dense)
    moe = np.where(
        stages.recomputed_moe > 0, column(layers.whole_moe), column(layers.rebuilt_moe)
    ) + column(layers.gradients_moe)
    has_moe = (stages.moe_layers > 0) | ((stages.mtp_layers > 0) & (stages.dense_layers == 0))
    return np.maximum(dense * (stages.dense_layers > 0), moe * has_moe)
