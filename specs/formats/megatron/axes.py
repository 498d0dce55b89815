"""Megatron and Primus arguments and the tuned axes: the reader.

Names and meanings: megatron/training/arguments.py, megatron/core/transformer/transformer_config.py
and primus/configs/modules/megatron/*.yaml. Keys that only Primus has are read where they are there;
Megatron-LM arguments simply lack them.
"""

from __future__ import annotations

from typing import Any

from specs.choices import (
    CpComm,
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.megatron.values import Values
from specs.layout import explicit_stages, layout_vpp
from specs.model import Model

PIPELINE_ALGORITHMS = {
    "1f1b": Schedule.ONE_F_ONE_B,
    "1f1b-interleaved": Schedule.INTERLEAVED,
    "zero-bubble": Schedule.ZB_H1,
    "zero-bubble-heuristic": Schedule.ZB_HEURISTIC,
    "zbv-formatted": Schedule.ZBV,
    "v-half": Schedule.V_HALF,
    "v-min": Schedule.V_MIN,
}
V_MEMORY_SETUPS = {"min": Schedule.V_MIN, "half": Schedule.V_HALF, "zb": Schedule.ZBV}
FP8_RECIPES = {
    "delayed": Precision.FP8,
    "tensorwise": Precision.FP8_CS,
    "blockwise": Precision.FP8_SC,
    "mxfp8": Precision.MXFP8,
}
FP4_RECIPES = {"nvfp4": Precision.NVFP4, "mxfp4": Precision.MXFP4}
FSDP_STRATEGIES = {
    "no_shard": Sharding.NONE,
    "optim": Sharding.ZERO1,
    "optim_grads": Sharding.ZERO2,
    "optim_grads_params": Sharding.ZERO3,
}
CP_COMMUNICATION = {"p2p": CpComm.P2P, "a2a": CpComm.A2A, "allgather": CpComm.ALLGATHER}
TURBO_SWITCHES = (
    "use_turbo_attention",
    "use_turbo_gemm",
    "use_turbo_grouped_gemm",
    "use_turbo_rms_norm",
)


def read_config(values: Values, model: Model) -> TrainingConfig:
    """The axes that the arguments set, as Megatron and Primus would run them.

    Inert keys are left out with a note; ``etp`` null becomes ``tp``, and 1 where there are no
    experts.

    Raises:
        InputError: a value is malformed, or two keys contradict each other.
    """
    axes = _parallel(values, model) | _schedule(values, model) | _recompute(values, model)
    axes |= _dispatcher(values, model, axes) | _sharding(values)
    axes["precision"] = read_precision(values)
    axes["overlap"] = _overlap(values, axes["sharding"])
    axes["cross_entropy_fusion"] = values.flag("cross_entropy_loss_fusion")
    return TrainingConfig(**axes)


def _parallel(values: Values, model: Model) -> dict[str, Any]:
    """Sizes of the parallel groups."""
    tp = values.integer("tensor_model_parallel_size", 1) or 1
    cp = values.integer("context_parallel_size", 1) or 1
    sequence_parallel = values.flag("sequence_parallel") and tp > 1
    communication = values.text("cp_comm_type", "p2p")
    if cp > 1 and communication not in CP_COMMUNICATION:
        raise values.fail(
            f"cp_comm_type {communication!r} is not projected; use p2p, a2a or allgather."
        )
    ep = values.integer("expert_model_parallel_size", 1) or 1
    if ep > 1 and not model.is_moe:
        raise values.fail(f"expert_model_parallel_size is {ep}, but {model.name} has no experts.")
    return {
        "tp": tp,
        "cp": cp,
        "cp_comm": CP_COMMUNICATION.get(communication, CpComm.P2P),
        "ep": ep,
        "etp": (values.integer("expert_tensor_parallel_size", 1) or tp) if model.is_moe else 1,
        "mbs": values.integer("micro_batch_size", 1) or 1,
        "sequence_parallel": sequence_parallel,
        "microbatch_group": values.integer("microbatch_group_size_per_vp_stage", 1) or 0,
    }


def _schedule(values: Values, model: Model) -> dict[str, Any]:
    """Pipeline size, model chunks, layout and schedule."""
    pp = values.integer("pipeline_model_parallel_size", 1) or 1
    layout = _layout(values)
    vpp = _model_chunks(values, model, pp, layout)
    schedule = _algorithm(values, pp, vpp)
    if schedule.is_v_shaped and vpp == 1:
        values.note(f"{schedule.label} runs two model chunks a rank; VPP is read as 2.")
        vpp = 2
    return {"pp": pp, "vpp": vpp, "layout": layout, "schedule": schedule}


def _layout(values: Values) -> str:
    """The layout axis from the layout string, the uneven ends or the accounting flags."""
    first = values.integer("decoder_first_pipeline_num_layers")
    last = values.integer("decoder_last_pipeline_num_layers")
    ends = [f"first={first}"] if first is not None else []
    ends += [f"last={last}"] if last is not None else []
    accounts = [
        name
        for name in ("embedding", "loss")
        if values.flag(f"account_for_{name}_in_pipeline_split")
    ]
    raw = values.arguments.get("pipeline_model_parallel_layout")
    if isinstance(raw, list):
        raise values.fail("pipeline_model_parallel_layout must be a text like 'Et*2|t*2|t*1,L'.")
    layout = str(raw).strip() if raw is not None else ""
    if bool(ends) + bool(accounts) + bool(layout) > 1:
        raise values.fail(
            "pipeline_model_parallel_layout, decoder_first/last_pipeline_num_layers and "
            "account_for_*_in_pipeline_split exclude each other; keep one."
        )
    if layout:
        try:
            explicit_stages(layout)
        except InputError as error:
            raise values.fail(str(error)) from None
        return layout
    return ",".join(ends) or (f"account={'+'.join(accounts)}" if accounts else "")


def _model_chunks(values: Values, model: Model, pp: int, layout: str) -> int:
    """VPP from the layout string or one of the two VPP arguments; the third is inert."""
    chunks = values.integer("num_virtual_stages_per_pipeline_rank", 1)
    per_chunk = values.integer("num_layers_per_virtual_pipeline_stage", 1)
    explicit = bool(layout) and "=" not in layout
    if bool(explicit) + (chunks is not None) + (per_chunk is not None) > 1:
        raise values.fail(
            "pipeline_model_parallel_layout, num_virtual_stages_per_pipeline_rank and "
            "num_layers_per_virtual_pipeline_stage exclude each other; keep one."
        )
    if explicit:
        try:
            vpp = layout_vpp(layout, pp)
        except InputError as error:
            raise values.fail(str(error)) from None
    elif per_chunk is not None:
        if layout:
            raise values.fail(
                "num_layers_per_virtual_pipeline_stage excludes decoder_first/last; use "
                "num_virtual_stages_per_pipeline_rank."
            )
        if model.num_layers % (pp * per_chunk):
            raise values.fail(
                f"{model.num_layers} layers do not divide into pp {pp} ranks of chunks of "
                f"{per_chunk} layers (num_layers_per_virtual_pipeline_stage)."
            )
        vpp = model.num_layers // (pp * per_chunk)
    else:
        vpp = chunks or 1
    stated = values.integer("virtual_pipeline_model_parallel_size", 1)
    if stated is not None and stated != vpp:
        values.note(
            f"virtual_pipeline_model_parallel_size {stated} has no effect: Megatron overwrites it; "
            f"VPP is {vpp} (set num_virtual_stages_per_pipeline_rank to change it)."
        )
    if pp == 1 and vpp > 1:
        raise values.fail(f"VPP {vpp} needs pipeline_model_parallel_size above 1.")
    return vpp


def _algorithm(values: Values, pp: int, vpp: int) -> Schedule:
    """The schedule that runs: stock Megatron, the Primus pipeline or the Sea AI runtime."""
    stock = Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B
    primus, sea = values.flag("patch_primus_pipeline"), values.flag("patch_zero_bubble")
    if primus and sea:
        raise values.fail("patch_primus_pipeline and patch_zero_bubble exclude each other.")
    if primus:
        schedule: Schedule = values.choice("pp_algorithm", PIPELINE_ALGORITHMS, "1f1b-interleaved")
        if schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
            return stock
        if pp == 1:
            values.note(f"pp_algorithm {schedule.label} has no effect without pipeline stages.")
            return stock
        return schedule
    if not sea:
        return stock
    if not values.flag("enable_zero_bubble"):
        if values.flag("enable_1f1b_v"):
            raise values.fail("the 1F1B-V schedule (enable_1f1b_v) is not projected.")
        return stock
    if values.flag("zero_bubble_v_schedule"):
        v_shaped: Schedule = values.choice(
            "zero_bubble_v_schedule_mem_setup", V_MEMORY_SETUPS, "half"
        )
        return v_shaped
    pending = values.text("zero_bubble_max_pending_backward", "auto")
    if pending == "auto":
        values.note(
            "zero_bubble_max_pending_backward auto adapts to free memory; read as zb-heuristic."
        )
        return Schedule.ZB_HEURISTIC
    limit = values.required("zero_bubble_max_pending_backward")
    if limit not in (pp, 2 * pp):
        values.note(
            f"zero_bubble_max_pending_backward {limit} is neither pp ({pp}: ZB-H1) nor 2*pp "
            "(ZB-H2); the smaller schedule is read."
        )
    return Schedule.ZB_H2 if limit >= 2 * pp else Schedule.ZB_H1


def _recompute(values: Values, model: Model) -> dict[str, Any]:
    """Recomputation as it runs: full over zero layers is none."""
    granularity = values.text("recompute_granularity")
    if not granularity and values.flag("recompute_activations"):
        granularity = "selective"
    ids = values.integers("recompute_layer_ids")
    if ids and granularity != "full":
        values.note("recompute_layer_ids has no effect without recompute_granularity full.")
    if not granularity:
        return {}
    if granularity == "selective":
        return _selective(values)
    if granularity != "full":
        raise values.fail(f"recompute_granularity is {granularity!r}; use full or selective.")
    method = values.text("recompute_method")
    if ids:
        if method:
            raise values.fail("recompute_layer_ids needs recompute_method null.")
        highest = model.num_layers + model.mtp_layers
        if max(ids) >= highest:
            raise values.fail(
                f"recompute_layer_ids has layer {max(ids)}, but {model.name} has {highest} layers."
            )
        return {"recompute": Recompute.FULL, "recompute_layer_ids": tuple(sorted(set(ids)))}
    methods = {"block": RecomputeMethod.BLOCK, "uniform": RecomputeMethod.UNIFORM}
    if method not in methods:
        raise values.fail("recompute_granularity full needs recompute_method block or uniform.")
    layers = values.integer("recompute_num_layers")
    if layers is None:
        raise values.fail(f"recompute_method {method} needs recompute_num_layers.")
    if layers == 0 and method == "uniform":
        raise values.fail("recompute_method uniform needs recompute_num_layers of at least 1.")
    if layers == 0:
        values.note("recompute full with method block over 0 layers recomputes nothing.")
        return {}
    return {
        "recompute": Recompute.FULL,
        "recompute_method": methods[method],
        "recompute_layers": layers,
    }


def _selective(values: Values) -> dict[str, Any]:
    """Selective recomputation of modules."""
    for key in ("recompute_method", "recompute_num_layers"):
        if values.given(key):
            raise values.fail(f"recompute_granularity selective needs {key} null.")
    words = values.words("recompute_modules")
    modules = RecomputeModules.parse("+".join(words)) if words else RecomputeModules.CORE_ATTN
    return {"recompute": Recompute.SELECTIVE, "recompute_modules": modules}


def _dispatcher(values: Values, model: Model, axes: dict[str, Any]) -> dict[str, Any]:
    """Token dispatcher and sync-free stage; Turbo keys count only under their master switch."""
    if not model.is_moe:
        return {}
    master = values.flag("enable_primus_turbo")
    stage = values.integer("turbo_sync_free_moe_stage") or 0
    deepep = values.flag("use_turbo_deepep")
    if stage > 3:
        raise values.fail(f"turbo_sync_free_moe_stage is {stage}; use 0 to 3.")
    if not master and (stage or deepep):
        values.note(
            "use_turbo_deepep and turbo_sync_free_moe_stage have no effect without "
            "enable_primus_turbo."
        )
        stage, deepep = 0, False
    kinds = {
        "allgather": MoeDispatcher.ALLGATHER,
        "alltoall": MoeDispatcher.ALLTOALL,
        "alltoall_seq": MoeDispatcher.ALLTOALL,
        "flex": MoeDispatcher.DEEPEP,
    }
    kind: MoeDispatcher = values.choice("moe_token_dispatcher_type", kinds, "allgather")
    if values.text("moe_token_dispatcher_type") == "flex":
        backends = {"deepep": MoeDispatcher.DEEPEP, "hybridep": MoeDispatcher.HYBRIDEP}
        kind = values.choice("moe_flex_dispatcher_backend", backends, "deepep")
    deepep = deepep or stage >= 2
    if deepep and axes["tp"] * axes["ep"] == 1:
        values.note("DeepEP needs more than one rank of experts; the dispatcher stays all-to-all.")
        deepep = False
    if deepep and values.flag("moe_shared_expert_overlap"):
        raise values.fail("DeepEP on Primus needs moe_shared_expert_overlap false.")
    if deepep and values.text("moe_router_dtype") != "fp32":
        values.note("DeepEP on Primus needs moe_router_dtype fp32; launch it with that.")
    dispatcher = MoeDispatcher.DEEPEP if deepep else kind
    return {"moe_dispatcher": dispatcher, "sync_free_stage": stage}


def read_precision(values: Values) -> Precision:
    """Number format of the GEMMs.

    Raises:
        InputError: fp8 and fp4 together, or a recipe that is not known.
    """
    fp8, fp4 = values.text("fp8"), values.text("fp4")
    if fp8 in ("false", "False"):
        fp8 = ""
    if fp8 and fp4:
        raise values.fail("fp8 and fp4 exclude each other; keep one.")
    if fp8:
        values.choice("fp8", {"hybrid": 1, "e4m3": 1}, "hybrid")
        return FP8_RECIPES[values.choice("fp8_recipe", {k: k for k in FP8_RECIPES}, "delayed")]
    if fp4:
        values.choice("fp4", {"e2m1": 1}, "e2m1")
        return FP4_RECIPES[values.choice("fp4_recipe", {k: k for k in FP4_RECIPES}, "nvfp4")]
    half, brain = values.flag("fp16"), values.flag("bf16")
    if half and brain:
        raise values.fail("fp16 and bf16 exclude each other; keep one.")
    if half:
        return Precision.FP16
    return Precision.BF16 if brain else Precision.FP32


def _sharding(values: Values) -> dict[str, Any]:
    """What data parallelism shards, and how many replicas of the shards there are."""
    distributed = values.flag("use_distributed_optimizer")
    instances = values.integer("num_distributed_optimizer_instances", 1) or 1
    replicas = values.integer("data_parallel_replicate_degree", 1) or 1
    if values.flag("use_torch_fsdp2"):
        if distributed:
            raise values.fail("use_torch_fsdp2 needs use_distributed_optimizer false.")
        if replicas > 1:
            return {"sharding": Sharding.HSDP, "replicate": replicas}
        return {"sharding": Sharding.FSDP}
    if values.flag("use_megatron_fsdp") or values.flag("use_custom_fsdp"):
        strategy = values.choice("data_parallel_sharding_strategy", FSDP_STRATEGIES, "no_shard")
        return {"sharding": strategy, "replicate": instances}
    if distributed:
        return {"sharding": Sharding.ZERO1, "replicate": instances}
    return {"sharding": Sharding.NONE}


def _overlap(values: Values, sharding: Sharding) -> Overlap:
    """The overlap bundle."""
    overlap = Overlap.NONE
    reduces, gathers = values.flag("overlap_grad_reduce"), values.flag("overlap_param_gather")
    if reduces:
        overlap |= Overlap.DP
        if sharding is Sharding.ZERO1 and not gathers:
            values.note(
                "overlap_param_gather is false: the parameter gather is exposed, but is projected "
                "as overlapped with the gradient reduction."
            )
    elif gathers:
        values.note("overlap_param_gather has no effect without overlap_grad_reduce.")
    if values.flag("tp_comm_overlap"):
        overlap |= Overlap.TP
    if values.flag("overlap_moe_expert_parallel_comm"):
        overlap |= Overlap.EP
    return overlap
