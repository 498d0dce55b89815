"""Coordinates in which two training runs are alike, so that what one taught says something of the
other.

All are dimensionless logarithms or classes of the config, the model and the software; no rate of
the hardware is among them. What is learned over them therefore cannot turn more bandwidth or a
faster GPU into a slower step: monotonicity is that of the physics.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specs.choices import (
    MoeDispatcher,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
    TrainingKind,
)
from specs.stack import Framework
from surrogate.cases import Cases, Column

Floats = NDArray[np.float64]

STRONG, CLEAR, WEAK, FAINT = 0.5, 0.33, 0.12, 0.04
"""Coordinate scales: two runs one octave apart on a STRONG coordinate are exp(-1/8) alike. The
class of each coordinate is the rounded optimum of predicting whole Folds, models and publishers
left out of 1,130 public runs."""

FEATURES = (
    "tp", "pp", "cp", "ep", "mbs", "seq_len", "microbatches", "gpus", "hidden_size", "depth",
    "expert_tokens", "tokens", "recompute", "lora", "fused_dispatch", "drops_tokens",
    "capacity_factor", "vpp", "experts", "fully_sharded", "cuda_graphs", "split_backward",
    "leaves_domain", "parameters", "eight_bit", "four_bit",
)  # fmt: skip
"""Names of the numeric coordinates, in order; one coordinate a class of software follows."""

CLASSES = {"framework": 0.71, "architecture": 0.25, "gpu": 0.4, "moe": 1.26}
"""Coordinate length of a class: runs of two classes are exp(-length**2) alike."""

CONFIG_AXES = (
    "tp", "pp", "cp", "ep", "mbs", "vpp", "recompute", "recompute_method", "recompute_layers",
    "recompute_modules", "moe_dispatcher", "sharding", "schedule", "precision",
)  # fmt: skip
"""Axes of a config that the coordinates depend on."""

MESH_AXES = ("tp", "pp", "cp", "ep", "mbs")
MESH = ("tp", "pp", "cp", "ep", "mbs", "microbatches", "depth", "expert_tokens", "tokens")
"""Coordinates that depend on MESH_AXES alone among the configs of a study."""

STYLE = (
    "recompute", "fused_dispatch", "vpp", "fully_sharded", "split_backward", "eight_bit",
    "four_bit",
)  # fmt: skip
"""The others that differ between configs of a study; they depend on ``style_keys`` alone."""

SELECTIVE_SHARE = 0.1
"""Of a layer's forward pass that selective recomputation repeats where it leaves out the MLP.
Assumed: a norm, an activation or an attention core; the public runs seldom say which modules."""

_GEMM_FORMAT = np.array([precision.gemm_format for precision in Precision])
"""Precision code -> the format in which GEMMs multiply."""

_SPLITS_BACKWARD = np.array([schedule.splits_weight_gradient for schedule in Schedule])
"""Schedule code -> whether it splits the backward pass."""

_UNROUTED = 12.0
"""log2 of tokens an expert where there are no experts: as in a large dense GEMM."""


def features(cases: Cases) -> Floats:
    """Numeric coordinates of every row, scaled, shape (n, len(FEATURES))."""
    config, model, load = cases.config, cases.model, cases.workload
    moe = model.num_experts > 0
    tokens = config.mbs * load.seq_len / config.cp
    routed = tokens * np.maximum(model.moe_topk, 1) * config.ep / config.tp
    capacity = load.capacity_factor
    columns = {
        "tp": CLEAR * _log2(config.tp),
        "pp": WEAK * _log2(config.pp),
        "cp": FAINT * _log2(config.cp),
        "ep": STRONG * _log2(config.ep),
        "mbs": WEAK * _log2(config.mbs),
        "seq_len": CLEAR * _log2(load.seq_len),
        "microbatches": FAINT * np.clip(_log2(cases.microbatches() / config.pp), -3, 6),
        "gpus": FAINT * _log2(cases.cluster.num_gpus),
        "hidden_size": STRONG * _log2(model.hidden_size),
        "depth": FAINT * _log2(model.num_layers / config.pp),
        "expert_tokens": 0.75
        * np.where(moe, _log2(routed / np.maximum(model.num_experts, 1)), _UNROUTED),
        "tokens": FAINT * _log2(tokens * model.hidden_size / config.tp),
        "recompute": 1.0 * recomputed_share(cases),
        "lora": 1.0 * (load.kind == int(TrainingKind.LORA)),
        "fused_dispatch": WEAK * (config.moe_dispatcher >= int(MoeDispatcher.DEEPEP)),
        "drops_tokens": 1.2 * (capacity > 0),
        "capacity_factor": 0.4 * _log2(np.maximum(capacity, 1.0)),
        # Interleaving is ordered by its bubble; little of what runs taught about it carries over.
        "vpp": WEAK * _log2(config.vpp),
        "experts": WEAK * _log2(model.num_experts + 1),
        "fully_sharded": 1.25 * (config.sharding >= int(Sharding.ZERO3)),
        "cuda_graphs": 1.3 * cases.stack.cuda_graphs,
        "split_backward": FAINT * _SPLITS_BACKWARD[config.schedule],
        # What a node teaches says little of a cluster: its network was never seen.
        "leaves_domain": 1.5 * (cases.cluster.num_gpus > cases.cluster.scale_up_gpus),
        "parameters": 0.08 * _log2(model.num_layers * 12.0 * np.square(1.0 * model.hidden_size)),
        "eight_bit": 0.3 * (_GEMM_FORMAT[config.precision] == "fp8"),
        "four_bit": 1.2 * (_GEMM_FORMAT[config.precision] == "fp4"),
    }
    rows = [np.broadcast_to(columns[name], (len(cases),)) for name in FEATURES]
    return np.column_stack(rows).astype(np.float64)


def style_keys(cases: Cases) -> tuple[Column, ...]:
    """Small integers, shape (n,) each: configs of a study that agree in them agree in STYLE."""
    config = cases.config
    return (
        config.vpp,
        config.precision,
        config.moe_dispatcher >= int(MoeDispatcher.DEEPEP),
        config.sharding >= int(Sharding.ZERO3),
        _SPLITS_BACKWARD[config.schedule],
        config.recompute,
        _rebuilt_layers(cases),
        _repeats_mlp(cases),
    )


def recomputed_share(cases: Cases) -> Column:
    """Share of the layers whose forward pass is repeated: what recomputation costs, to 1.

    Selective recomputation repeats part of every layer. Were recomputation a mere class, what was
    learned from runs that recompute everything would be credited to one that recomputes a layer.
    """
    full = _rebuilt_layers(cases) / cases.model.num_layers
    part = SELECTIVE_SHARE + (1.0 - SELECTIVE_SHARE) * _mlp_share(cases) * _repeats_mlp(cases)
    is_selective = cases.config.recompute == int(Recompute.SELECTIVE)
    share: Column = np.where(is_selective, part, full)
    return share


def _rebuilt_layers(cases: Cases) -> Column:
    """Layers that full recomputation rebuilds, shape (n,)."""
    config, depth = cases.config, cases.model.num_layers
    block = np.minimum(config.recompute_layers * config.pp * config.vpp, depth)
    rebuilt = np.where(config.recompute_method == int(RecomputeMethod.BLOCK), block, depth)
    return np.where(config.recompute == int(Recompute.FULL), rebuilt, 0)


def _repeats_mlp(cases: Cases) -> Column:
    """Whether selective recomputation would repeat the MLP or the experts, shape (n,).

    TorchTitan repeats operators, whatever the modules.
    """
    modules = cases.config.recompute_modules
    moe, mlp = modules & int(RecomputeModules.MOE), modules & int(RecomputeModules.MLP)
    by_module = cases.stack.framework != int(Framework.TORCHTITAN)
    return np.asarray((np.where(cases.model.num_experts > 0, moe, mlp) > 0) & by_module)


def _mlp_share(cases: Cases) -> Column:
    """Weights of the MLP or the experts over all that a token meets in a layer, () or (n,)."""
    model = cases.model
    width = np.where(
        model.num_experts > 0, model.moe_topk * model.moe_ffn_hidden_size, model.ffn_hidden_size
    ) * np.where(model.gated_mlp, 3.0, 2.0)
    heads = 2.0 * (model.num_attention_heads + model.num_query_groups) * model.head_dim
    share: Column = width / np.maximum(width + heads, 1.0)
    return share


def classes(cases: Cases) -> dict[str, Column]:
    """Software and hardware class of every row as text, shape (n,), by the names of CLASSES."""
    size = (len(cases),)
    frameworks = np.array([Framework(s.framework).name for s in cases.stacks], dtype=object)
    architectures = np.array([gpu.architecture for gpu in cases.gpus], dtype=object)
    gpus = np.array([gpu.name for gpu in cases.gpus], dtype=object)
    moe = np.where(cases.model.num_experts > 0, "moe", "dense").astype(object)
    return {
        "framework": np.broadcast_to(frameworks[cases.stack_index], size),
        "architecture": np.broadcast_to(architectures[cases.cluster.gpu], size),
        "gpu": np.broadcast_to(gpus[cases.cluster.gpu], size),
        "moe": np.broadcast_to(moe, size),
    }


def _log2(values: Column) -> Column:
    logarithm: Column = np.log2(np.maximum(values, 1e-3))
    return logarithm
