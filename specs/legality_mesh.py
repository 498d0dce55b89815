"""Legality of mesh, batch, layers and pipeline schedules.

Sources are files of Megatron-LM (d98e8a6), Primus (fd1eeab) or the framework that the rule belongs
to. Each rule marks the rows of a Scope that break it.
"""

from __future__ import annotations

import numpy as np

from specs.choices import CpComm, MoeDispatcher, Overlap, Schedule
from specs.legality_rule import megatron_moe, moe, primus, rule
from specs.legality_scope import Mask, Scope, among
from specs.stack import Framework


@rule(
    "{num_gpus} GPUs are not a multiple of tp*pp*cp = {tp}*{pp}*{cp} = {dense_ranks}",
    "megatron/core/parallel_state.py",
)
def world_exact(s: Scope) -> Mask:
    """No GPU may idle: world = tp*pp*cp*dp."""
    return ~s.is_world_exact


@rule(
    "{num_gpus} GPUs are not a multiple of etp*ep*pp = {etp}*{ep}*{pp} = {expert_ranks}",
    "megatron/core/parallel_state.py",
)
def expert_world_exact(s: Scope) -> Mask:
    """world = etp*ep*pp*edp."""
    return np.asarray(s.num_gpus % s.expert_ranks != 0)


@rule(
    "{model.name} has no experts, so ep {ep}, etp {etp}, dispatcher {moe_dispatcher} and "
    "sync_free_stage {sync_free_stage} must be 1, 1 (or tp), alltoall (or allgather) and 0",
    "megatron/training/arguments.py",
)
def experts_need_moe(s: Scope) -> Mask:
    """Expert axes belong to MoE models."""
    if s.is_moe:
        return np.zeros(len(s.table), dtype=bool)
    t = s.table
    plain = (MoeDispatcher.ALLTOALL, MoeDispatcher.ALLGATHER)
    inert = (t.ep == 1) & ((s.etp == 1) | (s.etp == t.tp)) & (t.sync_free_stage == 0)
    return np.asarray(~(inert & among(t.moe_dispatcher, plain)))


@rule(
    "{model.num_experts} experts do not divide by ep {ep}",
    "megatron/core/transformer/transformer_config.py",
    moe,
)
def experts_divide(s: Scope) -> Mask:
    """num_experts % ep = 0."""
    return np.asarray(s.workload.model.num_experts % s.table.ep != 0)


@rule(
    "the experts' width {model.moe_ffn_hidden_size} does not divide by etp {etp}",
    "megatron/core/tensor_parallel/layers.py",
    moe,
)
def expert_width_divides(s: Scope) -> Mask:
    """moe_ffn_hidden_size % etp = 0."""
    return np.asarray(s.workload.model.moe_ffn_hidden_size % s.etp != 0)


@rule(
    "{model.num_attention_heads} attention heads do not divide by tp {tp}",
    "megatron/core/transformer/transformer_config.py",
)
def heads_divide(s: Scope) -> Mask:
    """num_attention_heads % tp = 0."""
    return np.asarray(s.workload.model.num_attention_heads % s.table.tp != 0)


@rule(
    "neither do {model.num_query_groups} KV groups divide by tp {tp} nor tp by them",
    "megatron/core/transformer/transformer_config.py",
)
def groups_divide(s: Scope) -> Mask:
    """g % tp = 0 or tp % g = 0; nothing is replicated in weights where tp > g."""
    groups = s.workload.model.num_query_groups
    return np.asarray((groups % s.table.tp != 0) & (s.table.tp % groups != 0))


@rule(
    "the MLP width {model.ffn_hidden_size} does not divide by tp {tp}",
    "megatron/core/tensor_parallel/layers.py",
)
def mlp_width_divides(s: Scope) -> Mask:
    """ffn_hidden_size % tp = 0, where a layer has a dense MLP."""
    model = s.workload.model
    if model.num_moe_layers == model.num_layers:
        return np.zeros(len(s.table), dtype=bool)
    return np.asarray(model.ffn_hidden_size % s.table.tp != 0)


# Sequence


@rule(
    "sequence length {seq_len} does not divide by 2*cp = 2*{cp}",
    "megatron/training/arguments.py",
)
def context_parallel_divides(s: Scope) -> Mask:
    """seq % (2*cp) = 0 where cp > 1: each rank takes a chunk from both ends."""
    return np.asarray((s.table.cp > 1) & (s.workload.seq_len % (2 * s.table.cp) != 0))


@rule(
    "sequence length over cp, {seq_len}/{cp}, does not divide by tp {tp} (sequence parallelism)",
    "megatron/core/tensor_parallel/mappings.py",
)
def sequence_parallel_divides(s: Scope) -> Mask:
    """(seq/cp) % tp = 0 under sequence parallelism."""
    t = s.table
    return np.asarray(t.sequence_parallel & (s.workload.seq_len // t.cp % t.tp != 0))


@rule(
    "{model.num_attention_heads} heads and {model.num_query_groups} KV groups over tp {tp} do not "
    "divide by cp {cp}, which all-to-all context parallelism splits",
    "transformer_engine/pytorch/attention context_parallel",
)
def all_to_all_context_divides(s: Scope) -> Mask:
    """a2a context parallelism splits heads: (heads/tp) % cp = 0, for queries and keys."""
    t, model = s.table, s.workload.model
    whole = (model.num_attention_heads // t.tp % t.cp == 0) & (
        np.maximum(model.num_query_groups // t.tp, 1) % t.cp == 0
    )
    return np.asarray((t.cp > 1) & (t.cp_comm == CpComm.A2A) & ~whole)


@rule(
    "MoE training with tp {tp} needs sequence_parallel",
    "megatron/core/transformer/moe/moe_layer.py, forward",
    megatron_moe,
)
def moe_needs_sequence_parallel(s: Scope) -> Mask:
    """MoE with tp > 1 raises in training without sequence parallelism."""
    return np.asarray((s.table.tp > 1) & ~s.table.sequence_parallel)


# Batch


@rule(
    "global batch size {gbs} is not a multiple of mbs*dp = {mbs}*{dp}",
    "megatron/core/num_microbatches_calculator.py",
)
def batch_divides(s: Scope) -> Mask:
    """gbs % (mbs*dp) = 0, where dp is a whole number."""
    left = s.workload.global_batch_size % (s.table.mbs * s.dp)
    return np.asarray(s.is_world_exact & (left != 0))


# Layers and schedules


@rule("{layout_problem}", "megatron/core/transformer/pipeline_parallel_layer_layout.py")
def layout_runs(s: Scope) -> Mask:
    """Layers fall on stages as Megatron demands, evenly or as the layout says."""
    return np.asarray(s.layout_problems[0] != 0)


@rule(
    "schedule {schedule} needs {model.num_layers} layers to divide by 2*pp = 2*{pp}",
    "primus/core/pipeline_parallel/primuspipe/pipeline_launcher.py",
)
def v_shape_divides(s: Scope) -> Mask:
    """V schedules split the layers evenly over two chunks a rank."""
    return np.asarray(s.is_v_shaped & (s.workload.model.num_layers % (2 * s.table.pp) != 0))


_SINGLE_CHUNK = (
    Schedule.ONE_F_ONE_B,
    Schedule.GPIPE,
    Schedule.ZB_H1,
    Schedule.ZB_H2,
    Schedule.ZB_HEURISTIC,
)


@rule(
    "schedule {schedule} does not run with vpp {vpp}: interleaved takes 2 or more, zbv, v-half and "
    "v-min exactly 2, the others 1",
    "primus/core/pipeline_parallel/primuspipe/pipeline_launcher.py",
)
def schedule_chunks(s: Scope) -> Mask:
    """Model chunks that each schedule runs."""
    t = s.table
    wrong = among(t.schedule, _SINGLE_CHUNK) & (t.vpp != 1)
    wrong |= s.is_v_shaped & (t.vpp != 2)
    return np.asarray(wrong | ((t.schedule == Schedule.INTERLEAVED) & (t.vpp < 2)))


@rule("schedule {schedule} needs pp > 1", "megatron/training/arguments.py; Primus pipeline guide")
def schedule_needs_pipeline(s: Scope) -> Mask:
    """Only 1F1B exists without a pipeline, and it has one chunk."""
    alone = s.table.pp == 1
    return np.asarray(alone & ((s.table.schedule != Schedule.ONE_F_ONE_B) | (s.table.vpp > 1)))


@rule(
    "interleaved with pp {pp} needs a microbatch group in [{pp}, {microbatches}] that leaves 0 or "
    "at least {pp} of {microbatches} microbatches over, got {microbatch_group}",
    "megatron/core/pipeline_parallel/schedules.py",
)
def microbatch_groups(s: Scope) -> Mask:
    """N in [pp, m], and m % N = 0 or >= pp."""
    t, m = s.table, s.microbatches
    group = s.microbatch_group
    left = m % group
    fits = (group >= t.pp) & (group <= m) & ((left == 0) | (left >= t.pp))
    return np.asarray(s.is_interleaved & (t.pp > 1) & ~fits)


_MEGATRON_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)
_PIPELINE_SCHEDULES = tuple(x for x in Schedule if x is not Schedule.GPIPE)
_SCHEDULES = {
    Framework.PRIMUS: _PIPELINE_SCHEDULES,
    Framework.TORCHTITAN: (*_MEGATRON_SCHEDULES, Schedule.GPIPE, Schedule.ZBV),
    Framework.DEEPSPEED: (Schedule.ONE_F_ONE_B,),
}


def offered_schedules(s: Scope) -> tuple[Schedule, ...]:
    """Schedules that the stack has."""
    if s.zero_bubble_runtime:
        return _PIPELINE_SCHEDULES
    return _SCHEDULES.get(s.stack.framework, _MEGATRON_SCHEDULES)


@rule(
    "{framework} has no schedule {schedule}",
    "megatron/core/pipeline_parallel/schedules.py; Primus pipeline guide; torchtitan configs.py",
)
def schedule_offered(s: Scope) -> Mask:
    """The stack has the schedule."""
    return ~among(s.table.schedule, offered_schedules(s))


def _splits(s: Scope) -> bool:
    return primus(s) or s.zero_bubble_runtime


@rule(
    "schedule {schedule} excludes the overlap of data-parallel communication; drop dp from overlap",
    "primus zbpp_utils.py, validate_arguments",
    _splits,
)
def split_excludes_dp_overlap(s: Scope) -> Mask:
    """Split weight gradients expose data-parallel communication."""
    return np.asarray(s.splits_weight_gradient & ((s.table.overlap & Overlap.DP) != 0))


def _turbo_splits(s: Scope) -> bool:
    return primus(s) and s.stack.turbo


@rule(
    "schedule {schedule} splits weight gradients, which Primus-Turbo refuses in {precision}",
    "primus primus_turbo.py, _use_split_wgrad_op",
    _turbo_splits,
)
def split_excludes_turbo_fp8(s: Scope) -> Mask:
    """Primus-Turbo has no split weight gradient in fp8 and fp4."""
    return s.splits_weight_gradient & s.is_low_precision


@rule(
    "schedule zb-h2 needs untied embeddings, {model.name} ties them",
    "Sea AI zero bubble runtime, untie_embeddings_and_output_weights",
    _splits,
)
def zero_bubble_needs_untied(s: Scope) -> Mask:
    """ZB-H2 exists in the Sea AI runtime only, which has no tied embeddings."""
    tied = s.workload.model.tied_embeddings
    return np.asarray((s.table.schedule == Schedule.ZB_H2) & tied)


def _connections(s: Scope) -> bool:
    older = s.cluster.gpu.vendor == "amd" or not s.cluster.gpu.architecture.startswith("blackwell")
    return s.zero_bubble_runtime and older


@rule(
    "tp {tp} or cp {cp} needs CUDA_DEVICE_MAX_CONNECTIONS=1 on {gpu.name}, schedule {schedule} of "
    "this runtime at least 8",
    "megatron/training/arguments.py; Sea AI zero bubble runtime",
    _connections,
)
def connections_agree(s: Scope) -> Mask:
    """Device architectures below 10: one connection for TP or CP, eight for V schedules."""
    t = s.table
    one = ((t.tp > 1) | (t.cp > 1)) & ((t.overlap & Overlap.EP) == 0) & ~s.is_torch_fsdp
    return np.asarray(one & s.is_v_shaped)
