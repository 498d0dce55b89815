"""Which constants of a kernel law are fitted, in which range, and how a profile row is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from surrogate.kernels.profiles import Columns
from surrogate.kernels.sheets import FORMATS, KernelSheet
from surrogate.kernels.utilisation import (
    TRAFFIC_ROUNDS,
    AttentionConstants,
    CollectiveConstants,
    DispatchConstants,
    GemmConstants,
    GroupedGemmConstants,
    attention_forward_time_s,
    collective_time_s,
    dispatch_time_s,
    gemm_time_s,
    mean_attended_keys,
    moe_forward_time_s,
)


@dataclass(frozen=True)
class Parameter:
    """A fitted constant: where the search starts, its bounds, its spread across GPUs (log)."""

    name: str
    start: float
    low: float
    high: float
    spread: float


@dataclass(frozen=True)
class Law:
    """An operator's law bound to its profile table.

    ``throttled`` names the parameter that power limits. ``build`` makes the constants of one GPU
    and key (format, collective kind, way) from fitted values; ``time`` times profile rows;
    ``light`` is their speed of light, the time that no kernel can beat.
    """

    operator: str
    key_column: str
    parameters: tuple[Parameter, ...]
    throttled: str | None
    build: Callable[[KernelSheet, str, dict[str, float]], Any]
    time: Callable[[Columns, Any, str], npt.NDArray[np.float64]]
    light: Callable[[Columns, Any, str], npt.NDArray[np.float64]]


def format_of(key: str) -> str:
    """The number format of a key such as ``bf16/nongated``."""
    return key.split("/")[0]


def _gemm_sheet(sheet: KernelSheet, key: str) -> dict[str, float]:
    name = format_of(key)
    form = FORMATS[name]
    return {
        "peak_flops": sheet.peak_flops[form.peak],
        "hbm_bytes_per_s": sheet.hbm_bytes_per_s,
        "sm_count": sheet.sm_count,
        "operand_a_bytes": form.a_bytes,
        "operand_b_bytes": form.b_bytes,
        "output_bytes": 4.0 if name == "fp32" else 2.0,
    }


def _build_gemm(sheet: KernelSheet, key: str, values: dict[str, float]) -> GemmConstants:
    quantise = FORMATS[format_of(key)].quantise_bytes
    return GemmConstants(**_gemm_sheet(sheet, key), quantise_bytes=quantise, **values)


def _build_grouped(sheet: KernelSheet, key: str, values: dict[str, float]) -> GroupedGemmConstants:
    return GroupedGemmConstants(**_gemm_sheet(sheet, key), **values)


def _build_attention(sheet: KernelSheet, key: str, values: dict[str, float]) -> AttentionConstants:
    # Q, K, V come in and the output leaves in 16 bit also where the matmuls are fp8.
    return AttentionConstants(
        peak_flops=sheet.peak_flops[FORMATS[key].peak],
        hbm_bytes_per_s=sheet.hbm_bytes_per_s,
        sm_count=sheet.sm_count,
        element_bytes=2.0,
        **values,
    )


def _build_collective(
    sheet: KernelSheet,
    key: str,  # noqa: ARG001
    values: dict[str, float],
) -> CollectiveConstants:
    return CollectiveConstants(bytes_per_s=sheet.link_bytes_per_s, **values)


def _build_dispatch(
    sheet: KernelSheet,
    key: str,  # noqa: ARG001
    values: dict[str, float],
) -> DispatchConstants:
    return DispatchConstants(
        link_bytes_per_s=sheet.link_bytes_per_s, nic_bytes_per_s=sheet.nic_bytes_per_s, **values
    )


def _array(value: Any) -> npt.NDArray[np.float64]:
    return np.asarray(value, dtype=np.float64)


def _time_gemm(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    return _array(gemm_time_s(rows["m"], rows["n"], rows["k"], c))


def _time_attention(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    return _array(
        attention_forward_time_s(
            rows["batch_size"],
            rows["seq_len"],
            rows["seq_len"],
            rows["num_heads"],
            rows["num_key_value_heads"],
            rows["head_dim"],
            rows["head_dim"],
            c,
            window=rows["window_size"],
        )
    )


def _time_moe(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:
    time_s = np.empty(len(rows["num_tokens"]))
    for exponent in np.unique(rows["exponent"]):
        at = rows["exponent"] == exponent
        time_s[at] = moe_forward_time_s(
            tokens=rows["num_tokens"][at],
            hidden_size=rows["hidden_size"][at],
            ffn_size=rows["ffn_size"][at],
            topk=rows["topk"][at],
            num_experts=rows["num_experts"][at],
            expert_parallel=rows["moe_ep_size"][at],
            c=c,
            gated=not key.endswith("/nongated"),
            exponent=float(exponent),
        )
    return time_s


def _time_collective(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:
    return _array(collective_time_s(key, rows["message_bytes"], rows["ranks"], c))


def _time_dispatch(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:
    width = 1.0 + 4.0 / 128 if key == "dispatch" else 2.0  # fp8 with a scale per 128; bf16
    names = ("num_token", "hidden_size", "num_topk")
    tokens, hidden, topk = (rows[name] for name in names)
    return _array(
        dispatch_time_s(tokens, hidden, topk, width, rows["node_num"], 8.0, rows["sms"], c)
    )


def _light_gemm(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    m, n, k = rows["m"], rows["n"], rows["k"]
    moved = k * (m * c.operand_a_bytes + n * c.operand_b_bytes) + m * n * c.output_bytes
    return _array(np.maximum(2 * m * n * k / c.peak_flops, moved / c.hbm_bytes_per_s))


def _light_attention(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    seq = rows["seq_len"]
    pairs = seq * mean_attended_keys(seq, seq, True, rows["window_size"])
    return _array(
        4 * rows["batch_size"] * rows["num_heads"] * rows["head_dim"] * pairs / c.peak_flops
    )


def _light_moe(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:
    matrices = 2 if key.endswith("/nongated") else 3
    held = rows["num_tokens"] * rows["topk"] / rows["moe_ep_size"]
    return _array(2 * matrices * held * rows["hidden_size"] * rows["ffn_size"] / c.peak_flops)


def _light_collective(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:
    share = 1 - 1 / rows["ranks"]
    return _array(TRAFFIC_ROUNDS[key] * share * rows["message_bytes"] / c.bytes_per_s)


def _light_dispatch(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:
    ideal = replace(
        c,
        link_utilisation=1.0,
        nic_utilisation=1.0,
        sm_bytes_per_s=c.link_bytes_per_s,
        latency_s=0.0,
        node_latency_s=0.0,
    )
    return _time_dispatch(rows, ideal, key)


GEMM = Law(
    "gemm",
    "format",
    (
        Parameter("utilisation_max", 0.75, 0.05, 1.0, 0.4),
        Parameter("tile_overhead", 3.0, 0.5, 60.0, 0.7),
        Parameter("wave_quantisation", 0.4, 0.02, 1.0, 0.4),
        Parameter("prologue_k", 90.0, 1.0, 2000.0, 0.6),
        Parameter("memory_utilisation", 0.65, 0.1, 1.0, 0.2),
        Parameter("overlap_loss", 0.1, 0.01, 1.0, 0.7),
        Parameter("latency_s", 3e-6, 1e-7, 5e-5, 0.4),
        Parameter("quantise_utilisation", 0.45, 0.05, 1.0, 0.3),
        Parameter("quantise_latency_s", 3e-6, 1e-7, 2e-5, 0.4),
    ),
    "utilisation_max",
    _build_gemm,
    _time_gemm,
    _light_gemm,
)

ATTENTION = Law(
    "attention",
    "format",
    (
        Parameter("utilisation_max", 0.85, 0.05, 1.0, 0.4),
        Parameter("softmax_dim", 70.0, 1.0, 600.0, 0.4),
        Parameter("prologue_keys", 500.0, 10.0, 3000.0, 0.5),
        Parameter("window_keys", 300.0, 1.0, 2000.0, 0.5),
        Parameter("wave_quantisation", 0.2, 0.01, 1.0, 0.7),
        Parameter("tail", 0.6, 0.01, 1.0, 0.5),
        Parameter("memory_passes", 1.3, 1.0, 20.0, 0.3),
        Parameter("latency_s", 1.5e-5, 1e-7, 1e-4, 0.4),
    ),
    "utilisation_max",
    _build_attention,
    _time_attention,
    _light_attention,
)

MOE = Law(
    "moe",
    "format",
    (
        Parameter("utilisation_max", 0.6, 0.03, 0.85, 0.3),
        Parameter("wave_quantisation", 0.5, 0.02, 1.0, 0.5),
        Parameter("prologue_k", 100.0, 1.0, 3000.0, 1.0),
        Parameter("memory_utilisation", 0.8, 0.1, 1.0, 0.2),
        Parameter("overlap_loss", 0.15, 0.01, 1.0, 0.7),
        Parameter("padding_balanced", 0.5, 0.01, 6.0, 0.7),
        Parameter("padding_skewed", 0.5, 0.01, 6.0, 0.7),
        Parameter("latency_s", 3e-5, 1e-6, 3e-4, 0.4),
        Parameter("expert_latency_s", 1e-7, 1e-10, 5e-6, 1.0),
        Parameter("token_passes", 4.0, 0.05, 40.0, 0.6),
        Parameter("row_passes", 3.0, 0.05, 40.0, 0.6),
        Parameter("skew_low", 0.3, 0.02, 0.8, 0.2),
        Parameter("skew_high", 0.4, 0.02, 0.9, 0.2),
    ),
    "utilisation_max",
    _build_grouped,
    _time_moe,
    _light_moe,
)

COLLECTIVE = Law(
    "collective",
    "kind",
    (
        Parameter("bandwidth_utilisation", 0.85, 0.1, 1.0, 0.15),
        Parameter("latency_s", 7e-6, 1e-7, 1e-4, 0.4),
        Parameter("rank_latency_s", 1e-6, 1e-8, 1e-5, 0.6),
        Parameter("ramp_s", 5e-6, 1e-8, 6e-5, 0.5),
        Parameter("ramp_exponent", 0.6, 0.2, 0.9, 0.15),
    ),
    None,
    _build_collective,
    _time_collective,
    _light_collective,
)

DISPATCH = Law(
    "dispatch",
    "way",
    (
        Parameter("link_utilisation", 0.6, 0.1, 1.0, 0.3),
        Parameter("nic_utilisation", 0.85, 0.1, 1.0, 0.2),
        Parameter("sm_bytes_per_s", 2e10, 1e9, 2e11, 0.4),
        Parameter("latency_s", 4e-5, 1e-6, 3e-4, 0.4),
        Parameter("node_latency_s", 1e-5, 1e-7, 1e-4, 0.6),
    ),
    None,
    _build_dispatch,
    _time_dispatch,
    _light_dispatch,
)

LAWS = {law.operator: law for law in (GEMM, ATTENTION, MOE, COLLECTIVE, DISPATCH)}
