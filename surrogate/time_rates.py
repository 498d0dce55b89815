"""The constants of the time model: what each means and what is believed of it before any data.

Times are in s, the rest is dimensionless. Priors are log-normal: a median and a standard deviation
in log space. A constant varies over levels (GPU, framework ...) by factors around 1, each with a
standard deviation of its own: how much kin is believed to differ. What kernel profiles and data
sheets say is held tight, so that a fit does not bend it to explain what the residual explains; the
software of expert layers is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple, get_type_hints

import numpy as np

from surrogate.cases import Column, Columns

_LESSONS = "assumed: fit of a throw-away prototype on public runs, 2026-11-30"

_PROFILES = "measured: kernel profiles of aiconfigurator 095f58a51 (large sizes)"


@dataclass(frozen=True)
class Belief:
    """Prior of a constant: median, log sd, unit, source, levels with log sd, and upper bound."""

    prior: float
    sd: float
    unit: str
    source: str
    levels: Mapping[str, float]
    most: float = np.inf


def share(prior: float, sd: float, source: str, **levels: float) -> Belief:
    """Belief in a constant between 0 and 1; ``a_x_b`` is the level a/b."""
    return Belief(prior, sd, "", source, _levels(levels), 1.0)


def factor(prior: float, sd: float, unit: str, source: str, **levels: float) -> Belief:
    """Belief in a positive constant."""
    return Belief(prior, sd, unit, source, _levels(levels))


def _levels(levels: Mapping[str, float]) -> dict[str, float]:
    return {name.replace("_x_", "/"): sd for name, sd in levels.items()}


@dataclass(frozen=True)
class TimeRates(Columns):
    """Resolved constants as columns of shape () or (n,). Times in s, the rest dimensionless."""

    # Compute
    gemm_utilisation: Annotated[
        Column,
        factor(
            0.95,
            0.014,
            "of the profiled kernel's rate",
            "assumed: clocks and operands of training against a benchmark",
            architecture=0.022,
            architecture_x_rate=0.022,
            gpu_x_rate=0.018,
            format=0.022,
        ),
    ]
    gemm_utilisation_16bit: Annotated[Column, "gemm_utilisation"]
    stack_efficiency: Annotated[
        Column,
        factor(
            1.0,
            0.007,
            "of Megatron-Bridge kernels",
            _LESSONS,
            framework=0.036,
            framework_x_architecture=0.036,
            release=0.018,
            release_x_kind=0.029,
        ),
    ]
    memory_utilisation: Annotated[
        Column,
        share(0.75, 0.036, "measured: BabelStream on MI300X 0.77-0.80; " + _LESSONS, vendor=0.036),
    ]
    elementwise_passes: Annotated[
        Column, factor(1.0, 0.072, "of the traffic of fused kernels", _LESSONS, framework=0.072)
    ]
    compiled_passes: Annotated[
        Column, share(0.6, 0.3, "assumed: Inductor makes one kernel of each chain of them")
    ]
    quantise_passes: Annotated[
        Column,
        factor(
            1.0,
            0.144,
            "of one read in 16 bit and one write of both layouts in 8 bit",
            "assumed: one cast kernel a GEMM operand",
            format=0.108,
            vendor=0.108,
        ),
    ]
    attention_utilisation: Annotated[
        Column,
        factor(
            1.0,
            0.036,
            "of the profiled kernel's rate",
            "assumed: training kernels against a serving stack",
            architecture=0.1,
            framework=0.15,
            framework_x_architecture=0.1,
        ),
    ]
    unfused_passes: Annotated[
        Column,
        factor(
            1.0, 0.108, "of the traffic of unfused attention scores", "assumed", framework=0.108
        ),
    ]
    attention_backward: Annotated[
        Column, factor(2.9, 0.036, "of the forward time", _LESSONS, vendor=0.054)
    ]
    grouped_utilisation: Annotated[
        Column,
        share(
            0.8,
            0.25,
            "assumed: of the dense GEMM rate, without padding",
            architecture=0.25,
            framework=0.31,
        ),
    ]
    grouped_quantised: Annotated[
        Column,
        factor(
            1.0,
            0.1,
            "of grouped_utilisation where operands have 8 or 4 bit",
            "assumed: like 16 bit",
            architecture=0.1,
        ),
    ]
    grouped_padding: Annotated[
        Column,
        factor(
            250.0,
            0.62,
            "rows lost an expert",
            _LESSONS + " (500 rows; weight traffic is separate)",
            architecture=1.0,
        ),
    ]
    permute_passes: Annotated[Column, factor(1.0, 0.5, "of the traffic", "assumed", framework=0.38)]
    straggle: Annotated[
        Column,
        factor(
            0.004,
            0.4,
            "of the step a doubling of nodes",
            "assumed: the slowest of more GPUs sets the pace",
            framework=0.4,
        ),
    ]
    logits_passes: Annotated[
        Column, factor(1.0, 0.108, "of the traffic", "assumed", framework=0.144)
    ]
    # Host
    host_layer: Annotated[
        Column,
        factor(
            0.37e-3, 0.09, "s a forward layer", _LESSONS, framework=0.108, launched_format=0.072
        ),
    ]
    host_moe: Annotated[
        Column, factor(0.6e-3, 0.5, "s a forward MoE layer", _LESSONS, framework=0.5)
    ]
    host_expert: Annotated[
        Column,
        factor(
            60e-6,
            0.62,
            "s a local expert of a forward layer",
            "assumed: a loop of GEMM and cast launches over local experts",
            framework=0.62,
            launched_rate=0.38,
        ),
    ]
    host_sync: Annotated[
        Column, share(0.5, 0.5, "assumed: of the experts' host time, where the GPU waits for it")
    ]
    host_overlap: Annotated[
        Column,
        factor(
            1.5,
            0.4,
            "of the host time of an MoE layer whose all-to-all is overlapped",
            "assumed: Megatron launches the layers of two microbatches in turns, in many parts",
        ),
    ]
    host_tp: Annotated[Column, factor(0.13e-3, 0.144, "s a forward layer", _LESSONS)]
    host_backward: Annotated[Column, factor(1.2, 0.072, "of the forward host time", "assumed")]
    host_graphs: Annotated[Column, share(0.4, 0.144, _LESSONS)]
    step_constant: Annotated[Column, factor(12e-3, 0.144, "s", _LESSONS, framework=0.144)]
    step_spread: Annotated[
        Column, factor(4e-3, 0.18, "s a doubling of nodes", "assumed: norms, logging, stragglers")
    ]
    # Communication
    link_utilisation: Annotated[
        Column,
        share(
            0.8,
            0.06,
            "measured: 319 of 448 GB/s on MI300X; " + _PROFILES,
            architecture=0.07,
        ),
    ]
    nic_utilisation: Annotated[
        Column,
        share(
            0.8,
            0.11,
            "measured: ROCm two-node floors 41-45 of 50 GB/s",
            vendor=0.07,
            framework=0.11,
        ),
    ]
    link_latency: Annotated[
        Column,
        factor(22e-6, 0.072, "s a collective within a domain", _PROFILES, architecture=0.072),
    ]
    nic_latency: Annotated[Column, factor(30e-6, 0.18, "s a doubling of nodes", "assumed")]
    tp_exposed: Annotated[Column, share(0.75, 0.072, _LESSONS, framework=0.072)]
    tp_exposed_overlap: Annotated[Column, share(0.3, 0.144, _LESSONS)]
    tp_straggle: Annotated[Column, factor(40e-6, 0.18, "s a collective", _LESSONS)]
    cp_exposed: Annotated[Column, share(0.3, 0.18, "assumed: ring steps hide behind attention")]
    cp_imbalance: Annotated[
        Column,
        factor(
            1.1,
            0.072,
            "of the balanced attention time",
            "assumed: chunks of a ring run at lower occupancy",
            framework=0.108,
        ),
    ]
    alltoall_link_utilisation: Annotated[Column, share(0.48, 0.31, _LESSONS, architecture=0.25)]
    alltoall_nic_utilisation: Annotated[
        Column, share(0.6, 0.31, _LESSONS, vendor=0.31, framework=0.31)
    ]
    dispatch_link_utilisation: Annotated[
        Column,
        share(
            0.5,
            0.12,
            "measured: DeepEP dispatch of 8192 tokens on 8 MI355X at 242 of 537 GB/s",
            architecture=0.15,
            framework=0.15,
        ),
    ]
    dispatch_nic_utilisation: Annotated[
        Column, share(0.8, 0.25, "assumed: DeepEP RDMA at 43 of 50 GB/s", framework=0.31)
    ]
    ep_overlap: Annotated[
        Column, share(0.7, 0.38, "assumed: share of hidden all-to-all that costs nothing")
    ]
    p2p_exposed: Annotated[Column, share(0.25, 0.216, _LESSONS, framework=0.18)]
    p2p_straggle: Annotated[
        Column,
        factor(
            100e-6,
            0.216,
            "s a message and microbatch",
            "assumed: launch and wait of a blocking send",
            framework=0.216,
        ),
    ]
    dp_hidden: Annotated[
        Column, share(0.6, 0.144, "assumed: share of backward that hides reduction")
    ]
    dp_exposed: Annotated[Column, share(0.1, 0.18, _LESSONS)]
    fsdp_hidden: Annotated[Column, share(0.84, 0.14, _LESSONS, framework=0.22)]
    fsdp_exposed: Annotated[Column, share(0.1, 0.36, _LESSONS, framework=0.36)]
    coarse_hidden: Annotated[
        Column, share(0.6, 0.3, "assumed: of fsdp_hidden, where many layers are gathered at once")
    ]
    # Pipeline and optimizer
    bubble: Annotated[
        Column, factor(0.95, 0.029, "of the ideal idle time", _LESSONS, schedule=0.036)
    ]
    optimizer_utilisation: Annotated[
        Column, share(0.75, 0.072, "assumed: fused Adam streams its states")
    ]


_FLASH_2 = (
    "assumed: FlashAttention-2, on Hopper 1.5 to 2 times slower than the kernels profiled "
    "(arXiv 2407.08608)"
)


class Known(NamedTuple):
    """A factor known before the fit; ``sd`` in log space where it is not that of its level."""

    factor: float
    source: str
    sd: float | None = None


_EAGER = "assumed: eager PyTorch runs norms, rotary embedding and gates as several kernels each"
_TRAINERS = (
    "assumed: fit of 39 runs of Transformers trainers (fms-acceleration, Qwen, TRL), 2026-12-01: "
    "modelling code launches some 100 kernels a layer, and FSDP waits for it"
)

_AUTOMATIC = (
    "assumed: runs called ZB-2p order their passes automatically within the memory of ZB-H2, and "
    "idle less than half as long as its timetable (arXiv 2401.10241, section 4 and table 5)"
)

KNOWN_FACTORS: dict[str, Known] = {
    "elementwise_passes/torchtitan": Known(1.6, _EAGER, 0.2),
    "elementwise_passes/hugging_face": Known(2.5, _TRAINERS, 0.2),
    "host_layer/hugging_face": Known(6.0, _TRAINERS, 0.3),
    "fsdp_hidden/hugging_face": Known(0.4, _TRAINERS, 0.2),
    "stack_efficiency/hugging_face": Known(0.87, _TRAINERS, 0.05),
    "host_expert/torchtitan": Known(
        2.5, "assumed: without compilation experts run one after another"
    ),
    "attention_utilisation/pytorch_fsdp/hopper": Known(0.6, _FLASH_2),
    "attention_utilisation/torchtitan/hopper": Known(0.6, _FLASH_2),
    "attention_utilisation/hugging_face/hopper": Known(0.6, _FLASH_2),
    "attention_utilisation/deepspeed/hopper": Known(0.6, _FLASH_2),
    "stack_efficiency/nemo": Known(0.96, _LESSONS),
    "stack_efficiency/torchtitan": Known(0.88, _LESSONS),
    "stack_efficiency/pytorch_fsdp": Known(0.80, _LESSONS),
    "link_latency/blackwell": Known(2, _PROFILES),
    "link_latency/blackwell-ultra": Known(2, _PROFILES),
    "cp_imbalance/torchtitan": Known(
        1.3,
        "assumed: PyTorch's ring attention calls a kernel for each chunk of keys and merges its "
        "output into an fp32 sum (torch.distributed.tensor.experimental._attention)",
        0.15,
    ),
    "grouped_utilisation/cdna4": Known(
        0.65,
        "assumed: Primus-Turbo runs 2,048 rows an expert at 0.9 of the dense bf16 rate of MI355X, "
        "loops of stock kernels at half of that",
    ),
    "grouped_padding/cdna4": Known(
        1.8,
        "assumed: 256 rows an expert run at 0.2 (gmm) to 0.25 (Primus-Turbo) of the dense rate of "
        "MI355X, 2,048 at 0.9",
    ),
    "grouped_quantised/cdna4": Known(
        0.6,
        "assumed: loops of scaled GEMMs reach 0.55-0.72 of the best fp8 kernel on MI355X; in stock "
        "stacks fp8 makes Qwen3-30B-A3B 3-8% and Mixtral 8x22B 27% faster than bf16",
    ),
    "fsdp_hidden/maxtext": Known(0.6, "assumed: XLA's combined all-gathers hardly overlap"),
    "grouped_utilisation/maxtext": Known(0.45, _LESSONS + ": padded batches 4x faster per FLOP"),
    "host_layer/maxtext": Known(0.2, "assumed: XLA compiles the whole step"),
    "host_moe/maxtext": Known(0.2, "assumed: XLA compiles the whole step"),
    "host_expert/maxtext": Known(0.1, "assumed: one grouped GEMM kernel"),
    "host_expert/fp8": Known(1.5, "assumed: casts of every expert's operands"),
    "host_expert/fp4": Known(1.5, "assumed: casts of every expert's operands"),
    "host_layer/deepspeed": Known(2.0, _LESSONS),
    "host_layer/megatron_deepspeed": Known(2.0, _LESSONS),
    "p2p_exposed/megatron_deepspeed": Known(2.0, _LESSONS),
    "bubble/zb-h2": Known(0.4, _AUTOMATIC),
    "bubble/zbv": Known(0.5, _LESSONS),
}
"""Factors that were known before the fit, with their source; all others start at 1."""

MEASURED_SD = 0.02
"""Log sd of a known factor whose source is a measurement."""


_HINTS = get_type_hints(TimeRates, include_extras=True)
_NOTES = {f.name: _HINTS[f.name].__metadata__[0] for f in fields(TimeRates)}
ALIASES: dict[str, str] = {name: note for name, note in _NOTES.items() if isinstance(note, str)}
"""Columns that resolve another constant for bf16 whatever the format of the row is."""
BELIEFS: dict[str, Belief] = {n: b for n, b in _NOTES.items() if isinstance(b, Belief)}
"""Global constants."""
RATE_COLUMNS = tuple(_NOTES)
