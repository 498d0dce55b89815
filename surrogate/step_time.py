"""Time of a training step: layers to stages, stages to a pipeline, then what runs once a step.

step = microbatches * slowest stage + idle time of the schedule + exposed point-to-point,
data-parallel and optimizer time. What depends on few axes only (a layer's time) is computed once a
distinct value and gathered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from specs.choices import Overlap, Schedule, Sharding, TrainingKind
from specs.stack import Framework
from surrogate.cases import Cases, Column
from surrogate.communication import Network, all_gather_s, all_reduce_s, ring_step_s
from surrogate.compute import DENSE_AXES, LayerTimes, dense_blocks, layer_times
from surrogate.operators import BYTES, PARTS, Block, Operators
from surrogate.pipeline.schedules import pipeline_idle_s
from surrogate.pipeline.stages import (
    StageColumns,
    distinct_rows,
    recomputed_per_chunk,
    stage_columns,
)
from surrogate.states import adapter_share, column, stage_parameters
from surrogate.time_constants import TimeConstants
from surrogate.time_rates import TimeRates
from surrogate.topology import Group, group

LAYER_AXES = (
    *DENSE_AXES, "ep", "etp", "cp_comm", "recompute_modules", "moe_dispatcher", "sync_free_stage",
    "overlap",
)  # fmt: skip
"""Axes that the time of a layer depends on."""

LAYERS_AT_ONCE = 1 << 12
"""Layers computed at once: the parts of their blocks stay in the cache."""

BREAKDOWN = (*PARTS, "recompute", "output", "bubble", "pp", "dp", "optimizer", "constant")
"""Where the time of a step goes; ``tp`` to ``ep``, ``pp`` and ``dp`` are exposed communication."""


_SPLITS_BACKWARD = np.array([schedule.splits_weight_gradient for schedule in Schedule])
"""Schedule code -> whether it splits the backward pass."""

OFFLOADED_S = 8.0 / 25e9
"""Seconds a parameter whose optimizer runs on the host: gradient down and weight up over PCIe 4."""


@dataclass(frozen=True)
class StepTime:
    """Step times in s, shape (n,); ``breakdown`` by BREAKDOWN sums to them (None if not asked).

    ``recomputed_s`` is what recomputation adds to them at least: what it hides of communication is
    taken off, what it adds to the ramps of a pipeline is not counted.
    """

    step_time_s: Column
    breakdown: dict[str, Column] | None
    recomputed_s: Column


@dataclass(frozen=True)
class LayerTable:
    """Summed times of distinct layers, and which of them every row has, shape (n,)."""

    times: LayerTimes
    row: Column

    def take(self, rows: Any) -> LayerTable:
        """The layers of some rows."""
        return LayerTable(self.times, self.row[rows])


@dataclass(frozen=True)
class _Rows:
    """What the rows of a table are made of: cases, constants, layer times of shape (n,), stages."""

    cases: Cases
    rates: TimeRates
    network: Network
    layers: LayerTimes
    stages: StageColumns


def step_time(
    cases: Cases,
    constants: TimeConstants | None = None,
    breakdown: bool = False,
    rates: TimeRates | None = None,
    stages: StageColumns | None = None,
    layers: LayerTable | None = None,
) -> StepTime:
    """Step time of every row.

    Args:
        cases: n rows.
        constants: of the physics; those that ship where not given.
        breakdown: whether to split the time by BREAKDOWN.
        rates: resolved constants of every row in place of ``constants`` (fitting).
        stages: what the pipeline stages of the rows hold, where it is known already.
        layers: ``layer_table`` of these cases and constants, where it is known already.
    """
    if rates is None:
        constants = constants or TimeConstants.shipped()
        rates = constants.rates(cases)
    stages = stage_columns(cases) if stages is None else stages
    if layers is None:
        layers = layer_table(cases, constants) if constants else _own_layers(cases, rates)
    return _Step(_rows(cases, rates, stages, layers)).result(breakdown)


def stage_times(
    cases: Cases, constants: TimeConstants | None = None
) -> tuple[Column, Column, Column]:
    """Seconds of forward, input gradient and weight gradient of one microbatch, shape (n, pp).

    Columns are pipeline stages in rank order; what is recomputed counts as input gradient. These
    are the times that ``simulation.simulate`` draws a timetable from.
    """
    constants = constants or TimeConstants.shipped()
    stages = stage_columns(cases, every_stage=True)
    layers = layer_table(cases, constants)
    step = _Step(_rows(cases, constants.rates(cases), stages, layers))
    return step.forward, step.backward, step.weight


def _rows(cases: Cases, rates: TimeRates, stages: StageColumns, layers: LayerTable) -> _Rows:
    """What the rows of a table share."""
    return _Rows(
        cases=cases,
        rates=rates,
        network=Network.of(cases.cluster, rates),
        layers=layers.times.take(layers.row),
        stages=stages,
    )


def layer_table(cases: Cases, constants: TimeConstants) -> LayerTable:
    """Layer times of the distinct layers of some cases.

    The rows of a study that agree in LAYER_AXES share their layers; rows of a table of runs do not.
    """
    return shared_layers(cases, constants) or _own_layers(cases, constants.rates(cases))


def shared_layers(cases: Cases, constants: TimeConstants) -> LayerTable | None:
    """``layer_table`` of a study; None for rows that have a layer each."""
    if not cases.is_study or not len(cases):
        return None
    first, index = _distinct(cases, LAYER_AXES)
    distinct = cases.take(first)
    rates = constants.rates(distinct)
    first, dense_row = _distinct(distinct, DENSE_AXES)
    dense = dense_blocks(Operators(distinct.take(first), rates.take(first)))
    parts = []
    for start in range(0, len(distinct), LAYERS_AT_ONCE):
        some = slice(start, start + LAYERS_AT_ONCE)
        times = layer_times(distinct.take(some), rates.take(some), dense.take(dense_row[some]))
        parts.append(times.summed())
    return LayerTable(LayerTimes.concat(parts), index)


def _distinct(cases: Cases, axes: tuple[str, ...]) -> tuple[Column, Column]:
    """First row of each distinct combination of these axes, and which one each row has."""
    return distinct_rows(tuple(getattr(cases.config, axis) for axis in axes))


def _own_layers(cases: Cases, rates: TimeRates) -> LayerTable:
    """A layer of its own for every row."""
    return LayerTable(layer_times(cases, rates).summed(), np.arange(len(cases)))


class _Step:
    """Assembles the step of every row."""

    def __init__(self, rows: _Rows) -> None:
        self.rows = rows
        cases, layers = rows.cases, rows.layers
        self.microbatches = cases.microbatches().astype(np.float64)
        self.forward = self._stage_time("forward", layers)
        self.backward = self._stage_time("input_gradient", layers) + self.again
        self.weight = self._stage_time("weight_gradient", layers)
        total = self.forward + self.backward + self.weight
        self.worst = total.argmax(axis=1)
        self.slowest = total.max(axis=1)
        self.saved = self.slowest - (total - self.again).max(axis=1)

    def _stage_time(self, direction: str, layers: LayerTimes) -> Column:
        """Seconds of one microbatch on each candidate stage, shape (n, k)."""
        rows, stages = self.rows, self.rows.stages

        def of(block: Block) -> Column:
            return column(getattr(block, direction))

        has_moe = rows.cases.model.num_experts > 0
        dense, moe, output = of(layers.dense), of(layers.moe), of(layers.output)
        time: Column = stages.dense_layers * dense + stages.moe_layers * moe
        time += stages.has_output * output + stages.has_embedding * of(layers.embedding)
        if np.any(rows.cases.model.mtp_layers > 0):
            layer = np.where(np.reshape(has_moe, (-1, 1)), moe, dense)
            time += stages.mtp_layers * (layer + of(layers.mtp_projection) + output)
        if np.any(rows.cases.model.window_layers > 0):
            time -= stages.window_layers * of(layers.window_saving)
        return time

    @cached_property
    def again(self) -> Column:
        """What recomputation repeats of the forward pass on each candidate stage, shape (n, k)."""
        rows, stages = self.rows, self.rows.stages
        dense, moe = column(rows.layers.dense_again), column(rows.layers.moe_again)
        again: Column = self._recomputed + stages.dense_layers * dense + stages.moe_layers * moe
        if np.any(stages.mtp_layers > 0):
            has_moe = np.reshape(rows.cases.model.num_experts > 0, (-1, 1))
            again += stages.mtp_layers * np.where(has_moe, moe, dense)
        return again

    @cached_property
    def _recomputed(self) -> Column:
        """Forward passes that full recomputation repeats, shape (n, k)."""
        rows, stages = self.rows, self.rows.stages
        dense, moe = column(rows.layers.dense.forward), column(rows.layers.moe.forward)
        rebuilt_moe = stages.recomputed_moe + stages.recomputed_mtp
        time: Column = stages.recomputed_dense * dense + rebuilt_moe * moe
        return time

    def result(self, breakdown: bool) -> StepTime:
        """The whole step."""
        pipeline = self.microbatches * self.slowest
        exposed, hidden = self._data_parallel()
        extra = {
            "bubble": self._idle(),
            "pp": self._point_to_point(),
            "dp": exposed,
            "optimizer": self._optimizer(),
            "constant": self._constant(),
        }
        step = pipeline + sum(extra.values())
        recomputed = np.maximum(self.microbatches * self.saved - hidden, 0.0)
        parts = self._split(pipeline) | extra if breakdown else None
        return StepTime(step, parts, recomputed)

    def _of_worst(self, stages: Column) -> Column:
        """The slowest stage's entry of columns of shape (n, k)."""
        picked: Column = np.take_along_axis(stages, self.worst[:, None], axis=1)[:, 0]
        return picked

    def _split(self, pipeline: Column) -> dict[str, Column]:
        """The time of the slowest stage by part."""
        rows, layers = self.rows, layer_times(self.rows.cases, self.rows.rates)
        picked = {
            name: np.take_along_axis(getattr(rows.stages, name), self.worst[:, None], axis=1)[:, 0]
            for name in ("dense_layers", "moe_layers", "window_layers", "mtp_layers")
        }
        has_moe = np.broadcast_to(rows.cases.model.num_experts > 0, pipeline.shape)
        mtp = picked["mtp_layers"]
        dense = picked["dense_layers"] + np.where(has_moe, 0.0, mtp)
        moe = picked["moe_layers"] + np.where(has_moe, mtp, 0.0)

        def both(block: Block) -> Column:
            return block.forward + block.backward

        parts = dense * both(layers.dense) + moe * both(layers.moe)
        parts = parts - picked["window_layers"] * both(layers.window_saving)
        parts = parts + mtp * both(layers.mtp_projection)
        split = {name: self.microbatches * parts[i] for i, name in enumerate(PARTS)}
        split["recompute"] = self.microbatches * self._of_worst(self.again)
        split["output"] = pipeline - sum(split.values())
        return split

    def _mean_stage(self) -> tuple[Column, Column, Column]:
        """Forward, input-gradient and weight-gradient time of the mean pipeline stage."""
        rows, layers = self.rows, self.rows.layers
        model, config = rows.cases.model, rows.cases.config
        pp = config.pp.astype(np.float64)
        moe = model.num_moe_layers + np.where(model.num_experts > 0, model.mtp_layers, 0)
        dense = model.num_layers - model.num_moe_layers
        dense = dense + np.where(model.num_experts > 0, 0, model.mtp_layers)
        per_chunk = recomputed_per_chunk(config)
        depth = np.maximum(model.num_layers, 1)
        repeated = np.minimum(per_chunk * pp * config.vpp / depth, 1.0)
        times = []
        for direction in ("forward", "input_gradient", "weight_gradient"):
            dense_s, moe_s = getattr(layers.dense, direction), getattr(layers.moe, direction)
            if direction == "input_gradient":
                dense_s = dense_s + layers.dense_again + repeated * layers.dense.forward
                moe_s = moe_s + layers.moe_again + repeated * layers.moe.forward
            total = dense * dense_s + moe * moe_s
            total = total + (1 + model.mtp_layers) * getattr(layers.output, direction)
            total = total - model.window_layers * getattr(layers.window_saving, direction)
            times.append(total / pp)
        return times[0], times[1], times[2]

    def _idle(self) -> Column:
        """Idle time of the schedule."""
        config = self.rows.cases.config
        if np.all(config.pp == 1):
            return np.zeros(len(config))
        forward, backward, weight = self._mean_stage()
        idle = pipeline_idle_s(
            config.schedule,
            config.pp,
            self.microbatches,
            config.vpp,
            forward,
            backward,
            weight,
        )
        result: Column = self.rows.rates.bubble * idle
        return result

    def _point_to_point(self) -> Column:
        """Activations and gradients between stages: the exposed share, and the pipeline's ramp.

        Each TP rank sends its part (Megatron scatter-gather, DeepSpeed PartitionedTensor).
        """
        rows = self.rows
        cases, config = rows.cases, rows.cases.config
        if np.all(config.pp == 1):
            return np.zeros(len(config))
        tokens = config.mbs * cases.workload.seq_len / config.cp
        stride = cases.cluster.num_gpus // config.pp
        members = group(np.minimum(config.pp, 2), stride, cases.cluster.scale_up_gpus)
        once = ring_step_s(
            tokens * cases.model.hidden_size * BYTES / config.tp, members, rows.network
        )
        messages = 2.0 * self.microbatches * config.vpp
        steady = messages * (rows.rates.p2p_exposed * once + rows.rates.p2p_straggle)
        ramp = 2.0 * (config.pp - 1.0) * (once + rows.rates.p2p_straggle)
        return np.where(config.pp > 1, steady + ramp + self._tied_embedding(members), 0.0)

    def _tied_embedding(self, members: Group) -> Column:
        """All-reduce of the embedding gradient between the first and the last stage."""
        cases = self.rows.cases
        table = cases.model.vocab_size * cases.model.hidden_size / cases.config.tp
        volume = table * self._reduced_bytes()
        return np.where(
            cases.model.tied_embeddings, all_reduce_s(volume, members, self.rows.network), 0.0
        )

    def _constant(self) -> Column:
        """What every step takes whatever its size: host work, norms, logging, stragglers."""
        cluster, rates = self.rows.cases.cluster, self.rows.rates
        nodes = np.maximum(cluster.num_gpus / cluster.gpus_per_node, 1.0)
        doublings = np.log2(nodes)
        jitter = rates.straggle * doublings * self.microbatches * self.slowest
        constant: Column = rates.step_constant + rates.step_spread * doublings + jitter
        return constant

    @cached_property
    def _parameters(self) -> tuple[Column, Column]:
        """Dense and expert parameters of the largest candidate stage on one rank, shape (n,)."""
        held = stage_parameters(self.rows.cases, self.rows.stages)
        return held.dense_side.max(axis=1), held.experts.max(axis=1)

    def _data_parallel(self) -> tuple[Column, Column]:
        """Exposed gradient reduction and parameter gathering, and at most how much more of them
        would be exposed if nothing were recomputed."""
        rows = self.rows
        cases, config, rates = rows.cases, rows.cases.config, rows.rates
        dense, experts = self._parameters
        dense_size, expert_size = self._data_parallel_sizes()
        sharded = config.sharding != int(Sharding.NONE)
        replicas = np.where(sharded, np.maximum(config.replicate, 1), 1)
        dense_shards = np.maximum(dense_size // replicas, 1)
        expert_shards = np.maximum(expert_size // replicas, 1)
        domain = cases.cluster.scale_up_gpus
        dense_group = group(dense_shards, config.tp, domain)
        expert_group = group(expert_shards, config.etp * config.ep, domain)
        trained = self._trained_share()

        def gathered(bytes_each: Column) -> Column:
            return all_gather_s(dense * bytes_each, dense_group, rows.network) + np.where(
                experts > 0, all_gather_s(experts * bytes_each, expert_group, rows.network), 0.0
            )

        # Compute copies of the weights travel in 16 bit whatever the master weights are.
        reduce = gathered(self._reduced_bytes() * trained)
        gather = gathered(np.full(len(config), float(BYTES)) * trained)
        fully = config.sharding >= int(Sharding.ZERO3)
        once = self._once_a_step(reduce, np.where(sharded, gather, reduce))
        whole = gathered(np.full(len(config), float(BYTES)))
        every, hidden = self._every_microbatch(whole, reduce)
        exposed = np.where(fully, every, once)
        hidden = np.where(fully, hidden, rates.dp_hidden * self._of_worst(self.again))
        if np.any(replicas > 1):
            # Replicas of the shards sum their parts of the gradient once a step.
            across = group(replicas, config.tp * dense_shards, domain)
            shard = dense / dense_shards + experts / expert_shards
            exposed = exposed + all_reduce_s(
                shard * self._reduced_bytes() * trained, across, rows.network
            )
        several = (dense_size > 1) | (expert_size > 1)
        return np.where(several, exposed, 0.0), np.where(several, hidden, 0.0)

    def _data_parallel_sizes(self) -> tuple[Column, Column]:
        """Ranks that hold the same dense and the same expert parameters."""
        cases, config = self.rows.cases, self.rows.cases.config
        world = cases.cluster.num_gpus
        return config.data_parallel(world) * config.cp, config.expert_data_parallel(world)

    def _trained_share(self) -> Column:
        """Part of the parameters that gets gradients: all, or the adapters of LoRA."""
        lora = self.rows.cases.workload.kind == int(TrainingKind.LORA)
        return np.where(lora, adapter_share(self.rows.cases), 1.0)

    def _reduced_bytes(self) -> Column:
        """Bytes a gradient travels in: as it is kept, but DeepSpeed reduces in the weights' 16 bit
        (``communication_data_type``)."""
        stack = self.rows.cases.stack
        families = (int(Framework.DEEPSPEED), int(Framework.MEGATRON_DEEPSPEED))
        kept = np.minimum(stack.gradient_bytes, 4.0)
        return np.where(np.isin(stack.framework, families), float(BYTES), kept)

    def _once_a_step(self, reduce: Column, gather: Column) -> Column:
        """Reduction behind the last backward, gathering behind the first forward, where overlapped.

        Zero-bubble schedules reduce after the last weight gradient: nothing hides it.
        """
        rates, config = self.rows.rates, self.rows.cases.config
        overlapped = (config.overlap & int(Overlap.DP)) > 0
        overlapped &= ~_SPLITS_BACKWARD[config.schedule]
        backward = self._of_worst(self.backward + self.weight)
        forward = self._of_worst(self.forward)
        rest = np.maximum(reduce - rates.dp_hidden * backward, rates.dp_exposed * reduce)
        rest += np.maximum(gather - rates.dp_hidden * forward, rates.dp_exposed * gather)
        return np.where(overlapped, rest, reduce + gather)

    def _every_microbatch(self, gather: Column, reduce: Column) -> tuple[Column, Column]:
        """FSDP: gather before forward and backward, reduce after backward, of every microbatch.

        Returns what is exposed, and how much more of it would be if nothing were recomputed.
        """
        rates, config = self.rows.rates, self.rows.cases.config
        coarse = np.where(self.rows.cases.stack.coarse_gathers, rates.coarse_hidden, 1.0)
        share = np.where((config.overlap & int(Overlap.DP)) > 0, rates.fsdp_hidden * coarse, 0.0)
        backward = self._of_worst(self.backward + self.weight)
        forward = self._of_worst(self.forward)
        first = gather - share * np.minimum(gather, forward)
        behind = gather + reduce
        second = behind - share * np.minimum(behind, backward)
        least = rates.fsdp_exposed * np.minimum(2 * gather + reduce, forward + backward)
        exposed: Column = self.microbatches * np.maximum(first + second, least)
        bare = backward - self._of_worst(self.again)
        cover = share * (np.minimum(behind, backward) - np.minimum(behind, bare))
        hidden: Column = self.microbatches * cover
        return exposed, hidden

    def _optimizer(self) -> Column:
        """Adam streams gradients and states through HBM, or over PCIe where they are offloaded."""
        rows = self.rows
        cases, config = rows.cases, rows.cases.config
        dense, experts = self._parameters
        sharded = config.sharding != int(Sharding.NONE)
        replicas = np.maximum(config.replicate, 1)
        dense_size, expert_size = self._data_parallel_sizes()
        dense_size = np.maximum(dense_size / replicas, 1)
        expert_size = np.maximum(expert_size / replicas, 1)
        local = dense / np.where(sharded, dense_size, 1.0)
        local = local + experts / np.where(sharded, expert_size, 1.0)
        local = local * self._trained_share()
        # States are read and written, gradients read, weights written in 16 bit.
        states = 2.0 * cases.stack.optimizer_bytes + cases.stack.gradient_bytes + BYTES
        rate = cases.cluster.hbm_bytes_per_s * rows.rates.optimizer_utilisation
        offloaded = cases.stack.optimizer_offload_fraction
        time: Column = local * (states * (1.0 - offloaded) / rate + offloaded * OFFLOADED_S)
        return time
