"""Kernel constants of AMD GPUs: levels from the few published measurements, shapes from NVIDIA's.

No public kernel profile of an AMD GPU covers shapes. Each measured operator is fitted with the
carried constants as prior, so that few rows move the level and little else; what was not measured
gets the carried constants times the level that the GPU's GEMMs show. A GPU without measurements
gets the mean level of its vendor. Never peak times a constant: clocks are power-throttled.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from specs.errors import InputError
from surrogate.kernels.laws import ATTENTION, COLLECTIVE, DISPATCH, GEMM, MOE, Law, format_of
from surrogate.kernels.profiles import Columns
from surrogate.kernels.regression import fit_law
from surrogate.kernels.sheets import KernelSheet
from surrogate.kernels.transfer import Fitted, carried
from surrogate.kernels.utilisation import (
    TRAFFIC_ROUNDS,
    attention_forward_time_s,
    dispatch_time_s,
    gemm_time_s,
    grouped_gemm_time_s,
)

Rows = list[dict[str, str]]
Table = dict[str, dict[str, dict[str, float]]]
"""Key -> GPU -> fitted values of one operator."""
Levels = dict[tuple[str, str], float]
"""(GPU, format) -> log of measured over carried utilisation of its GEMMs."""

LAUNCH_BOUND = 3000.0**3
"""m*n*k below which the published fp8 rows take 40 us whatever their size: that is the host."""

_FORMATS = {"bf16": "bf16", "fp8": "fp8", "fp8 (OCP) -> bf16 out": "fp8", "fp16/bf16": "bf16"}
_SIZES = re.compile(r"m=(\d+),n=(\d+),k=(\d+)|M,N,K as listed: (\d+),(\d+),(\d+)|m=n=k=(\d+)")
_GROUPED = re.compile(r"E=(\d+),M=(\d+)\(total\),K=(\d+),N=(\d+)")
_MEGA_MOE = re.compile(r"tokens/rank=(\d+),h=(\d+),I=(\d+),E=(\d+),topk=(\d+),EP(\d+)")
_MESSAGE = re.compile(r"([\d.]+) ?(B|MB|M|G)\b")
_UNITS = {"B": 1.0, "M": 1e6, "MB": 1e6, "G": 1e9}
_BANDWIDTH = re.compile(r"busbw ([\d.]+)")


def read_rows(path: Path) -> Rows:
    """Rows of the AMD kernel table: gpu, kernel, dtype, shape, time_us, tflops, source, note.

    Raises:
        InputError: the file is missing or lacks a column.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise InputError(f"cannot read AMD kernel rows from {path}: {error.strerror}.") from None
    needed = {"gpu", "kernel", "dtype", "shape", "time_us", "tflops", "note"}
    if not rows or not needed <= set(rows[0]):
        raise InputError(f"{path} lacks a column of {', '.join(sorted(needed))}.")
    return rows


def gemm_rows(rows: Rows, gpu: str, key: str) -> Columns:
    """Dense GEMMs of one GPU and format, bare (operands already in the format)."""
    found = []
    for row in rows:
        match = _SIZES.search(row["shape"])
        if row["gpu"] != gpu or _FORMATS.get(row["dtype"]) != key or match is None:
            continue
        if row["kernel"].startswith("gemm") and row["tflops"]:
            cube = [match.group(7)] * 3 if match.group(7) else [g for g in match.groups() if g]
            m, n, k = (float(size) for size in cube)
            if m * n * k >= LAUNCH_BOUND:
                found.append((m, n, k, 2 * m * n * k / (float(row["tflops"]) * 1e12)))
    return _table(("m", "n", "k", "time_s"), found)


def grouped_rows(rows: Rows, gpu: str, key: str) -> Columns:
    """Forward grouped GEMMs: rows per expert, local experts, n, k, time_s."""
    found = []
    for row in rows:
        if row["gpu"] != gpu or row["dtype"] != key or not row["time_us"]:
            continue
        time_s = float(row["time_us"]) * 1e-6
        if row["kernel"].startswith("grouped GEMM fwd") and "loop" not in row["kernel"]:
            if "quant" in row["kernel"] or (match := _GROUPED.search(row["shape"])) is None:
                continue
            experts, total, k, n = (float(size) for size in match.groups())
            found.append((total / experts, experts, n, k, time_s))
        elif row["kernel"].startswith("grouped GEMM only") and " fwd " in row["kernel"]:
            if (match := _MEGA_MOE.search(row["shape"])) is None:
                continue
            tokens, hidden, ffn, experts, topk, ranks = (float(size) for size in match.groups())
            up = "dispatch" in row["kernel"]
            n, k = (2 * ffn, hidden) if up else (hidden, ffn)
            found.append((tokens * topk * ranks / experts, experts / ranks, n, k, time_s))
    return _table(("tokens_per_expert", "num_local_experts", "n", "k", "time_s"), found)


def collective_rows(rows: Rows, gpu: str, kind: str) -> Columns:
    """RCCL collectives over the 8 GPUs of a node; in-training rows only where nothing overlaps.

    Gathers of the embedding at the start of a step stand for undisturbed transfers; those of the
    layers run against compute and are up to a fifth slower.
    """
    name = {"all_to_all": "TransferBench a2a"}.get(kind, f"rccl {kind}")
    found = []
    for row in rows:
        if row["gpu"] != gpu or name not in row["kernel"] or "16 GPU" in row["kernel"]:
            continue
        if "IN-TRAINING" in row["kernel"] and "embed" not in row["kernel"]:
            continue
        busbw = _BANDWIDTH.search(row["note"])
        if kind == "all_to_all":
            # 56 transfers of 64 MB among 8 GPUs; the note gives the effective rate of a GPU.
            message, rate = 512e6, 317e9
            found.append((8.0, message, message * 7 / 8 / rate))
        elif (match := _MESSAGE.search(row["shape"])) is not None:
            message = float(match.group(1)) * _UNITS[match.group(2)]
            if row["time_us"]:
                found.append((8.0, message, float(row["time_us"]) * 1e-6))
            elif busbw:
                traffic = message * TRAFFIC_ROUNDS[kind] * 7 / 8
                found.append((8.0, message, traffic / (float(busbw.group(1)) * 1e9)))
    return _table(("ranks", "message_bytes", "time_s"), found)


def attention_rows(rows: Rows, gpu: str, key: str) -> Columns:
    """Flash attention: the published row states b, s and d; 16 heads and no mask are assumed."""
    found = []
    for row in rows:
        match = re.search(r"b=(\d+),s=(\d+),d=(\d+)", row["shape"])
        if row["gpu"] != gpu or _FORMATS.get(row["dtype"]) != key or match is None:
            continue
        if row["kernel"].startswith("flash attention") and row["tflops"]:
            batch, seq, dim = (float(size) for size in match.groups())
            flops = 4 * batch * 16 * seq * seq * dim
            found.append((batch, seq, 16.0, dim, flops / (float(row["tflops"]) * 1e12)))
    return _table(("batch_size", "seq_len", "num_heads", "head_dim", "time_s"), found)


def dispatch_rows(rows: Rows, gpu: str, way: str) -> Columns:
    """Expert all-to-all of one node in bf16; the kernel may use all CUs."""
    name = {"dispatch": "MoE comm only: dispatch", "combine": "MoE comm only: gg+combine"}[way]
    found = []
    for row in rows:
        match = re.search(r"tokens/rank=(\d+),h=(\d+),topk=(\d+),EP(\d+)", row["shape"])
        if (
            row["gpu"] == gpu
            and row["kernel"].startswith(name)
            and " fwd " in row["kernel"]
            and match
        ):
            tokens, hidden, topk, ranks = (float(size) for size in match.groups())
            found.append((tokens, hidden, topk, ranks, float(row["time_us"]) * 1e-6))
    return _table(("num_token", "hidden_size", "num_topk", "ranks", "time_s"), found)


def _table(names: tuple[str, ...], found: Sequence[tuple[float, ...]]) -> Columns:
    values = np.asarray(found, dtype=np.float64).reshape(len(found), len(names))
    return {name: values[:, i] for i, name in enumerate(names)}


def _bare_gemm(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    return np.asarray(gemm_time_s(rows["m"], rows["n"], rows["k"], c, quantise=False))


def _one_grouped(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    tokens, experts = rows["tokens_per_expert"], rows["num_local_experts"]
    return np.asarray(grouped_gemm_time_s(tokens, experts, rows["n"], rows["k"], c))


def _full_attention(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    batch, seq, heads, dim = (
        rows[name] for name in ("batch_size", "seq_len", "num_heads", "head_dim")
    )
    return np.asarray(
        attention_forward_time_s(batch, seq, seq, heads, heads, dim, dim, c, causal=False)
    )


def _wide_dispatch(rows: Columns, c: Any, key: str) -> npt.NDArray[np.float64]:  # noqa: ARG001
    tokens, hidden, topk, ranks = (
        rows[name] for name in ("num_token", "hidden_size", "num_topk", "ranks")
    )
    return np.asarray(dispatch_time_s(tokens, hidden, topk, 2.0, 1.0, ranks, 256.0, c))


_MEASURED: tuple[tuple[Law, Any], ...] = (
    (replace(GEMM, time=_bare_gemm), gemm_rows),
    (replace(MOE, time=_one_grouped), grouped_rows),
    (replace(ATTENTION, time=_full_attention), attention_rows),
    (COLLECTIVE, collective_rows),
    (replace(DISPATCH, time=_wide_dispatch), dispatch_rows),
)


def fit_amd(
    operators: Mapping[str, Table],
    rows: Rows,
    sheets: Mapping[str, KernelSheet],
    targets: Mapping[str, KernelSheet],
    onset: float,
) -> tuple[dict[str, Table], dict[str, dict[str, dict[str, int]]]]:
    """Constants of the AMD ``targets`` for every operator, and how many rows each rests on.

    Args:
        operators: what the profiled GPUs (``sheets``) were fitted to.
    """
    fitted: dict[str, Table] = {}
    counts: dict[str, dict[str, dict[str, int]]] = {}
    levels: Levels = {}
    for law, reader in _MEASURED:
        table = fitted.setdefault(law.operator, {})
        for key, known in operators[law.operator].items():
            for name, sheet in targets.items():
                if not _runs(law, key, sheet):
                    continue
                prior = _prior(law, key, known, sheets, sheet, onset, levels)
                found = reader(rows, name, key)
                size = len(found["time_s"])
                values = fit_law(law, key, found, sheet, prior) if size else prior
                table.setdefault(key, {})[name] = values
                counts.setdefault(law.operator, {}).setdefault(key, {})[name] = size
                if size and law is _MEASURED[0][0]:
                    ratio = values["utilisation_max"] / prior["utilisation_max"]
                    levels[name, key] = float(np.log(ratio))
        if law is _MEASURED[0][0]:
            _apply_levels(table, counts["gemm"], targets, levels)
        elif law.throttled is None:
            _share_domain(table, counts[law.operator], targets)
    return fitted, counts


def _runs(law: Law, key: str, sheet: KernelSheet) -> bool:
    return law.throttled is None or sheet.peak(format_of(key)) is not None


def _prior(
    law: Law,
    key: str,
    known: Fitted,
    sheets: Mapping[str, KernelSheet],
    sheet: KernelSheet,
    onset: float,
    levels: Levels,
) -> dict[str, float]:
    """Carried constants; all but the GEMMs (fitted first) already at the level of the GPU."""
    prior = carried(law, key, known, sheets, sheet, onset)
    if law.throttled and law.operator != "gemm":
        prior[law.throttled] = min(1.0, prior[law.throttled] * _level(sheet, None, {}, levels))
    return prior


def _level(
    sheet: KernelSheet, key: str | None, targets: Mapping[str, KernelSheet], levels: Levels
) -> float:
    """Measured over carried utilisation of GEMMs, for what was not measured.

    The mean of what the GPU shows in other formats and its architecture in this one; without
    either, the mean of the vendor.
    """
    own = [level for (name, _), level in levels.items() if name == sheet.name]
    kin = [
        level
        for (name, each), level in levels.items()
        if each == key and name in targets and targets[name].architecture == sheet.architecture
    ]
    means = [float(np.mean(logs)) for logs in (own, kin) if logs]
    return float(np.exp(np.mean(means or list(levels.values()) or [0.0])))


def _apply_levels(
    table: Table,
    counts: Mapping[str, Mapping[str, int]],
    targets: Mapping[str, KernelSheet],
    levels: Levels,
) -> None:
    """Brings the GEMM formats that were not measured to the level of those that were."""
    for key, fitted in table.items():
        for name, values in fitted.items():
            if not counts[key][name]:
                level = values["utilisation_max"] * _level(targets[name], key, targets, levels)
                fitted[name] = {**values, "utilisation_max": min(1.0, level)}


def _share_domain(
    table: Table,
    counts: Mapping[str, Mapping[str, int]],
    targets: Mapping[str, KernelSheet],
) -> None:
    """GPUs whose links were not measured get the utilisation and latency of those that were."""
    for key, fitted in table.items():
        measured = [values for name, values in fitted.items() if counts[key][name]]
        if not measured:
            continue
        mean = {
            name: float(np.exp(np.mean([np.log(values[name]) for values in measured])))
            for name in measured[0]
        }
        for name in targets:
            if name in fitted and not counts[key][name]:
                fitted[name] = mean
