"""One row of the measured-runs format: text in, specs and measured values out.

A row is refused with an InputError that names the field; defaults that were applied are counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from specs.balanced_layout import balanced_layout
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
    TrainingKind,
)
from specs.cluster import Cluster
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.gpu import LARGEST, Gpu
from specs.model import Model
from specs.provenance import Quantity
from specs.run_checks import check_batch, check_projectable
from specs.run_stated import unstated_facts
from specs.run_words import (
    FULL_RECOMPUTE_BY_DEFAULT,
    PARALLEL_BLOCKS,
    SEQUENCE_PARALLEL_BY_DEFAULT,
    WITHOUT_MTP,
    Words,
    default_dispatcher,
    default_graphs,
    default_imbalance,
    default_overlap,
    dispatches_behind,
    fuses_loss,
    lacks_fused_attention,
    read_words,
    scales_by_row,
    stack_of,
)
from specs.stack import Framework, Stack
from specs.workload import Workload

FindModel = Callable[[str], Model]
FindGpu = Callable[[str], Gpu]

MODEL_FLOPS_CAUSAL_FROM = (25, 9)
"""Megatron-Bridge counts causal attention once in its TFLOP/s since this container release."""

LARGEST_CONTRADICTION = 0.1
"""By how much tokens/s and step time of a row may differ: of the 359 public runs that print both
the farthest apart differ by 0.4%, which is rounding."""

COUNTERS = ("allocated", "reserved", "active", "device", "allocated-last-rank", "unknown")
GIB = 2**30
BYTES_OF_UNIT = {"gb": 1e9, "gib": float(GIB), "": 1e9}

SCHEDULES: dict[str, Schedule] = {
    **{member.label: member for member in Schedule},
    "zb": Schedule.ZB_H1,
    "zb-1p": Schedule.ZB_H1,
    "zb-2p": Schedule.ZB_H2,
    "zbb": Schedule.ZB_HEURISTIC,
    "zb-v": Schedule.ZBV,
    "zero-bubble": Schedule.ZB_H1,
    "zero-bubble-heuristic": Schedule.ZB_HEURISTIC,
    "zbv-formatted": Schedule.ZBV,
    "1f1b-interleaved": Schedule.INTERLEAVED,
    "interleaved-1f1b": Schedule.INTERLEAVED,
    "interleaved1f1b": Schedule.INTERLEAVED,
    "zbvzerobubble": Schedule.ZBV,
}
"""Schedule labels of the format and of the frameworks."""

LAYERS_A_CHUNK = 2
"""Layers of a virtual stage where a row is interleaved and does not say in how many chunks:
measured, the median of 277 public runs that say so, which have 1 to 8."""


class Run(NamedTuple):
    """One usable row."""

    config: TrainingConfig
    workload: Workload
    cluster: Cluster
    stack: Stack
    row: int
    run_id: str
    source: str
    publisher: str
    model: str
    gpu: str
    vendor: str
    framework: str
    version: str
    tokens_per_s_per_gpu: float
    throughput_from: str
    peak_memory_gib: float
    memory_counter: str
    out_of_memory: bool
    recompute_unknown: bool
    batch_assumed: bool
    unstated: str


def read_row(
    number: int,
    row: dict[str, str],
    find_model: FindModel,
    find_gpu: FindGpu,
    defaults: Counter[str],
) -> Run:
    """One row, or InputError naming the field that makes it unusable."""
    model = find_model(_required(row, "model"))
    gpu = find_gpu(_required(row, "gpu"))
    words = read_words(row["run_id"], row.get("source", ""), row.get("notes", ""))
    precision = _precision(row, gpu, defaults)
    stack = stack_of(
        row.get("framework", ""),
        row.get("framework_version", ""),
        precision,
        row.get("source_date", ""),
        row.get("notes", ""),
    )
    if default_graphs(stack, gpu, words.capacity_factor):
        stack = stack.model_copy(update={"cuda_graphs": True})
    if lacks_fused_attention(stack, gpu, model):
        stack = stack.model_copy(update={"flash_attention": False})
    if not row.get("framework"):
        defaults["framework"] += 1
    sizes = _sizes(row, defaults)
    if _is_dispatched(row):
        sizes["ep"] = _dispatching_ranks(model, gpu, stack, sizes)
    cluster = _cluster(row, gpu, sizes["num_gpus"], words, defaults)
    kind = TrainingKind.parse(row["kind"]) if row.get("kind") else words.kind
    workload = Workload(
        model=_variant(model, stack, words),
        seq_len=_whole(row, "seq_len"),
        global_batch_size=sizes["gbs"],
        kind=kind,
        lora_rank=_whole(row, "lora_rank", words.lora_rank, smallest=0),
        routing_imbalance=words.routing_imbalance or default_imbalance(model, stack, kind),
        capacity_factor=_number(row, "capacity_factor", words.capacity_factor),
        target_tokens=None,
    )
    config, recompute_unknown = _config(row, model, gpu, stack, words, precision, sizes, defaults)
    check_projectable(config, workload, cluster, stack)
    if not config.layout and not config.schedule.is_v_shaped:
        config = config.changed(layout=balanced_layout(workload.model, config.pp, config.vpp))
    tokens_per_s, throughput_from = np.nan, ""
    if row.get("gbs") or config.pp == 1:
        tokens_per_s, throughput_from = _throughput(row, workload, cluster, stack)
    peak_gib, counter = _peak_memory(row)
    # A peak and a printed TFLOP/s are worth what they are without the batch; speed alone needs it.
    if throughput_from != "tflops" and (throughput_from or not np.isfinite(peak_gib)):
        check_batch(sizes["gbs"], sizes["mbs"], sizes["dp"])
    return Run(
        config=config,
        workload=workload,
        cluster=cluster,
        stack=stack,
        row=number,
        run_id=row["run_id"],
        source=row.get("source", ""),
        publisher=publisher_of(row.get("source", "")),
        model=row["model"],
        gpu=gpu.name,
        vendor=gpu.vendor,
        framework=stack.framework_name,
        version=stack.version,
        tokens_per_s_per_gpu=tokens_per_s,
        throughput_from=throughput_from,
        peak_memory_gib=peak_gib,
        memory_counter=counter,
        out_of_memory=row["run_id"].lower().endswith("-oom"),
        recompute_unknown=recompute_unknown,
        batch_assumed=not row.get("gbs"),
        unstated=", ".join(unstated_facts(row, config, sizes["dp"], recompute_unknown)),
    )


_BETWEEN_RANKS = (MoeDispatcher.DEEPEP.label, MoeDispatcher.HYBRIDEP.label)


_PUBLISHER = re.compile(r"[^\s,;]+/[^\s,;/]+|[^,;(]+")


def publisher_of(source: str) -> str:
    """Repository (``owner/name``), paper or site of a source, without file, table or release."""
    first = source.split()[0] if source.split() else ""
    if "/" in first:
        return "/".join(first.split("/")[:2]).rstrip(",;:")
    match = _PUBLISHER.match(source.strip())
    return match[0].strip() if match else "unknown"


def _variant(model: Model, stack: Stack, words: Words) -> Model:
    """The model as this run trains it: with dropout in GPT runs before flash attention, without
    MTP layers where the framework or the source leaves them out."""
    changes: dict[str, Any] = {}
    if not stack.flash_attention and not model.gated_mlp and not model.dropout:
        changes["dropout"] = True
    if model.mtp_layers and (words.without_mtp or stack.framework in WITHOUT_MTP):
        changes["mtp_layers"] = 0
    if any(name in stack.framework_name.lower() for name in PARALLEL_BLOCKS):
        changes |= {"parallel_block": True, "norms_per_layer": 1}
    if not changes:
        return model
    suffix = " ".join(f"{name}={value}" for name, value in changes.items())
    return model.model_copy(update={**changes, "name": f"{model.name} ({suffix})"})


def _sizes(row: dict[str, str], defaults: Counter[str]) -> dict[str, int]:
    """num_gpus, gbs, mbs and the parallel sizes; what the others imply is filled in."""
    sizes = {}
    for name in ("cp", "ep", "vpp"):
        if not row.get(name):
            defaults[name] += 1
        sizes[name] = _whole(row, name, 1)
    stated = {
        name: _whole(row, name) if row.get(name) else 0
        for name in ("num_gpus", "dp", "tp", "pp", "gbs", "mbs")
    }
    _fill_world(stated, sizes["cp"])
    model_parallel = stated["tp"] * stated["pp"] * sizes["cp"]
    if stated["num_gpus"] % model_parallel:
        raise InputError(
            f"num_gpus {stated['num_gpus']} is not a multiple of tp*pp*cp {model_parallel}."
        )
    dp = stated["num_gpus"] // model_parallel
    if not row.get("dp"):
        defaults["dp"] += 1
    elif stated["dp"] != dp:
        raise InputError(
            f"dp {stated['dp']} contradicts num_gpus {stated['num_gpus']} / (tp*pp*cp "
            f"{model_parallel}) = {dp}; correct one of them or leave dp empty."
        )
    if not (stated["gbs"] or stated["mbs"]):
        raise InputError("gbs and mbs are both missing; a projection needs one of them.")
    if not stated["mbs"]:
        defaults["mbs"] += 1
        stated["mbs"] = 1
    if not stated["gbs"]:
        defaults["gbs"] += 1
        stated["gbs"] = stated["mbs"] * dp * (1 if stated["pp"] == 1 else 4 * stated["pp"])
    sizes.update(stated, dp=dp)
    if not row.get("etp"):
        defaults["etp"] += 1
    sizes["etp"] = _whole(row, "etp", sizes["tp"])
    group = sizes["etp"] * sizes["ep"] * sizes["pp"]
    if sizes["num_gpus"] % group:
        # An unstated ETP cannot be TP then: experts are whole.
        if not row.get("etp") and sizes["num_gpus"] % (sizes["ep"] * sizes["pp"]) == 0:
            sizes["etp"] = 1
        else:
            raise InputError(
                f"num_gpus {sizes['num_gpus']} is not a multiple of etp*ep*pp {group}."
            )
    return sizes


def _is_dispatched(row: dict[str, str]) -> bool:
    """Whether a row that leaves EP open names a dispatcher that works between expert ranks only."""
    return not row.get("ep") and row.get("moe_dispatcher", "") in _BETWEEN_RANKS


def _dispatching_ranks(model: Model, gpu: Gpu, stack: Stack, sizes: dict[str, int]) -> int:
    """EP of a row that says how tokens are dispatched, not among how many: the GPUs of a node.

    AutoModel's recipes spread experts over all that FSDP does (examples/benchmark/configs).
    """
    replica = sizes["num_gpus"] // (sizes["etp"] * sizes["pp"])
    over_all = "automodel" in stack.framework_name.lower()
    ranks = replica if over_all else gcd(gpu.gpus_per_node, replica)
    return gcd(ranks, model.num_experts) if model.is_moe else 1


def _fill_world(stated: dict[str, int], cp: int) -> None:
    """One missing size of num_gpus = tp*pp*cp*dp follows from the others."""
    world = ("tp", "pp", "dp")
    known = cp
    for name in world:
        known *= stated[name] or 1
    missing = [name for name in world if not stated[name]]
    if not stated["num_gpus"]:
        if missing:
            raise InputError("num_gpus is missing and does not follow from tp, pp, cp and dp.")
        stated["num_gpus"] = known
    layout = [name for name in missing if name != "dp"]
    if len(layout) == 1 and stated["dp"] and stated["num_gpus"] % known == 0:
        stated[layout[0]] = stated["num_gpus"] // known
    elif layout:
        raise InputError(f"{layout[0]} is missing and does not follow from the other sizes.")


def _cluster(
    row: dict[str, str], gpu: Gpu, num_gpus: int, words: Words, defaults: Counter[str]
) -> Cluster:
    """Whole nodes that hold exactly num_gpus, with the network that the row states."""
    if not row.get("gpus_per_node"):
        defaults["gpus_per_node"] += 1
    per_node = min(_whole(row, "gpus_per_node", gpu.gpus_per_node), num_gpus)
    per_node = gcd(per_node, num_gpus)
    if words.node_bytes_per_s:
        stated = Quantity(
            value=words.node_bytes_per_s / gpu.gpus_per_node,
            kind="vendor",
            source="the run's notes",
        )
        gpu = gpu.model_copy(update={"nic_bytes_per_s": stated})
    return Cluster(
        name="",
        gpu=gpu,
        num_nodes=num_gpus // per_node,
        gpus_per_node=per_node,
        price_usd_per_gpu_hour=None,
    )


def _config(
    row: dict[str, str],
    model: Model,
    gpu: Gpu,
    stack: Stack,
    words: Words,
    precision: Precision,
    sizes: dict[str, int],
    defaults: Counter[str],
) -> tuple[TrainingConfig, bool]:
    """The TrainingConfig of a row and whether its recompute is unknown."""
    family = stack.framework
    sharding = _choice(row, "sharding", Sharding, Sharding.NONE, defaults)
    if family is Framework.MAXTEXT and sharding is Sharding.NONE and sizes["ep"] > 1:
        # MaxText shards weights over its expert axis as well (base.yml, logical_axis_rules).
        sharding = Sharding.FSDP
    sequence_parallel = _sequence_parallel(row, family, model.is_moe, sizes["tp"], defaults)
    schedule, vpp = _schedule(row, sizes["pp"], sizes["vpp"], model.num_layers, words, defaults)
    recompute, unknown = _recompute(row, family, defaults)
    layers = _whole(row, "recompute_layers", 0, smallest=0)
    usual = default_overlap(stack, sharding, sizes["tp"], sequence_parallel)
    if model.is_moe and dispatches_behind(stack, gpu, words.capacity_factor):
        usual |= Overlap.EP
    overlap = _overlap(row, usual, words, defaults)
    dispatcher = default_dispatcher(stack, gpu, words.capacity_factor)
    modules = row.get("recompute_modules") or words.recompute_modules
    layout = row.get("layout") or words.layout
    config = TrainingConfig(
        tp=sizes["tp"],
        pp=sizes["pp"],
        vpp=vpp,
        layout="" if layout == "even" else layout,
        cp=sizes["cp"],
        ep=sizes["ep"] if model.is_moe else 1,
        etp=sizes["etp"] if model.is_moe else 1,
        mbs=sizes["mbs"],
        schedule=schedule,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        recompute_method=_method(row, recompute, layers),
        recompute_layers=(layers or 1) if recompute is Recompute.FULL else 0,
        recompute_modules=_modules(recompute, modules),
        moe_dispatcher=_choice(row, "moe_dispatcher", MoeDispatcher, dispatcher, defaults),
        sync_free_stage=_whole(row, "sync_free_stage", words.sync_free_stage, smallest=0),
        precision=precision,
        sharding=sharding,
        cross_entropy_fusion=fuses_loss(stack.framework_name, words),
        overlap=overlap,
    )
    return config, unknown


def _overlap(row: dict[str, str], usual: Overlap, words: Words, defaults: Counter[str]) -> Overlap:
    """What is overlapped: as stated, or what is ``usual`` for the framework and what words say."""
    if row.get("overlap"):
        return Overlap.parse(row["overlap"])
    defaults["overlap"] += 1
    return usual | words.overlapped


def _precision(row: dict[str, str], gpu: Gpu, defaults: Counter[str]) -> Precision:
    """Number format; where not stated, the 16 bits that the GPU has, bf16 first."""
    text = row.get("precision", "").lower()
    if text in ("", "16-bit", "16bit"):
        defaults["precision"] += 1
        return Precision.BF16 if gpu.supports(Precision.BF16) else Precision.FP16
    precision = Precision.parse(text)
    by_row = precision is Precision.FP8 and scales_by_row(row.get("notes", ""))
    return Precision.FP8_SC if by_row else precision


def _schedule(
    row: dict[str, str],
    pp: int,
    vpp: int,
    num_layers: int,
    words: Words,
    defaults: Counter[str],
) -> tuple[Schedule, int]:
    """Schedule and chunks a rank: the label, or 1F1B, interleaved with more than one chunk."""
    text = row.get("schedule", "").lower()
    if text and text not in SCHEDULES:
        raise InputError(f"schedule {text!r} is unknown; use one of {', '.join(SCHEDULES)}.")
    if pp == 1:
        return Schedule.ONE_F_ONE_B, 1
    if not text:
        defaults["schedule"] += 1
    schedule = SCHEDULES.get(text, Schedule.ONE_F_ONE_B)
    if text == "zb" and words.two_p_zero_bubble:
        schedule = Schedule.ZB_H2
    if schedule.is_v_shaped:
        return schedule, 2
    if schedule.splits_weight_gradient or schedule is Schedule.GPIPE:
        return schedule, 1
    if schedule is Schedule.INTERLEAVED and not row.get("vpp"):
        layers = num_layers // pp
        vpp = max(layers // LAYERS_A_CHUNK, min(layers, 2))
    return (Schedule.INTERLEAVED, vpp) if vpp > 1 else (Schedule.ONE_F_ONE_B, 1)


def _recompute(
    row: dict[str, str], family: Framework, defaults: Counter[str]
) -> tuple[Recompute, bool]:
    """Granularity and whether it is unknown; some families recompute in full by default."""
    if row.get("recompute"):
        return Recompute.parse(row["recompute"]), False
    defaults["recompute"] += 1
    if family in FULL_RECOMPUTE_BY_DEFAULT:
        return Recompute.FULL, False
    return Recompute.NONE, True


def _method(row: dict[str, str], recompute: Recompute, layers: int) -> RecomputeMethod:
    """As stated; else block where more than one layer is stated, or every layer on its own."""
    if recompute is not Recompute.FULL:
        return RecomputeMethod.NONE
    if row.get("recompute_method", "none") != "none":
        return RecomputeMethod.parse(row["recompute_method"])
    return RecomputeMethod.BLOCK if layers > 1 else RecomputeMethod.UNIFORM


def _modules(recompute: Recompute, text: str) -> RecomputeModules:
    """Modules of selective recomputation; Megatron's default is core attention."""
    if recompute is not Recompute.SELECTIVE:
        return RecomputeModules.NONE
    return RecomputeModules.parse(text) or RecomputeModules.CORE_ATTN


def _sequence_parallel(
    row: dict[str, str], family: Framework, is_moe: bool, tp: int, defaults: Counter[str]
) -> bool:
    """As stated; else on with TP where experts need it (Megatron refuses to train without it,
    ``moe_layer.py``) or where the recipes of the family switch it on."""
    text = row.get("sequence_parallel", "").lower()
    if text in ("1", "1.0", "true", "yes", "on"):
        return True
    if text in ("0", "0.0", "false", "no", "off", "none"):
        return False
    if text:
        raise InputError(f"sequence_parallel is {text!r}; use 1 or 0.")
    defaults["sequence_parallel"] += 1
    return tp > 1 and (is_moe or family in SEQUENCE_PARALLEL_BY_DEFAULT)


def _throughput(
    row: dict[str, str], workload: Workload, cluster: Cluster, stack: Stack
) -> tuple[float, str]:
    """Measured tokens/s/GPU and the column that it comes from.

    Raises:
        InputError: a value is none, or tokens/s and step time contradict each other.
    """
    tokens_per_s = _result(row, "tokens_per_s_per_gpu")
    step_time_s = _result(row, "step_time_s")
    by_step = 0.0
    if step_time_s:
        by_step = workload.tokens_per_step / step_time_s / cluster.num_gpus
    if tokens_per_s and by_step and row.get("gbs"):
        _check_agreement(row, tokens_per_s, by_step)
    if tokens_per_s:
        return tokens_per_s, "tokens"
    if step_time_s:
        return by_step, "step"
    tflops = _result(row, "tflops_per_gpu")
    if tflops:
        causal = counts_causal_attention(stack)
        flops = model_flops_per_token(workload.model, workload.seq_len, causal)
        return tflops * 1e12 / flops, "tflops"
    return np.nan, ""


def _check_agreement(row: dict[str, str], tokens_per_s: float, by_step: float) -> None:
    """Refuses tokens/s/GPU that differ from what the step time implies by more than
    LARGEST_CONTRADICTION."""
    if max(tokens_per_s, by_step) > (1 + LARGEST_CONTRADICTION) * min(tokens_per_s, by_step):
        raise InputError(
            f"tokens_per_s_per_gpu {row['tokens_per_s_per_gpu']} and step_time_s "
            f"{row['step_time_s']} contradict each other: with gbs {row['gbs']} and seq_len "
            f"{row['seq_len']} the step time means {by_step:,.1f} tokens/s/GPU; correct one of "
            "them or leave one empty."
        )


def counts_causal_attention(stack: Stack) -> bool:
    """Whether the TFLOP/s that this stack prints count attention above the diagonal as skipped."""
    if stack.framework is not Framework.MEGATRON_BRIDGE:
        return False
    release = re.match(r"(\d+)\.(\d+)", stack.version)
    return not release or (int(release[1]), int(release[2])) >= MODEL_FLOPS_CAUSAL_FROM


def model_flops_per_token(model: Model, seq_len: int, causal: bool) -> float:
    """FLOPs of forward and backward per token without recomputation (Megatron's formula).

    Six per parameter that multiplies a token (embedding look-ups are none, the output layer is
    one) and 12*heads*width*s per layer for attention, half of it where ``causal``.
    """
    multiplied = model.active_parameters() - model.embedding_parameters()
    multiplied += model.embedding_parameters() if model.tied_embeddings else 0
    width = float(model.head_dim)
    if model.mla:
        qk = model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim
        width = (qk + model.mla.v_head_dim) / 2
    keys = np.full(model.num_layers, float(seq_len) / (2 if causal else 1))
    if model.sliding_window:
        keys[: model.window_layers] = np.minimum(keys[: model.window_layers], model.sliding_window)
    attention = 12.0 * model.num_attention_heads * width * float(keys.sum())
    return 6.0 * multiplied + attention


def _peak_memory(row: dict[str, str]) -> tuple[float, str]:
    """Measured peak in GiB and its counter; NaN and "" where not stated."""
    peak = _result(row, "peak_mem_gb")
    if not peak:
        return np.nan, ""
    unit = row.get("memory_unit", "").lower()
    if unit not in BYTES_OF_UNIT:
        raise InputError(f"memory_unit {unit!r} is unknown; use GB or GiB.")
    counter = row.get("memory_counter", "").lower() or "unknown"
    if counter not in COUNTERS:
        raise InputError(f"memory_counter {counter!r} is unknown; use {', '.join(COUNTERS)}.")
    return peak * BYTES_OF_UNIT[unit] / GIB, counter


def _result(row: dict[str, str], name: str) -> float:
    """A measured value; 0 where it is not stated.

    Raises:
        InputError: the value is no number, or not one of this world.
    """
    value = _number(row, name, 0.0)
    if value and not 1 / LARGEST < value < LARGEST:
        raise InputError(
            f"{name} is {row[name]!r}, which nothing measures; check the unit or leave it empty."
        )
    return value


def _required(row: dict[str, str], name: str) -> str:
    if not row.get(name):
        raise InputError(f"{name} is missing.")
    return row[name]


def _number(row: dict[str, str], name: str, default: float) -> float:
    text = row.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{name} is {text!r}; use a number.") from None
    if not np.isfinite(number) or number < 0:
        raise InputError(f"{name} is {text!r}; use a number that is not negative.")
    return number


def _whole(row: dict[str, str], name: str, default: int | None = None, smallest: int = 1) -> int:
    if not row.get(name):
        if default is None:
            raise InputError(f"{name} is missing.")
        return default
    number = _number(row, name, 0.0)
    if number != int(number) or not smallest <= number < 2**31:
        raise InputError(
            f"{name} is {row[name]!r}; use a whole number from {smallest} to {2**31 - 1:,}."
        )
    return int(number)


def _choice(row: dict[str, str], name: str, kind: Any, default: Any, defaults: Counter[str]) -> Any:
    if not row.get(name):
        defaults[name] += 1
        return default
    return kind.parse(row[name])
