"""Megatron and Primus arguments and the tuned axes: the writer.

The set is complete: it holds every key that the axes need, companions included, so that merging it
over any baseline reproduces the config. Keys that only Primus has are written for Primus alone.
"""

from __future__ import annotations

from typing import Any

from specs.choices import (
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
from specs.formats.megatron.axes import (
    FP4_RECIPES,
    FP8_RECIPES,
    FSDP_STRATEGIES,
    PIPELINE_ALGORITHMS,
)
from specs.layout import is_explicit, layout_vpp
from specs.model import Model
from specs.stack import Stack

DEEPEP_MAX_COMPUTE_UNITS = 32
"""Most compute units that DeepEP of Primus-Turbo takes from EP 16 on (turbo_deepep_num_cu)."""

_ALGORITHM = {schedule: name for name, schedule in PIPELINE_ALGORITHMS.items()}
_FP8_RECIPE = {precision: recipe for recipe, precision in FP8_RECIPES.items()}
_FP4_RECIPE = {precision: recipe for recipe, precision in FP4_RECIPES.items()}
_STRATEGY = {sharding: name for name, sharding in FSDP_STRATEGIES.items()}
_STOCK_SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED)


def write_config(
    config: TrainingConfig, model: Model, stack: Stack, primus: bool
) -> dict[str, Any]:
    """Every argument that ``config`` needs, destination name -> value.

    Raises:
        InputError: the framework has no arguments for an axis value.
    """
    arguments = _parallel(config, model) | _pipeline(config) | _schedule(config, model, primus)
    arguments |= _recompute(config, primus) | _precision(config, primus)
    arguments |= _sharding(config, primus) | _overlap(config)
    arguments |= _dispatcher(config, model, primus)
    arguments |= {"cross_entropy_loss_fusion": config.cross_entropy_fusion}
    if config.cross_entropy_fusion:
        arguments["cross_entropy_fusion_impl"] = "te" if primus else "native"
    if primus:
        arguments |= _turbo(config, model, stack)
    return arguments


def _parallel(config: TrainingConfig, model: Model) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": config.tp,
        "sequence_parallel": config.sequence_parallel,
        "context_parallel_size": config.cp,
        "cp_comm_type": config.cp_comm.label,
        "expert_model_parallel_size": config.ep,
        "expert_tensor_parallel_size": (config.etp or config.tp) if model.is_moe else None,
        "micro_batch_size": config.mbs,
    }


def _pipeline(config: TrainingConfig) -> dict[str, Any]:
    """Pipeline size, chunks and layout; the ways that are not used are set to null."""
    arguments: dict[str, Any] = {
        "pipeline_model_parallel_size": config.pp,
        "num_virtual_stages_per_pipeline_rank": config.vpp if config.vpp > 1 else None,
        "num_layers_per_virtual_pipeline_stage": None,
        "virtual_pipeline_model_parallel_size": None,
        "pipeline_model_parallel_layout": None,
        "decoder_first_pipeline_num_layers": None,
        "decoder_last_pipeline_num_layers": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "microbatch_group_size_per_vp_stage": config.microbatch_group or None,
    }
    if is_explicit(config.layout):
        if layout_vpp(config.layout, config.pp) != config.vpp:
            raise InputError(f"layout {config.layout!r} does not have vpp {config.vpp} chunks.")
        arguments["pipeline_model_parallel_layout"] = config.layout
        arguments["num_virtual_stages_per_pipeline_rank"] = None
    elif config.layout.startswith("account="):
        for name in config.layout.removeprefix("account=").split("+"):
            arguments[f"account_for_{name}_in_pipeline_split"] = True
    elif config.layout:
        for part in config.layout.split(","):
            end, _, layers = part.partition("=")
            arguments[f"decoder_{end}_pipeline_num_layers"] = int(layers)
    return arguments


def _schedule(config: TrainingConfig, model: Model, primus: bool) -> dict[str, Any]:
    """The pipeline schedule with its companions."""
    schedule = config.schedule
    if not primus:
        if schedule not in _STOCK_SCHEDULES:
            raise InputError(f"Megatron-LM has no schedule {schedule.label}; export for Primus.")
        return {}
    arguments: dict[str, Any] = {
        "patch_primus_pipeline": False,
        "patch_zero_bubble": False,
    }
    if schedule in _STOCK_SCHEDULES:
        return arguments
    if schedule is Schedule.ZB_H2:
        if model.tied_embeddings:
            raise InputError(f"schedule zb-h2 needs untied embeddings, {model.name} ties them.")
        arguments |= {
            "patch_zero_bubble": True,
            "enable_zero_bubble": True,
            "zero_bubble_v_schedule": False,
            "zero_bubble_max_pending_backward": 2 * config.pp,
            "untie_embeddings_and_output_weights": True,
        }
    elif schedule in _ALGORITHM:
        arguments |= {"patch_primus_pipeline": True, "pp_algorithm": _ALGORITHM[schedule]}
        if schedule is Schedule.ZB_HEURISTIC:
            arguments["pp_max_mem"] = None
    else:
        raise InputError(f"Primus has no schedule {schedule.label}.")
    if config.overlap & Overlap.DP:
        raise InputError(f"schedule {schedule.label} excludes overlap dp.")
    return arguments | {
        "gradient_accumulation_fusion": True,
        "no_persist_layer_norm": True,
        "create_attention_mask_in_dataloader": False,
    }


def _recompute(config: TrainingConfig, primus: bool) -> dict[str, Any]:
    """Recomputation; what is not used is set to null."""
    arguments: dict[str, Any] = {
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_num_layers": None,
    }
    if primus:
        arguments |= {"recompute_layer_ids": None, "recompute_activations": False}
    if config.recompute is Recompute.SELECTIVE:
        if not config.recompute_modules:
            raise InputError("recompute selective needs recompute_modules.")
        modules = [m.name.lower() for m in RecomputeModules if m & config.recompute_modules]  # type: ignore[union-attr]
        arguments |= {"recompute_granularity": "selective", "recompute_modules": modules}
    elif config.recompute is Recompute.FULL:
        arguments["recompute_granularity"] = "full"
        if config.recompute_layer_ids:
            if not primus:
                raise InputError("Megatron-LM has no recompute_layer_ids; export for Primus.")
            ids = ",".join(map(str, config.recompute_layer_ids))
            arguments["recompute_layer_ids"] = ids
        elif config.recompute_method is RecomputeMethod.NONE or not config.recompute_layers:
            raise InputError("recompute full needs a method with layers, or layer ids.")
        else:
            arguments["recompute_method"] = config.recompute_method.label
            arguments["recompute_num_layers"] = config.recompute_layers
    return arguments


def _precision(config: TrainingConfig, primus: bool) -> dict[str, Any]:
    precision = config.precision
    arguments: dict[str, Any] = {
        "bf16": precision not in (Precision.FP16, Precision.FP32),
        "fp16": precision is Precision.FP16,
        "fp8": None,
        "fp4": None,
    }
    if precision in _FP8_RECIPE:
        scaled_by_block = precision in (Precision.MXFP8, Precision.FP8_SC)
        arguments["fp8"] = "e4m3" if scaled_by_block else "hybrid"
        arguments["fp8_recipe"] = _FP8_RECIPE[precision]
    elif precision in _FP4_RECIPE:
        if precision is Precision.MXFP4 and not primus:
            raise InputError("Megatron-LM has no mxfp4 recipe; export for Primus.")
        arguments |= {"fp4": "e2m1", "fp4_recipe": _FP4_RECIPE[precision]}
    return arguments


def _sharding(config: TrainingConfig, primus: bool) -> dict[str, Any]:
    """What data parallelism shards, with the companions of FSDP."""
    sharding = config.sharding
    arguments: dict[str, Any] = {
        "use_distributed_optimizer": sharding is Sharding.ZERO1,
        "num_distributed_optimizer_instances": 1,
        "use_torch_fsdp2": False,
        "use_megatron_fsdp": False,
    }
    if primus:
        arguments |= {"use_custom_fsdp": False, "data_parallel_replicate_degree": 1}
    if sharding is Sharding.ZERO1:
        arguments["num_distributed_optimizer_instances"] = config.replicate
    elif sharding in (Sharding.ZERO2, Sharding.ZERO3):
        arguments |= {
            "use_distributed_optimizer": True,
            "num_distributed_optimizer_instances": config.replicate,
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": _STRATEGY[sharding],
            "ckpt_format": "fsdp_dtensor",
        }
    elif sharding in (Sharding.FSDP, Sharding.HSDP):
        arguments |= {"use_torch_fsdp2": True, "gradient_accumulation_fusion": False}
        if sharding is Sharding.HSDP:
            if not primus:
                raise InputError("Megatron-LM has no HSDP of PyTorch; export for Primus.")
            arguments |= {
                "data_parallel_replicate_degree": config.replicate,
                "ckpt_format": "torch_dcp",
            }
        else:
            arguments["ckpt_format"] = "torch_dist"
    return arguments


def _overlap(config: TrainingConfig) -> dict[str, Any]:
    overlap, sharding = config.overlap, config.sharding
    data_parallel = bool(overlap & Overlap.DP)
    gathers = sharding in (Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)
    experts = bool(overlap & Overlap.EP)
    arguments: dict[str, Any] = {
        "overlap_grad_reduce": data_parallel,
        "overlap_param_gather": data_parallel and gathers,
        "tp_comm_overlap": bool(overlap & Overlap.TP),
        "overlap_moe_expert_parallel_comm": experts,
        "delay_wgrad_compute": experts,
    }
    if experts:
        arguments["moe_shared_expert_overlap"] = False
    return arguments


def _dispatcher(config: TrainingConfig, model: Model, primus: bool) -> dict[str, Any]:
    """Token dispatcher and sync-free stage with everything that they imply."""
    if not model.is_moe:
        return {}
    dispatcher, stage = config.moe_dispatcher, config.sync_free_stage
    plain = dispatcher in (MoeDispatcher.ALLGATHER, MoeDispatcher.ALLTOALL)
    arguments: dict[str, Any] = {"moe_token_dispatcher_type": dispatcher.label if plain else "flex"}
    if not plain:
        arguments |= {"moe_router_dtype": "fp32", "moe_shared_expert_overlap": False}
        arguments["moe_flex_dispatcher_backend"] = dispatcher.label
    if not primus:
        if stage:
            raise InputError("Megatron-LM has no sync_free_stage; export for Primus.")
        return arguments
    deepep = dispatcher is MoeDispatcher.DEEPEP
    if stage >= 2 and not deepep:
        raise InputError(f"sync_free_stage {stage} needs moe_dispatcher deepep.")
    arguments |= {"use_turbo_deepep": deepep, "turbo_sync_free_moe_stage": stage}
    if deepep:
        # Primus turns the flex dispatcher on by itself when DeepEP of Primus-Turbo is on.
        arguments |= {"moe_token_dispatcher_type": "alltoall", "moe_enable_deepep": False}
        del arguments["moe_flex_dispatcher_backend"]
        if config.ep >= 16:
            arguments["turbo_deepep_num_cu"] = DEEPEP_MAX_COMPUTE_UNITS
    if stage >= 1:
        arguments |= {"moe_use_fused_router_with_aux_score": True, "moe_permute_fusion": True}
        if config.precision.gemm_format in ("fp8", "fp4"):
            arguments["moe_router_padding_for_quantization"] = True
    if stage >= 2:
        arguments["use_turbo_grouped_gemm"] = True
    if stage == 3:
        arguments["use_turbo_fused_act_with_probs"] = True
    return arguments


def _turbo(config: TrainingConfig, model: Model, stack: Stack) -> dict[str, Any]:
    """The master switch of Primus-Turbo; kernels that were off stay off under it."""
    needed = config.moe_dispatcher is MoeDispatcher.DEEPEP or config.sync_free_stage > 0
    switched_on = stack.turbo or (needed and model.is_moe)
    if not switched_on:
        return {"enable_primus_turbo": False}
    arguments: dict[str, Any] = {"enable_primus_turbo": True}
    if not stack.turbo:
        arguments |= {"use_turbo_attention": False, "use_turbo_gemm": False}
        if config.sync_free_stage < 2:
            arguments["use_turbo_grouped_gemm"] = False
    return arguments


def environment(config: TrainingConfig, stack: Stack, amd: bool) -> dict[str, str]:
    """Environment variables that the launch needs.

    CUDA_DEVICE_MAX_CONNECTIONS: megatron/training/arguments.py (1 under TP or CP, more than 1 under
    FSDP); NVTE_ROCM_ENABLE_MXFP8: primus rocm_arg_validation.py.
    """
    variables: dict[str, str] = {}
    fsdp = config.sharding in (Sharding.FSDP, Sharding.HSDP, Sharding.ZERO2, Sharding.ZERO3)
    if fsdp:
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "8"
    elif (config.tp > 1 or config.cp > 1) and not config.overlap & Overlap.EP:
        variables["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    if config.precision is Precision.MXFP8 and amd:
        variables["NVTE_ROCM_ENABLE_MXFP8"] = "1"
    if stack.expandable_segments:
        variables["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return variables
