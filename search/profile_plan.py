"""What to measure on a node: the items that are expected to teach most about a shortlist.

A constant is worth measuring where the step times of the shortlist react to it and it is uncertain.
Items that share a constant share what they teach: each further one adds less.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from specs.choices import Precision, Sharding
from specs.config import ConfigTable, TrainingConfig
from specs.gpu import Gpu
from specs.model import Model
from specs.profile_rows import KINDS, PlanItem
from specs.workload import Workload
from surrogate.cases import Cases
from surrogate.profile_calibration import ITEM_SD, knowledge_sd
from surrogate.profile_predictions import COLUMNS, NodePhysics, observations, predicted_s
from surrogate.step_time import step_time
from surrogate.time_constants import TimeConstants, nudged

STEP = 0.02
MAX_PARAMETERS = 2**28
"""Largest optimizer shard that is measured: its rate does not change beyond."""
MAX_MESSAGE = 2**29
SETUP_S = 0.5
"""Cost of an item beside its own time: random data, warm-up, allocation."""
CALLS = 60
MAX_ITEMS = 60
FIRST = 8
"""Items that are measured before any whole layer."""


class Node(NamedTuple):
    """What is there to measure with: GPUs of one node and how many nodes."""

    gpus: int
    nodes: int = 1


class _Candidate(NamedTuple):
    item: PlanItem
    what: str
    seconds: float


def profile_plan(
    table: ConfigTable,
    cases: Cases,
    workload: Workload,
    gpu: Gpu,
    constants: TimeConstants,
    node: Node,
) -> list[PlanItem]:
    """Items in the order in which they should be measured.

    Args:
        table: the shortlist, n configs.
        cases: the same configs as runs of the job.
        workload: of the job.
        gpu: of the cluster.
        constants: what is believed.
        node: where the items are measured.
    """
    physics = NodePhysics.of(gpu, cases, constants)
    weights = _sensitivities(cases, constants)
    candidates: dict[str, _Candidate] = {}
    checks: dict[str, PlanItem] = {}
    for config in table.configs():
        for item in items_of(config, workload, node):
            if item.kind == "layer":
                checks.setdefault(item.key, item)
                continue
            for what in observations(item, has_backward=False):
                seconds = predicted_s(item, what, physics, {})
                if math.isfinite(seconds) and seconds > 0:
                    candidates.setdefault(item.key, _Candidate(item, what, seconds))
    ordered = _greedy(list(candidates.values()), weights, physics)
    # Whole layers are checks of memory and of the sum of the parts: behind what teaches most.
    layers = list(checks.values())
    return [*ordered[:FIRST], *layers[:2], *ordered[FIRST:], *layers[2:6]][:MAX_ITEMS]


def _sensitivities(cases: Cases, constants: TimeConstants) -> dict[str, float]:
    """Column -> mean square over the shortlist of d log(step time) / d log(constant)."""
    rates = constants.rates(cases)
    base = np.log(step_time(cases, rates=rates).step_time_s)
    found = {}
    for column in sorted({column for columns in COLUMNS.values() for column in columns}):
        moved = step_time(cases, rates=nudged(rates, column, float(np.exp(-STEP)))).step_time_s
        found[column] = float(np.mean(np.square((np.log(moved) - base) / STEP)))
    return found


def _greedy(
    candidates: list[_Candidate], weights: dict[str, float], physics: NodePhysics
) -> list[PlanItem]:
    """Largest reduction of variance a second first; what a choice teaches, the others know."""
    variance = {column: knowledge_sd(column, physics) ** 2 for column in weights}
    largest: dict[str, float] = {}
    for candidate in candidates:
        largest[candidate.what] = max(largest.get(candidate.what, 0.0), candidate.seconds)
    ordered: list[PlanItem] = []
    left = list(candidates)
    while left:
        scores = [_gain(c, largest, weights, variance) for c in left]
        place = int(np.argmax(scores))
        chosen = left.pop(place)
        column = COLUMNS[chosen.what][0]
        ordered.append(_explained(chosen.item, column, weights, variance))
        for name in COLUMNS[chosen.what]:
            error = _error(chosen, largest)
            variance[name] = 1.0 / (1.0 / variance[name] + 1.0 / error)
    return ordered


def _error(candidate: _Candidate, largest: dict[str, float]) -> float:
    """Variance of what an item says of its constant: small items say less of the large ones."""
    share = max(candidate.seconds / largest[candidate.what], 0.02)
    return ITEM_SD[candidate.what] ** 2 / share


def _gain(
    candidate: _Candidate,
    largest: dict[str, float],
    weights: dict[str, float],
    variance: dict[str, float],
) -> float:
    """Expected reduction of the variance of log step times, a second of measuring."""
    error = _error(candidate, largest)
    reduction = sum(
        weights[name] * variance[name] ** 2 / (variance[name] + error)
        for name in COLUMNS[candidate.what]
    )
    return float(reduction / (SETUP_S + CALLS * candidate.seconds))


def _explained(
    item: PlanItem, column: str, weights: dict[str, float], variance: dict[str, float]
) -> PlanItem:
    """The item with the reason why it is measured."""
    spread = math.sqrt(weights[column] * variance[column])
    why = f"{column} leaves {spread:.1%} of the step time open"
    return PlanItem(item.kind, item.sizes, item.dtype, item.variant, why)


def items_of(config: TrainingConfig, workload: Workload, node: Node) -> Iterator[PlanItem]:
    """Everything that one rank of a config runs, at its sharded sizes."""
    model = workload.model
    seq = max(workload.seq_len // config.cp, 1)
    tokens = config.mbs * seq
    yield from _gemms(model, config, tokens)
    yield _item("attention", _attention_sizes(model, config, seq))
    if model.is_moe:
        yield _experts(model, config, tokens)
    width = model.hidden_size // (config.tp if config.sequence_parallel else 1)
    yield _item("elementwise", {"elements": tokens * max(width, 1)}, dtype=_dtype(config))
    yield _item("optimizer", {"parameters": _local_parameters(model, config)})
    yield from _collectives(model, config, tokens, node)
    yield from _layers(model, config, seq)


def _item(kind: str, sizes: Mapping[str, int], variant: str = "", dtype: str = "bf16") -> PlanItem:
    """An item; sizes that the kind has and that are not given are 0."""
    whole = {name: max(int(sizes.get(name, 0)), 0) for name in KINDS[kind]}
    return PlanItem(kind, whole, dtype, variant)


def _dtype(config: TrainingConfig) -> str:
    """Format in which operators of 16 or 32 bit are measured; 8 and 4 bit move with 16."""
    return "fp32" if config.precision is Precision.FP32 else "bf16"


def _gemms(model: Model, config: TrainingConfig, tokens: int) -> Iterator[PlanItem]:
    """Linear layers forward, and the weight gradient of the widest."""
    hidden, tp = model.hidden_size, config.tp
    shapes: list[tuple[int, int]] = []
    heads = model.num_attention_heads // tp
    if model.mla is None:
        groups = max(model.num_query_groups // tp, 1)
        shapes += [
            ((heads + 2 * groups) * model.head_dim, hidden),
            (hidden, heads * model.head_dim),
        ]
    else:
        mla = model.mla
        wide = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        shapes += [
            (mla.q_lora_rank, hidden),
            (heads * wide, mla.q_lora_rank or hidden),
            (mla.kv_lora_rank + mla.qk_rope_head_dim, hidden),
            (heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank),
            (hidden, heads * mla.v_head_dim),
        ]
    widths = [] if model.is_moe and not model.dense_layers else [model.ffn_hidden_size]
    widths += [model.shared_expert_ffn] if model.shared_expert_ffn else []
    for ffn in widths:
        up = ffn // tp * (2 if model.gated_mlp else 1)
        shapes += [(up, hidden), (hidden, ffn // tp)]
    shapes.append((model.vocab_size // tp, hidden))
    for n, k in shapes:
        if n > 0 and k > 0:
            yield _item("gemm", {"m": tokens, "n": n, "k": k}, dtype=_dtype(config))
    n, k = max(shapes, key=lambda shape: shape[0] * shape[1])
    yield _item("gemm", {"m": n, "n": k, "k": tokens}, dtype=_dtype(config))


def _attention_sizes(model: Model, config: TrainingConfig, seq: int) -> dict[str, int]:
    heads = max(model.num_attention_heads // config.tp, 1)
    groups = max(model.num_query_groups // config.tp, 1)
    wide = value = model.head_dim
    if model.mla is not None:
        wide = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
        value, groups = model.mla.v_head_dim, heads
    return {
        **{"batch": config.mbs, "seq": seq, "heads": heads, "kv_heads": groups},
        **{"head_dim_qk": wide, "head_dim_v": value},
    }


def _experts(model: Model, config: TrainingConfig, tokens: int) -> PlanItem:
    rows = tokens * model.moe_topk * config.etp // config.tp
    sizes = {
        "experts": max(model.num_experts // config.ep, 1),
        "rows": max(rows, 1),
        "hidden": model.hidden_size,
        "ffn": max(model.moe_ffn_hidden_size // config.etp, 1),
        "gated": int(model.gated_mlp),
    }
    return _item("grouped_gemm", sizes)


def _local_parameters(model: Model, config: TrainingConfig) -> int:
    """Parameters whose optimizer runs on one rank, up to where the rate is settled."""
    shards = config.tp * config.pp * (1 if config.sharding is Sharding.NONE else 8)
    return min(max(model.total_parameters() // shards, 2**20), MAX_PARAMETERS)


def _collectives(
    model: Model, config: TrainingConfig, tokens: int, node: Node
) -> Iterator[PlanItem]:
    """What the ranks exchange, over the GPUs that are there; between nodes where there are two."""
    volume = tokens * model.hidden_size * 2
    wanted: list[tuple[str, int, int]] = []
    if config.tp > 1:
        wanted += [("all_gather", volume, config.tp), ("reduce_scatter", volume, config.tp)]
    if model.is_moe and config.ep > 1:
        wanted.append(("all_to_all", volume // config.tp * model.moe_topk, config.ep))
    if config.pp > 1:
        wanted.append(("p2p", volume // (config.tp if config.sequence_parallel else 1), 2))
    gradients = min(model.total_parameters() * 4 // (config.tp * config.pp), MAX_MESSAGE)
    wanted.append(("reduce_scatter", gradients, node.gpus))
    if config.sharding is Sharding.NONE:
        wanted.append(("all_reduce", gradients, node.gpus))
    for variant, size, ranks in wanted:
        message = min(size, MAX_MESSAGE)
        inside = min(ranks, node.gpus)
        if inside > 1 and message > 0:
            yield _exchange(variant, message, inside, node)
        if node.nodes > 1 and message > 0 and ranks >= node.gpus:
            yield _exchange(variant, message, node.gpus * node.nodes, node)


def _exchange(variant: str, message_bytes: int, ranks: int, node: Node) -> PlanItem:
    sizes = {"message_bytes": message_bytes, "ranks": ranks, "ranks_per_node": node.gpus}
    return _item("collective", sizes, variant)


def _layers(model: Model, config: TrainingConfig, seq: int) -> Iterator[PlanItem]:
    """A whole layer of each kind that the model has."""
    sizes = _attention_sizes(model, config, seq) | {
        "hidden": model.hidden_size,
        "gated": int(model.gated_mlp),
    }
    if model.mla is not None:
        sizes |= {
            "q_rank": model.mla.q_lora_rank,
            "kv_rank": model.mla.kv_lora_rank,
            "rope_dim": model.mla.qk_rope_head_dim,
        }
    if not model.is_moe or model.dense_layers:
        yield _item("layer", sizes | {"ffn": max(model.ffn_hidden_size // config.tp, 1)}, "dense")
    if model.is_moe:
        experts = {
            "experts": max(model.num_experts // config.ep, 1),
            "topk": model.moe_topk,
            "expert_ffn": max(model.moe_ffn_hidden_size // config.etp, 1),
            "shared_ffn": model.shared_expert_ffn // config.tp,
        }
        yield _item("layer", sizes | experts, "moe")
