"""Companions: the other axes that must follow when one axis of a config is changed by itself.

Frameworks tie axes together: chunks need the interleaved schedule, V schedules need two chunks,
sync-free dispatch needs DeepEP. Whoever changes one axis means the nearest config that can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specs.choices import (
    MoeDispatcher,
    Overlap,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.layout import is_explicit, layout_vpp


def with_companions(config: TrainingConfig, changes: Mapping[str, Any]) -> TrainingConfig:
    """``config`` with ``changes`` and with what they entail on axes that ``changes`` leaves free.

    Legality is not judged here: a change that no companion can rescue stays illegal.
    """
    values = dict(changes)
    for rule in (_tensor, _pipeline, _schedule, _recompute, _experts, _sharding):
        for axis, value in rule(config, values).items():
            values.setdefault(axis, value)
    return config.changed(**values)


def _tensor(config: TrainingConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sequence parallelism comes with TP unless the config chose to do without."""
    if "tp" not in changes:
        return {}
    wanted = config.sequence_parallel or config.tp == 1
    return {"sequence_parallel": changes["tp"] > 1 and wanted}


def _pipeline(config: TrainingConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """One stage needs no schedule; a layout written for other stages no longer applies."""
    follow: dict[str, Any] = {}
    if changes.get("pp") == 1:
        follow |= {"vpp": 1, "schedule": Schedule.ONE_F_ONE_B, "microbatch_group": 0}
    if is_explicit(changes.get("layout", "")):
        follow["vpp"] = _layout_chunks(changes["layout"], changes.get("pp", config.pp), config.vpp)
    elif changes.get("pp", config.pp) != config.pp or changes.get("vpp", config.vpp) != config.vpp:
        follow |= {"layout": "", "microbatch_group": 0}
    return follow


def _layout_chunks(layout: str, pp: int, now: int) -> int:
    """Chunks of an explicit layout; legality explains a layout that does not suit ``pp``."""
    try:
        return layout_vpp(layout, pp)
    except InputError:
        return now


def _schedule(config: TrainingConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Chunks and schedule go together; schedules that split the weight gradient expose DP."""
    follow: dict[str, Any] = {}
    schedule = changes.get("schedule", config.schedule)
    if "schedule" not in changes and "vpp" in changes:
        chunks = changes["vpp"]
        if chunks == 1 and (schedule is Schedule.INTERLEAVED or schedule.is_v_shaped):
            schedule = follow["schedule"] = Schedule.ONE_F_ONE_B
        if chunks > 1 and not (schedule.is_v_shaped and chunks == 2):
            schedule = follow["schedule"] = Schedule.INTERLEAVED
    elif "schedule" in changes:
        chunks = _chunks(schedule, config.vpp)
        follow["vpp"] = chunks
        if chunks != config.vpp:
            follow |= {"layout": "", "microbatch_group": 0}
    if schedule.splits_weight_gradient:
        follow["overlap"] = config.overlap & ~Overlap.DP
    return follow


def _chunks(schedule: Schedule, now: int) -> int:
    if schedule.is_v_shaped:
        return 2
    return max(now, 2) if schedule is Schedule.INTERLEAVED else 1


def _recompute(config: TrainingConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Granularity, method, layers and modules are one decision spread over five axes."""
    granularity = changes.get("recompute")
    if granularity is None:
        whole_layers = ("recompute_method", "recompute_layers", "recompute_layer_ids")
        if changes.get("recompute_modules"):
            granularity = Recompute.SELECTIVE
        elif any(changes.get(axis) for axis in whole_layers):
            granularity = Recompute.FULL
        else:
            return {}
    follow: dict[str, Any] = {
        "recompute": granularity,
        "recompute_method": RecomputeMethod.NONE,
        "recompute_layers": 0,
        "recompute_modules": RecomputeModules.NONE,
        "recompute_layer_ids": (),
    }
    if granularity is Recompute.SELECTIVE:
        follow["recompute_modules"] = config.recompute_modules or RecomputeModules.CORE_ATTN
    if granularity is Recompute.FULL and not changes.get("recompute_layer_ids"):
        if changes.get("recompute_layers") and "recompute_method" not in changes:
            follow["recompute_method"] = RecomputeMethod.BLOCK
        else:
            follow |= {"recompute_method": RecomputeMethod.UNIFORM, "recompute_layers": 1}
    return follow


def _experts(config: TrainingConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sync-free stages 2 and 3 exist only with DeepEP."""
    stage = changes.get("sync_free_stage", config.sync_free_stage)
    if changes.get("sync_free_stage", 0) >= 2:
        return {"moe_dispatcher": MoeDispatcher.DEEPEP}
    dispatcher = changes.get("moe_dispatcher", config.moe_dispatcher)
    if dispatcher is not MoeDispatcher.DEEPEP and stage >= 2:
        return {"sync_free_stage": 1}
    return {}


def _sharding(config: TrainingConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Replicas of shards belong to HSDP."""
    if "sharding" not in changes:
        return {}
    if changes["sharding"] is Sharding.HSDP:
        return {"replicate": max(config.replicate, 2)}
    return {"replicate": 1} if config.sharding is Sharding.HSDP else {}
