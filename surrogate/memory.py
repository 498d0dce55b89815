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
from scipy.special import ndtr, stdtrit

from specs.choices import Overlap, Recompute
from surrogate.activations import LayerBytes, layer_bytes, sequence_shards, tokens_per_microbatch
from surrogate.buffers import (
    GIB,
    Outside,
    bucket_bytes,
    dispatch_bytes,
    logits_bytes,
    outside,
    unsharded_bytes,
    workspace_bytes,
)
from surrogate.cases import Cases
from surrogate.memory_constants import IS_EAGER, MemoryConstants, shipped_memory_constants
from surrogate.pipeline.schedules import in_flight
from surrogate.pipeline.stages import (
    ALL_LAYERS,
    StageColumns,
    recomputed_per_chunk,
    stage_table,
)
from surrogate.states import COMPUTE_BYTES, column, stage_parameters, state_bytes

Column = NDArray[Any]

CHUNK_ROWS = 1 << 14

STUDENT_DEGREES = 4.0
"""Tails of the errors of projections: 90% of those on Folds left out are within 1.9, 95% within 2.4
times what two thirds are within (measured on published runs, 30 November 2026)."""
TWO_THIRDS = float(stdtrit(STUDENT_DEGREES, float(ndtr(1.0))))
"""What two thirds of a Student-t variable stay within, as of a Gaussian within one sd."""

UNSTATED_WIDTH = 4.0
"""How much wider the error is of runs that leave something unsaid which decides their memory. 90%
of 33 such peaks of 12 Folds lie within 4.1 times as many spreads as of 349 others with Folds left
out, within 4.4 times with publishers left out; 4.0 covers 82% and 94% of them."""


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
    """Bytes by component of each stage, (n, k) or broadcastable.

    ``pool`` is the sum of the components, ``allocated`` what of it is alive at once.
    """

    weights: Column
    gradients: Column
    optimizer: Column
    activations: Column
    logits: Column
    buffers: Column
    allocated: Column
    pool: Column


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
        parts = _parts(part, stages, constants)
        worst = parts.pool.argmax(axis=1)
        peak = np.take_along_axis(parts.pool, worst[:, None], axis=1)[:, 0]
        beyond = outside(part, constants)
        reserved = peak * beyond.reserved_factor + beyond.reserved_base
        columns["allocated_gib"][rows] = parts.allocated.max(axis=1) / GIB
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
    reserved = parts.pool * beyond.reserved_factor + beyond.reserved_base
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


def counter_reading(
    cases: Cases, counters: Column, constants: MemoryConstants | None = None
) -> Column:
    """What the counter of each row would show, GiB, (n,).

    Args:
        cases: n rows.
        counters: names of the measured-runs format: allocated, active, reserved, device,
            allocated-last-rank (the last pipeline rank) or unknown (taken as device).
        constants: those that ship where not given.
    """
    peak = memory(cases, constants)
    names = np.asarray(counters).astype(str)
    reading = np.where(np.isin(names, ("allocated", "active")), peak.allocated_gib, peak.device_gib)
    reading = np.where(names == "reserved", peak.reserved_gib, reading)
    last = np.flatnonzero(names == "allocated-last-rank")
    if len(last):
        stages = memory_by_stage(cases.take(last), constants)
        rank = stages.valid.sum(axis=1) - 1
        reading[last] = stages.allocated_gib[np.arange(len(last)), rank]
    return reading


def memory_log_sd(cases: Cases, constants: MemoryConstants | None = None) -> Column:
    """|log(measured / projected)| within which two thirds of the runs of a framework stay on Folds
    that no fit has seen, () or (n,); on AMD GPUs, of which fewer peaks are known, at least theirs.
    """
    constants = constants or shipped_memory_constants()
    floor = np.where(cases.cluster.is_amd, constants.log_sd_amd, 0.0)
    return np.asarray(np.maximum(constants.log_sd[cases.stack.framework], floor))


def memory_doubt(unstated: Column) -> Column:
    """Factor on ``memory_log_sd`` of each run of a table, (n,).

    Args:
        unstated: whether the run leaves something unsaid that decides its memory, see
            ``specs.run_stated.unstated_facts``.
    """
    return np.where(unstated, UNSTATED_WIDTH, 1.0)


class Gap(NamedTuple):
    """A measured peak against the projection of one run: GiB by component, in one reading."""

    measured_gib: float
    projected_gib: float
    gap_gib: float
    stage: int
    components: dict[str, float]


COMPONENTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "overhead")


def explain_gap(
    cases: Cases,
    measured_gib: Column,
    counters: Column | None = None,
    constants: MemoryConstants | None = None,
) -> list[Gap]:
    """What the projection of each row consists of on its fullest stage, and what is left.

    ``overhead`` is what the counter sees beyond the components: the allocator's reserve, the
    runtime and communicators. It is negative where not all components are alive at once.

    Args:
        cases: n rows, few.
        measured_gib: what the counters of the runs showed, (n,).
        counters: as in ``counter_reading``; device where not given.
        constants: those that ship where not given.
    """
    names = np.full(len(cases), "device") if counters is None else np.asarray(counters)
    reading = counter_reading(cases, names, constants)
    found = []
    for row, measured in enumerate(np.asarray(measured_gib, dtype=np.float64)):
        stages = memory_by_stage(cases.take([row]), constants)
        stage = int(stages.total_gib[0].argmax())
        if names[row] == "allocated-last-rank":
            stage = int(stages.valid[0].sum()) - 1
        held = {name: float(getattr(stages, f"{name}_gib")[0, stage]) for name in COMPONENTS[:-1]}
        projected = float(reading[row])
        held["overhead"] = projected - sum(held.values())
        found.append(Gap(float(measured), projected, float(measured) - projected, stage, held))
    return found


def fit_probability(device_gib: Any, capacity_gib: Any, sd: Any) -> Column:
    """Probability that a run stays below capacity, given the log error of projections.

    Args:
        device_gib: projected device memory.
        capacity_gib: memory of the GPU.
        sd: error that two thirds of the runs stay within, see ``memory_log_sd``; beyond it errors
            have the tails of a Student-t distribution.
    """
    margin = np.log(np.asarray(capacity_gib) / np.asarray(device_gib))
    t = margin / np.asarray(sd) * TWO_THIRDS
    # With four degrees of freedom the distribution has this closed form, 20 times faster.
    s = t / np.sqrt(np.square(t) + 4.0)
    return np.asarray(np.square(1.0 + s) * (2.0 - s) / 4.0)


def interval_half_width(sd: Any, coverage: float = 0.9) -> Column:
    """Half-width of the interval of log(measured / projected) that holds this share of runs."""
    return np.asarray(sd) / TWO_THIRDS * stdtrit(STUDENT_DEGREES, (1.0 + coverage) / 2.0)


def microbatches_in_flight(cases: Cases, rank: Column) -> Column:
    """Microbatches whose activations each stage holds at its peak, (n, k).

    Vocabulary parallelism holds one more for each of its barriers (arXiv 2411.05288, section 5).
    """
    c, microbatches = cases.config, cases.microbatches()
    extra_warmup = (c.overlap & int(Overlap.EP)) > 0
    held = in_flight(c.schedule, c.pp, microbatches, c.vpp, rank, c.microbatch_group, extra_warmup)
    barriers = cases.stack.vocabulary_barriers
    if np.any(barriers):
        held = np.minimum(held + column(barriers), column(microbatches))
    return held


def _parts(cases: Cases, stages: StageColumns, constants: MemoryConstants) -> _Parts:
    """Components of each stage at its peak."""
    parameters = stage_parameters(cases, stages)
    states = state_bytes(cases, parameters, constants)
    layers = layer_bytes(cases, constants)
    kept = _kept(cases, stages, layers) + _sent(cases, stages, constants)
    kept = kept * microbatches_in_flight(cases, stages.rank)
    working = _working(stages, layers, _freed(cases, stages, layers))
    beyond_working = _logits_beyond(cases, stages, working, constants)
    activations = kept + working
    shared = unsharded_bytes(cases, stages, constants)
    shared = shared + bucket_bytes(cases, stages, parameters, constants)
    shared = shared + column(dispatch_bytes(cases, constants)) * (stages.moe_layers > 0)
    live = activations + beyond_working + shared
    temporary = column(constants.optimizer_temporary[cases.stack.framework]) * states.optimizer
    base = column(workspace_bytes(cases, constants))
    buffers = shared + np.maximum(temporary - live, 0.0) + base
    kept_for_good = states.weights + states.optimizer
    pool = kept_for_good + states.gradients + activations + beyond_working + buffers
    allocated = pool
    fresh = column(allocates_gradients(cases))
    if fresh.any():
        late = np.maximum(working + shared, temporary) + states.gradients
        alive = kept_for_good + np.maximum(live, late) + base
        allocated = np.where(fresh, alive, pool)
    offset = column(constants.offset(cases.stacks)[cases.stack_index])
    return _Parts(
        states.weights,
        states.gradients,
        states.optimizer,
        activations,
        beyond_working,
        buffers,
        allocated * offset,
        pool * offset,
    )


def allocates_gradients(cases: Cases) -> Column:
    """Whether gradients are allocated in each backward pass, (n,).

    Megatron and DeepSpeed keep gradient buffers for good; FSDP and eager PyTorch free gradients
    at the step: unless gradients are accumulated, they replace activations in the course of the
    backward pass and are never alive together with all of them. The allocator does not reuse that
    memory, since gradients are reduced on a stream of their own with its own pool.
    """
    eager = IS_EAGER[cases.stack.framework]
    return np.asarray(eager & (cases.microbatches() == 1) & (cases.config.pp == 1))


def _logits_beyond(
    cases: Cases, stages: StageColumns, working: Column, constants: MemoryConstants
) -> Column:
    """Bytes that the output layer adds to the working set of a layer, (n, k).

    Logits are freed before the last layer's backward pass fills the working set. The passes of
    vocabulary parallelism run between those of layers: their logits come on top, and so do the
    hidden states that are broadcast to, and reduced from, the vocabulary shard of every rank.
    """
    logits = column(logits_bytes(cases, constants)) * _logits_held(cases, stages)
    beyond = np.maximum(logits - working, 0.0)
    spread = column(cases.stack.vocabulary_barriers > 0)
    if not spread.any():
        return np.asarray(beyond)
    hidden = COMPUTE_BYTES * cases.model.hidden_size / sequence_shards(cases)
    exchanged = constants.vocabulary_copies * tokens_per_microbatch(cases) * hidden
    return np.where(spread, logits + column(exchanged * cases.config.pp), beyond)


def _logits_held(cases: Cases, stages: StageColumns) -> Column:
    """Logits tensors of each stage: one, and one an MTP layer; a share under vocabulary
    parallelism."""
    held = stages.has_output * (1.0 + stages.mtp_layers)
    spread = column(cases.stack.vocabulary_barriers > 0)
    if not spread.any():
        return held
    return np.where(spread, 1.0 / column(cases.config.pp), held)


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


def _sent(cases: Cases, stages: StageColumns, constants: MemoryConstants) -> Column:
    """Bytes of a stage's output that stay with it for each microbatch in flight, (n, k)."""
    held = constants.stage_outputs[cases.stack.framework]
    if not np.any(held):
        return np.zeros(())
    hidden = 2.0 * cases.model.hidden_size / sequence_shards(cases)
    return np.asarray(column(held * tokens_per_microbatch(cases) * hidden) * ~stages.has_output)


def _freed(cases: Cases, stages: StageColumns, layers: LayerBytes) -> Column:
    """What the backward pass of a microbatch has freed before it rebuilds a layer, (n, k).

    Block recomputation rebuilds the first layers of a chunk, which the backward pass reaches last:
    what the others kept is gone by then.
    """
    per_chunk = recomputed_per_chunk(cases.config)
    first = (per_chunk > 0) & (per_chunk < ALL_LAYERS) & (cases.config.recompute_layer_ids == 0)
    if not np.any(first):
        return np.zeros(())
    kept = column(layers.dense) * (stages.dense_layers - stages.recomputed_dense)
    kept = kept + column(layers.moe) * (stages.moe_layers - stages.recomputed_moe)
    return np.asarray(np.where(column(first), kept / column(cases.config.vpp), 0.0))


def _working(stages: StageColumns, layers: LayerBytes, freed: Column) -> Column:
    """The largest layer that is being rebuilt, beyond what is ``freed`` by then, and its gradients,
    (n, k)."""

    def largest(
        held: Column, rebuilds: Column, whole: Column, part: Column, back: Column
    ) -> Column:
        """Of layers of one kind: how many, how many rebuilt; bytes rebuilt and of gradients."""
        gradients = column(back)
        of_whole = np.maximum(column(whole) + gradients - freed, gradients * (held > rebuilds))
        return np.asarray(np.where(rebuilds > 0, of_whole, column(part) + gradients))

    dense = largest(
        stages.dense_layers, stages.recomputed_dense,
        layers.whole_dense, layers.rebuilt_dense, layers.gradients_dense,
    )  # fmt: skip
    moe = largest(
        stages.moe_layers, stages.recomputed_moe,
        layers.whole_moe, layers.rebuilt_moe, layers.gradients_moe,
    )  # fmt: skip
    has_moe = (stages.moe_layers > 0) | ((stages.mtp_layers > 0) & (stages.dense_layers == 0))
    return np.asarray(np.maximum(dense * (stages.dense_layers > 0), moe * has_moe))
