"""Overrides of torchtitan experiments on Primus."""

from __future__ import annotations

from typing import Any

from specs.choices import (
    MoeDispatcher,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.workload import Workload

_SCHEDULES = {
    Schedule.ONE_F_ONE_B: "1F1B",
    Schedule.GPIPE: "GPipe",
    Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ZBV: "ZBVZeroBubble",
}
_CONVERTERS: dict[Precision, tuple[list[str], str | None]] = {
    Precision.BF16: ([], None),
    Precision.FP8_CS: (["quantize.linear.float8"], None),
    Precision.FP8_SC: (["quantize.linear.float8"], "rowwise"),
    Precision.MXFP8: (["quantize.linear.mx"], None),
}


def torchtitan_overlay(config: TrainingConfig, workload: Workload) -> dict[str, Any]:
    """Settings by section that reproduce ``config`` in torchtitan.

    Raises:
        InputError: torchtitan has no setting for an axis value.
    """
    _refuse_foreign(config)
    if config.precision not in _CONVERTERS:
        raise InputError(f"torchtitan on Primus has no precision {config.precision.label}.")
    converters, recipe = _CONVERTERS[config.precision]
    return {
        "training": {
            "seq_len": workload.seq_len,
            "local_batch_size": config.mbs,
            "global_batch_size": workload.global_batch_size,
        },
        "model": {"converters": ["primus_turbo", *converters]},
        "quantize": {"linear": {"float8": {"recipe_name": recipe}}},
        "parallelism": _parallelism(config),
        "activation_checkpoint": _activation_checkpoint(config, workload.model.num_layers),
    }


def _refuse_foreign(config: TrainingConfig) -> None:
    """Axis values that only Megatron and its forks have."""
    if config.pp > 1:
        raise InputError("torchtitan pipelines are read, not written; keep pp 1.")
    if config.moe_dispatcher is not MoeDispatcher.ALLTOALL or config.sync_free_stage:
        raise InputError("torchtitan on Primus dispatches tokens with alltoall only.")
    if config.sharding not in (Sharding.NONE, Sharding.FSDP, Sharding.HSDP):
        raise InputError(f"torchtitan has no sharding {config.sharding.label}; use fsdp or hsdp.")
    if config.cross_entropy_fusion:
        raise InputError("torchtitan on Primus has no setting for cross_entropy_fusion.")


def _parallelism(config: TrainingConfig) -> dict[str, Any]:
    shards = 1 if config.sharding is Sharding.NONE else -1
    return {
        "data_parallel_replicate_degree": config.replicate,
        "data_parallel_shard_degree": shards,
        "tensor_parallel_degree": config.tp,
        "enable_sequence_parallel": config.sequence_parallel or config.tp == 1,
        "context_parallel_degree": config.cp,
        "pipeline_parallel_degree": config.pp,
        "pipeline_parallel_schedule": _SCHEDULES[config.schedule],
        "expert_parallel_degree": config.ep,
        "expert_tensor_parallel_degree": config.etp or config.tp,
    }


def _activation_checkpoint(config: TrainingConfig, num_layers: int) -> dict[str, Any]:
    """Mode and option; a list of layers only where it is every n-th one."""
    if config.recompute is Recompute.NONE:
        return {"mode": "none"}
    if config.recompute is Recompute.SELECTIVE:
        if config.recompute_modules & ~(RecomputeModules.LAYERNORM | RecomputeModules.MOE_ACT):
            raise InputError("torchtitan recomputes by operator or layer, not by these modules.")
        names: list[str] = []
        return {
            "mode": "selective",
            "selective_ac_option": "op",
            "per_op_sac_force_recompute_mm_shapes_by_fqns": names,
        }
    if config.recompute_layer_ids:
        every = config.recompute_layer_ids[0] + 1
        if config.recompute_layer_ids != tuple(range(every - 1, num_layers, every)):
            raise InputError("torchtitan recomputes every n-th layer, not a list of layers.")
        return {"mode": "selective", "selective_ac_option": str(every)}
    if config.recompute_method is not RecomputeMethod.UNIFORM or config.recompute_layers != 1:
        raise InputError("torchtitan recomputes all layers one by one (uniform, 1 layer).")
    return {"mode": "full"}
