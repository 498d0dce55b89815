"""Legality of recomputation, dispatch, precision, sharding and overlap.

Sources are files of Megatron-LM (d98e8a6), Primus (fd1eeab) or the framework that the rule belongs
to. Each rule marks the rows of a Scope that break it.
"""

from __future__ import annotations

import numpy as np

from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Sharding,
)
from specs.legality_rule import megatron, moe, primus, rule
from specs.legality_scope import Mask, Scope, among
from specs.stack import Framework


@rule(
    "recompute {recompute} does not go with method {recompute_method}, layers {recompute_layers}, "
    "modules {recompute_modules} and layer ids {recompute_layer_ids}: none takes nothing, "
    "selective takes modules only, full takes a method with layers, or layer ids",
    "megatron/core/transformer/transformer_config.py",
)
def recompute_consistent(s: Scope) -> Mask:
    """The recompute axes agree with each other."""
    t = s.table
    no_method = (t.recompute_method == RecomputeMethod.NONE) & (t.recompute_layers == 0)
    no_modules = t.recompute_modules == 0
    no_ids = t.recompute_layer_ids == 0
    by_count = (t.recompute_method != RecomputeMethod.NONE) & (t.recompute_layers > 0) & no_ids
    by_id = no_method & ~no_ids
    fine = np.choose(
        t.recompute,
        [
            no_method & no_modules & no_ids,
            no_method & ~no_modules & no_ids,
            (by_count | by_id) & no_modules,
        ],
    )
    return np.asarray(~fine)


def _no_layer_ids(s: Scope) -> bool:
    return not primus(s)


@rule(
    "{framework} cannot recompute by layer ids; only Primus has recompute_layer_ids",
    "primus recompute_layer_ids",
    _no_layer_ids,
)
def layer_ids_need_primus(s: Scope) -> Mask:
    """Recomputing listed layers is a feature of Primus."""
    return np.asarray(s.table.recompute_layer_ids != 0)


@rule(
    "recompute_layer_ids {recompute_layer_ids} go beyond layer {last_layer}, the last one",
    "primus recompute_layer_ids",
)
def layer_ids_exist(s: Scope) -> Mask:
    """Listed layers exist; MTP layers are counted after the others."""
    model = s.workload.model
    count = model.num_layers + model.mtp_layers
    beyond = [any(i >= count for i in ids) for ids in s.table.layer_id_sets]
    return np.asarray(np.array(beyond)[s.table.recompute_layer_ids])


def _has(s: Scope, modules: RecomputeModules) -> Mask:
    """Rows that recompute any of these modules."""
    return np.asarray((s.table.recompute_modules & int(modules)) != 0)


@rule(
    "{model.name} lacks a module of {recompute_modules}: moe, moe_act and shared_experts need "
    "experts, mla_up_proj needs MLA, moe_act needs grouped GEMM",
    "megatron/core/transformer/transformer_config.py",
)
def modules_exist(s: Scope) -> Mask:
    """Selective recomputation names modules that the model and stack have."""
    model = s.workload.model
    lacking = RecomputeModules.NONE
    if not s.is_moe:
        lacking |= RecomputeModules.MOE | RecomputeModules.MOE_ACT
    if not s.stack.grouped_gemm:
        lacking |= RecomputeModules.MOE_ACT
    if not model.shared_expert_ffn:
        lacking |= RecomputeModules.SHARED_EXPERTS
    if model.mla is None:
        lacking |= RecomputeModules.MLA_UP_PROJ
    return _has(s, lacking)


@rule(
    "selective recomputation of moe_act or layernorm does not work with delayed fp8 scaling",
    "megatron/core/transformer/transformer_config.py",
    megatron,
)
def modules_with_delayed_fp8(s: Scope) -> Mask:
    """moe_act and layernorm refuse delayed scaling."""
    modules = RecomputeModules.MOE_ACT | RecomputeModules.LAYERNORM
    return np.asarray(_has(s, modules) & (s.table.precision == Precision.FP8))


def _cuda_graphs(s: Scope) -> bool:
    return megatron(s) and s.stack.cuda_graphs


@rule(
    "full recomputation does not run inside this stack's CUDA graphs",
    "megatron/core/transformer/transformer_config.py",
    _cuda_graphs,
)
def recompute_with_graphs(s: Scope) -> Mask:
    """Full recomputation runs only with the full_iteration implementation of CUDA graphs."""
    return np.asarray(s.table.recompute == Recompute.FULL)


# Dispatcher

_FLEX = (MoeDispatcher.DEEPEP, MoeDispatcher.HYBRIDEP)


@rule(
    "dispatcher {moe_dispatcher} needs tp*ep > 1",
    "megatron/core/transformer/moe/token_dispatcher.py",
    moe,
)
def flex_needs_ranks(s: Scope) -> Mask:
    """The flex dispatcher needs more than one rank in the TP*EP group."""
    return np.asarray(among(s.table.moe_dispatcher, _FLEX) & (s.table.tp * s.table.ep <= 1))


@rule(
    "dispatcher {moe_dispatcher} does not pad experts to a capacity",
    "megatron/training/arguments.py; primus rocm_arg_validation.py",
    moe,
)
def flex_is_dropless(s: Scope) -> Mask:
    """DeepEP dispatches exactly what is routed."""
    return np.asarray(among(s.table.moe_dispatcher, _FLEX) & (s.workload.capacity_factor > 0))


@rule(
    "{gpu.name} cannot run the hybridep dispatcher",
    "megatron/core/transformer/moe/fused_a2a.py",
    moe,
)
def hybridep_needs_nvidia(s: Scope) -> Mask:
    """HybridEP is an NVIDIA library."""
    amd = s.cluster.gpu.vendor == "amd"
    return np.asarray((s.table.moe_dispatcher == MoeDispatcher.HYBRIDEP) & amd)


@rule(
    "sync_free_stage {sync_free_stage} exists on Primus only, as 0 to 3",
    "primus turbo_sync_free_moe_stage",
    moe,
)
def sync_free_offered(s: Scope) -> Mask:
    """Sync-free MoE is a feature of Primus."""
    stage = s.table.sync_free_stage
    return np.asarray((stage > (3 if primus(s) else 0)) | (stage < 0))


@rule(
    "sync_free_stage {sync_free_stage} includes DeepEP; set moe_dispatcher to deepep",
    "primus turbo_sync_free_moe_stage",
    moe,
)
def sync_free_needs_deepep(s: Scope) -> Mask:
    """Stages 2 and 3 imply the DeepEP dispatcher and the grouped GEMM of Primus-Turbo."""
    return np.asarray(
        (s.table.sync_free_stage >= 2) & (s.table.moe_dispatcher != MoeDispatcher.DEEPEP)
    )


# Precision


@rule(
    "{gpu.name} does not run {precision}; it runs {precisions}",
    "vendor data sheets",
)
def precision_by_gpu(s: Scope) -> Mask:
    """The GPU has the format."""
    return ~among(s.table.precision, [p for p in Precision if s.cluster.gpu.supports(p)])


# Sharding


@rule(
    "PyTorch FSDP2 in Megatron needs pp 1 and ep 1, got pp {pp} and ep {ep}",
    "megatron/training/arguments.py",
    megatron,
)
def fsdp_mesh(s: Scope) -> Mask:
    """FSDP2 shards over data parallelism only."""
    return np.asarray(s.is_torch_fsdp & ((s.table.pp > 1) | (s.table.ep > 1)))


@rule(
    "PyTorch FSDP2 in Megatron needs untied embeddings and no fp16",
    "megatron/training/arguments.py",
    megatron,
)
def fsdp_model(s: Scope) -> Mask:
    """FSDP2 refuses tied embeddings and fp16."""
    fp16 = s.table.precision == Precision.FP16
    return np.asarray(s.is_torch_fsdp & (fp16 | s.workload.model.tied_embeddings))


def _megatron_alone(s: Scope) -> bool:
    return megatron(s) and not primus(s)


@rule(
    "hybrid sharding of PyTorch FSDP2 is a feature of Primus: use fsdp, or zero1 with replicas",
    "primus data_parallel_replicate_degree",
    _megatron_alone,
)
def hsdp_stack(s: Scope) -> Mask:
    """Megatron-LM itself has no replicas under FSDP2."""
    return np.asarray(s.table.sharding == Sharding.HSDP)


@rule(
    "hybrid sharding saves checkpoints with torch_dcp, which needs tp 1 and pp 1",
    "primus data_parallel_replicate_degree",
    megatron,
)
def hsdp_mesh(s: Scope) -> Mask:
    """HSDP needs torch_dcp checkpoints."""
    hsdp = s.table.sharding == Sharding.HSDP
    return np.asarray(hsdp & ((s.table.tp > 1) | (s.table.pp > 1)))


def _deepspeed(s: Scope) -> bool:
    return s.stack.framework in (Framework.DEEPSPEED, Framework.MEGATRON_DEEPSPEED)


@rule(
    "DeepSpeed runs {sharding} without a pipeline only, got pp {pp}",
    "deepspeed/runtime/pipe/engine.py",
    _deepspeed,
)
def zero_with_pipeline(s: Scope) -> Mask:
    """ZeRO-2 and ZeRO-3 exclude pipeline parallelism in DeepSpeed."""
    whole = among(s.table.sharding, (Sharding.ZERO2, Sharding.ZERO3))
    return np.asarray(whole & (s.table.pp > 1))


@rule(
    "{replicate} replicas with sharding {sharding}: zero1 and hsdp take replicas, hsdp at least 2",
    "megatron/training/arguments.py; primus data_parallel_replicate_degree",
)
def replicas_need_shards(s: Scope) -> Mask:
    """Optimizer instances belong to the distributed optimizer, replicas to HSDP."""
    t = s.table
    unsharded = (t.replicate > 1) & ~among(t.sharding, _REPLICATED)
    return np.asarray(unsharded | ((t.sharding == Sharding.HSDP) & (t.replicate < 2)))


_REPLICATED = (Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3, Sharding.HSDP)


@rule(
    "dp {dp} (experts: {edp}) does not divide by {replicate} replicas",
    "megatron/core/parallel_state.py",
)
def replicas_divide(s: Scope) -> Mask:
    """dp and, with experts, edp divide by the number of replicas."""
    t = s.table
    left = s.dp % t.replicate != 0
    if s.is_moe:
        left |= s.edp % t.replicate != 0
    return np.asarray(s.is_world_exact & left)


# Overlap


@rule(
    "overlapping tensor parallelism needs tp > 1 and sequence_parallel",
    "megatron/training/arguments.py, tp_comm_overlap",
)
def tp_overlap(s: Scope) -> Mask:
    """Tensor-parallel overlap needs sequence parallelism."""
    usable = (s.table.tp > 1) & s.table.sequence_parallel
    return np.asarray(((s.table.overlap & Overlap.TP) != 0) & ~usable)


@rule(
    "overlapping expert parallelism needs ep > 1, dispatcher alltoall, deepep or hybridep, vpp > 1 "
    "where pp > 1, a schedule of Megatron itself, at most one MTP layer, no full recomputation and "
    "no moe module in selective recomputation",
    "megatron/training/arguments.py, overlap_moe_expert_parallel_comm",
)
def ep_overlap(s: Scope) -> Mask:
    """What the overlap of expert-parallel communication needs."""
    t = s.table
    usable = (t.ep > 1) & (t.moe_dispatcher != MoeDispatcher.ALLGATHER)
    usable &= ((t.vpp > 1) | (t.pp == 1)) & ~s.splits_weight_gradient
    usable &= (t.recompute != Recompute.FULL) & ~_has(s, RecomputeModules.MOE)
    usable &= s.workload.model.mtp_layers <= 1
    return np.asarray(((t.overlap & Overlap.EP) != 0) & ~usable)
