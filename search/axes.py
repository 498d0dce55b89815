"""The values of each axis that a study tries, in the reduced ("core") and the full form.

Core: tp, pp, vpp, cp, ep, mbs, schedule and recompute granularity vary; every other axis is held at
the baseline. Full: every axis varies. The baseline's own value is always among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
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
from specs.cluster import Cluster
from specs.config import AXES, ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.layout import explicit_stages, virtual_stages
from specs.legality import legal_mask
from specs.legality_mesh import offered_schedules
from specs.legality_scope import MEGATRON_FAMILY, Scope
from specs.stack import Framework, Stack
from specs.workload import Workload

CORE_AXES = ("tp", "pp", "vpp", "cp", "ep", "mbs", "schedule", "recompute")
YIELDING = ("moe_dispatcher", "sync_free_stage", "overlap")
"""Held axes that give way where the baseline's value cannot run, as its companions would."""
MICRO_BATCHES = (1, 2, 4, 8, 16)
MAX_CP = 64
MIN_TOKENS_PER_RANK = 128
"""Context parallelism is not tried beyond these: a rank keeps that many tokens of a sequence."""
MAX_BALANCED_VPP = 2
"""Chunks up to which layers that do not divide are spread as evenly as an explicit layout can."""

Narrowing = Mapping[str, Sequence[Any]]
Axes = dict[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Setting:
    """What is trained, where and with what, and the config to start from."""

    workload: Workload
    cluster: Cluster
    stack: Stack
    baseline: TrainingConfig

    def scope(self, table: ConfigTable) -> Scope:
        """The configs of ``table`` as legality sees them."""
        return Scope(table, self.workload, self.cluster, self.stack)

    def legal(self, table: ConfigTable) -> Any:
        """Which rows of ``table`` are legal."""
        return legal_mask(table, self.workload, self.cluster, self.stack)


def parsed(narrowing: Narrowing) -> dict[str, tuple[Any, ...]]:
    """Narrowed axes with their values as members of the axis, repeats dropped.

    Raises:
        InputError: an axis or value does not exist, or an axis has no value left.
    """
    axes = {}
    for name, values in narrowing.items():
        if name not in AXES:
            raise InputError(f"there is no axis {name!r}; the axes are {', '.join(AXES)}.")
        axes[name] = tuple(dict.fromkeys(AXES[name].parse(value) for value in values))
        if not axes[name]:
            raise InputError(f"axis {name} is narrowed to nothing; give it at least one value.")
    return axes


def axis_values(setting: Setting, full: bool, own: Axes) -> Axes:
    """Values of every axis before narrowing by ``own``, the one that stands for "inert" first."""
    values: Axes = {name: (getattr(setting.baseline, name),) for name in AXES}
    values |= _mesh_values(setting, full)
    pipelines = own.get("pp", values["pp"])
    values |= _pipeline_values(setting, pipelines)
    values |= _recompute_values(
        setting, full, RecomputeMethod.BLOCK in own.get("recompute_method", ())
    )
    if full:
        values |= _feature_values(setting)
    values["layout"] = layout_values(setting, pipelines)
    if not full:
        values |= {name: fallbacks(setting.baseline, name) for name in YIELDING}
    values["sequence_parallel"] = (False, True)
    return {name: values[name] for name in AXES}


def _mesh_values(setting: Setting, full: bool) -> Axes:
    """Sizes that divide the world and what they split."""
    model, world = setting.workload.model, setting.cluster.num_gpus
    baseline = setting.baseline
    domain = setting.cluster.scale_up_gpus
    tensor = [n for n in divisors(world) if n <= domain]
    context = [
        n
        for n in divisors(world)
        if n <= MAX_CP and setting.workload.seq_len // n >= MIN_TOKENS_PER_RANK
    ]
    values: Axes = {
        "tp": _ordered([n for n in tensor if model.num_attention_heads % n == 0], baseline.tp),
        "pp": _ordered([n for n in divisors(world) if n <= model.num_layers], baseline.pp),
        "cp": _ordered(context, baseline.cp),
        "mbs": _ordered(MICRO_BATCHES, baseline.mbs),
        "ep": (1,),
        "etp": (1,),
    }
    if model.is_moe:
        experts = [n for n in divisors(model.num_experts) if n <= world]
        widths = [n for n in tensor if model.moe_ffn_hidden_size % n == 0]
        values["ep"] = _ordered(experts, baseline.ep)
        values["etp"] = _ordered(widths if full else [1], baseline.etp or baseline.tp)
    return values


def _pipeline_values(setting: Setting, pipelines: Iterable[int]) -> Axes:
    """Chunks that divide a rank's layers, and the schedules that the stack has."""
    layers, baseline = setting.workload.model.num_layers, setting.baseline
    chunks = {1, 2}
    for pp in pipelines:
        total = layers if layers % pp == 0 else layers + 2  # embedding and loss as layers
        if pp > 1 and total % pp == 0:
            chunks |= set(divisors(total // pp))
    tried = [s for s in Schedule if s not in (Schedule.GPIPE, Schedule.ZB_H2)]
    scope = setting.scope(ConfigTable.from_configs([baseline]))
    offered = [s for s in offered_schedules(scope) if s in tried]
    return {
        "vpp": _ordered(chunks, baseline.vpp),
        "schedule": tuple(dict.fromkeys((*offered, baseline.schedule))),
    }


def _recompute_values(setting: Setting, full: bool, block: bool) -> Axes:
    """Granularity, modules and layer counts: all counts where ``block`` is asked for or full."""
    model, baseline = setting.workload.model, setting.baseline
    modules = [baseline.recompute_modules or RecomputeModules.CORE_ATTN]
    layers = [1, baseline.recompute_layers] if baseline.recompute_layers else [1]
    methods = [RecomputeMethod.UNIFORM, baseline.recompute_method]
    if full or block:
        layers = [*range(1, model.num_layers + 1)]
    if full:
        modules += [m for m in _module_sets(setting) if m not in modules]
        methods = [RecomputeMethod.BLOCK, RecomputeMethod.UNIFORM]
    return {
        "recompute": tuple(Recompute),
        "recompute_method": _unique([RecomputeMethod.NONE, *methods]),
        "recompute_layers": _unique([0, *sorted({*layers, baseline.recompute_layers} - {0})]),
        "recompute_modules": _unique([RecomputeModules.NONE, *modules]),
        "recompute_layer_ids": _unique([(), baseline.recompute_layer_ids]),
    }


def fallbacks(baseline: TrainingConfig, name: str) -> tuple[Any, ...]:
    """The baseline's value of a yielding axis, then weaker ones that run where it cannot."""
    if name == "moe_dispatcher":
        return _unique([baseline.moe_dispatcher, MoeDispatcher.ALLTOALL])
    if name == "sync_free_stage":
        stage = baseline.sync_free_stage
        return _unique([stage, min(stage, 1), 0])
    parts = {Overlap(baseline.overlap & part) for part in range(8)}
    return tuple(sorted(parts, key=lambda overlap: (-int(overlap).bit_count(), overlap)))


def _module_sets(setting: Setting) -> list[RecomputeModules]:
    """Single modules that the model has, and growing sets of the cheap ones."""
    m, model = RecomputeModules, setting.workload.model
    cheap = [m.CORE_ATTN, m.LAYERNORM]
    single = [m.MLP] if model.num_moe_layers < model.num_layers else []
    if model.mla is not None:
        cheap.append(m.MLA_UP_PROJ)
    if model.is_moe:
        cheap += [m.MOE_ACT] if setting.stack.grouped_gemm else []
        single += [m.MOE] + ([m.SHARED_EXPERTS] if model.shared_expert_ffn else [])
    sets = [*cheap, *single]
    grown = m.NONE
    for module in cheap:
        grown |= module
        sets.append(grown)
    return sets


def _feature_values(setting: Setting) -> Axes:
    """Axes that only the full form varies."""
    baseline, gpu, framework = setting.baseline, setting.cluster.gpu, setting.stack.framework
    moe, amd = setting.workload.model.is_moe, gpu.vendor == "amd"
    dispatchers = [MoeDispatcher.ALLTOALL, MoeDispatcher.DEEPEP] if moe else []
    stages = range(4) if moe and framework is Framework.PRIMUS else [0]
    formats = [
        p for p in Precision if gpu.supports(p) and p not in (Precision.FP16, Precision.FP32)
    ]
    overlaps = [Overlap.NONE, Overlap.DP]
    if not amd:  # user-buffer GEMM overlap is a feature of Transformer Engine on NVIDIA
        overlaps += [o | Overlap.TP for o in overlaps]
    if moe:
        overlaps += [o | Overlap.EP for o in overlaps]
    shards = [Sharding.NONE, Sharding.ZERO1, Sharding.FSDP, Sharding.HSDP]
    if framework not in MEGATRON_FAMILY:
        shards += [Sharding.ZERO2, Sharding.ZERO3]
    return {
        "cp_comm": _unique([baseline.cp_comm, CpComm.P2P, CpComm.A2A]),
        "moe_dispatcher": _unique([baseline.moe_dispatcher, *dispatchers]),
        "sync_free_stage": _unique([baseline.sync_free_stage, *stages]),
        "precision": _unique([baseline.precision, *formats]),
        "sharding": _unique([baseline.sharding, *shards]),
        "replicate": _ordered([1, 2, setting.cluster.num_nodes], baseline.replicate),
        "cross_entropy_fusion": (False, True),
        "overlap": _unique([baseline.overlap, *overlaps]),
    }


def layout_values(setting: Setting, pipelines: Iterable[int]) -> tuple[str, ...]:
    """Even, the baseline's, and for each pp that the layers do not divide by a balanced one.

    Balanced is Megatron's accounting of embedding and loss as layers where that divides, else a
    layout string with one layer less at the ends.
    """
    model = setting.workload.model
    layouts = ["", setting.baseline.layout]
    for pp in pipelines:
        if pp == 1 or model.num_layers % pp == 0:
            continue
        if (model.num_layers + 2) % pp == 0:
            layouts.append("account=embedding+loss")
            continue
        for vpp in range(1, MAX_BALANCED_VPP + 1):
            if model.num_layers >= pp * vpp:
                layouts.append(balanced_layout(model.num_layers, model.mtp_layers, pp, vpp))
    return _unique(layouts)


def balanced_layout(num_layers: int, mtp_layers: int, pp: int, vpp: int) -> str:
    """Layers as evenly as they go, one less at the ends, as a Megatron layout string."""
    first, *middle, last = (s.layers for s in virtual_stages("", num_layers, 0, pp, vpp))
    runs = [(count, len(list(same))) for count, same in groupby(middle)]
    inner = "".join(f"(t*{count}|)*{n}" if n > 1 else f"t*{count}|" for count, n in runs)
    return f"Et*{first}|{inner}t*{last}" + ",m" * mtp_layers + ",L"


def recompute_bundles(axes: Axes, narrowed: Iterable[str], baseline: TrainingConfig) -> ConfigTable:
    """Consistent combinations of the recompute axes: one row each, other axes at their default.

    Uniform recomputation is tried with one layer a unit unless the layers are narrowed or the
    baseline uses more. A narrowed axis keeps its values in every row.
    """
    rows = [
        TrainingConfig(
            recompute=granularity,
            recompute_method=method,
            recompute_layers=layers,
            recompute_modules=modules,
            recompute_layer_ids=ids,
        )
        for granularity, method, layers, modules, ids in product(
            *(axes[name] for name in AXES if name.startswith("recompute"))
        )
        if _is_consistent(granularity, method, layers, modules, ids)
    ]
    if "recompute_layers" not in narrowed:
        one = {1, baseline.recompute_layers}
        uniform = RecomputeMethod.UNIFORM
        rows = [r for r in rows if r.recompute_method != uniform or r.recompute_layers in one]
    return ConfigTable.from_configs(rows)


def _is_consistent(
    granularity: Recompute, method: RecomputeMethod, layers: int, modules: int, ids: tuple[int, ...]
) -> bool:
    """Whether the five recompute axes describe one thing."""
    counted = method is not RecomputeMethod.NONE and layers > 0
    if granularity is Recompute.FULL:
        by_count = counted and not ids
        by_id = bool(ids) and method is RecomputeMethod.NONE and layers == 0
        return (by_count or by_id) and not modules
    plain = method is RecomputeMethod.NONE and layers == 0 and not ids
    return plain and bool(modules) == (granularity is Recompute.SELECTIVE)


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def explicit_vpp(layout: str, pp: int) -> int | None:
    """The vpp that a Megatron string fixes for this pp; None where it has none."""
    stages = len(explicit_stages(layout))
    return stages // pp if stages % pp == 0 else None


def _ordered(values: Iterable[int], baseline: int) -> tuple[int, ...]:
    return tuple(sorted({*values, baseline}))


def _unique(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
