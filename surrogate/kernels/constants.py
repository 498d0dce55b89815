"""Kernel constants of any GPU: fitted where it was profiled, carried from its data sheet elsewhere.

``surrogate/data/kernels.json`` holds what ``surrogate.kernels.fitting`` fitted, with the data
sheets that it was fitted against, sources and the hash of the data.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specs.errors import InputError
from specs.gpu import Gpu
from surrogate.kernels.correction import Correction, read_correction
from surrogate.kernels.laws import LAWS, format_of
from surrogate.kernels.sheets import FORMATS, KernelSheet, sheet_of
from surrogate.kernels.transfer import carried
from surrogate.kernels.utilisation import (
    AttentionConstants,
    CollectiveConstants,
    DispatchConstants,
    ElementwiseConstants,
    GemmConstants,
    GroupedGemmConstants,
)

SCHEMA_VERSION = 1
DATA = Path(__file__).parents[1] / "data"
KERNELS = DATA / "kernels.json"
CORRECTIONS = DATA / "kernel_corrections.json.gz"

Table = dict[str, dict[str, dict[str, float]]]
"""Key (format, collective kind or way) -> GPU -> fitted values of one operator."""

STREAM_UTILISATION = {"nvidia": 0.75, "amd": 0.78}
"""Share of the HBM rate that element-wise kernels reach. nvidia: assumed, fitted to training runs
by an earlier model; amd: measured, BabelStream on MI300X 4.09 to 4.26 of 5.3 TB/s
(samuel-bohman/AI-benchmarking-guide, ND_MI300X_v5_results)."""

LAUNCH_LATENCY_S = 3e-6
"""Start and end of one small kernel: the fitted bf16 GEMM latencies of NVIDIA GPUs, 2 to 5 us."""

SCALE_OUT_UTILISATION = {
    "all_reduce": 0.85,
    "all_gather": 0.85,
    "reduce_scatter": 0.85,
    "all_to_all": 0.8,
}
"""Share of the NIC rate that collectives between nodes reach. Assumed: RCCL acceptance floors of
two MI300 nodes (ROCm/cvs rccl_config.json, 330 to 360 of 8 x 50 GB/s; all-to-all 45 to 50 of 50
GB/s), and DeepEP between H100 nodes 0.8."""

SCALE_OUT_LATENCY_S = 2e-5
SCALE_OUT_RANK_LATENCY_S = 4e-6
"""Assumed: a network hop of about 2 us each way and proxy threads."""

SCALE_OUT_RAMP_S = 2e-5
"""At one MB; assumed, three times the fitted ramp of NVLink."""


@dataclass(frozen=True)
class KernelConstants:
    """Constants of every kernel law on one GPU.

    ``gemm``, ``grouped`` and ``attention`` are keyed by kernel format (``kernel_sheets``; grouped
    also ``bf16/nongated``), only those that the GPU has units for; ``scale_up`` and ``scale_out``
    by collective kind; ``dispatch`` by ``dispatch`` and ``combine``. ``origin`` says per operator
    and key whether the values were fitted to this GPU's rows or carried.
    """

    sheet: KernelSheet
    gemm: dict[str, GemmConstants]
    grouped: dict[str, GroupedGemmConstants]
    attention: dict[str, AttentionConstants]
    scale_up: dict[str, CollectiveConstants]
    scale_out: dict[str, CollectiveConstants]
    dispatch: dict[str, DispatchConstants]
    elementwise: ElementwiseConstants
    origin: dict[str, dict[str, str]]


@dataclass(frozen=True)
class KernelBook:
    """Everything fitted: operator -> table, the sheets behind it, the onset of throttling."""

    operators: dict[str, Table]
    sheets: dict[str, KernelSheet]
    onset: float
    rows: dict[str, dict[str, dict[str, int]]]
    data_hash: str
    sources: dict[str, str]

    def values(self, operator: str, key: str, sheet: KernelSheet) -> tuple[dict[str, float], str]:
        """Fitted values for a GPU, and their origin: ``fitted`` to its rows or ``carried``."""
        known = self.operators[operator][key]
        if sheet.name in known:
            rows = self.rows[operator][key].get(sheet.name, 0)
            return known[sheet.name], "fitted" if rows else "carried"
        return carried(LAWS[operator], key, known, self.sheets, sheet, self.onset), "carried"

    def as_json(self) -> dict[str, Any]:
        """Content of ``kernels.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "data_hash": self.data_hash,
            "sources": self.sources,
            "throttle_onset_tflops_per_watt": self.onset,
            "sheets": {name: sheet.as_json() for name, sheet in sorted(self.sheets.items())},
            "rows": self.rows,
            "operators": self.operators,
        }


def book_of(content: Mapping[str, Any], where: str) -> KernelBook:
    """The book of ``KernelBook.as_json``.

    Raises:
        InputError: another schema version, or a part is missing.
    """
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema version {version}, this release reads {SCHEMA_VERSION}; "
            "refit it with python -m surrogate.kernels.fitting."
        )
    try:
        return KernelBook(
            operators=content["operators"],
            sheets={name: KernelSheet(**sheet) for name, sheet in content["sheets"].items()},
            onset=float(content["throttle_onset_tflops_per_watt"]),
            rows=content["rows"],
            data_hash=content["data_hash"],
            sources=content["sources"],
        )
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{where} is incomplete ({error}); refit it with python -m surrogate.kernels.fitting."
        ) from None


def read_book(path: Path = KERNELS) -> KernelBook:
    """The book in a file.

    Raises:
        InputError: the file is missing, no JSON or of another schema.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read kernel constants {path}: {error.strerror}.") from None
    except json.JSONDecodeError as error:
        raise InputError(f"kernel constants {path} are no JSON: {error}.") from None
    return book_of(content, str(path))


@cache
def shipped_book() -> KernelBook:
    """The book that ships with the package."""
    return read_book()


@cache
def shipped_corrections() -> dict[str, Correction]:
    """Operator -> correction that ships with the package."""
    content = json.loads(gzip.decompress(CORRECTIONS.read_bytes()))
    return {name: read_correction(name, model) for name, model in content.items()}


def kernel_constants(gpu: Gpu, book: KernelBook | None = None) -> KernelConstants:
    """Constants of a GPU; what was never profiled is carried from the nearest kin."""
    return constants_of(sheet_of(gpu), book or shipped_book())


def constants_of(sheet: KernelSheet, book: KernelBook) -> KernelConstants:
    """Constants of a data sheet."""
    built: dict[str, dict[str, Any]] = {}
    origin: dict[str, dict[str, str]] = {}
    for operator, law in LAWS.items():
        for key in book.operators[operator]:
            if law.throttled and sheet.peak(format_of(key)) is None:
                continue
            values, how = book.values(operator, key, sheet)
            built.setdefault(operator, {})[key] = law.build(sheet, key, values)
            origin.setdefault(operator, {})[key] = how
    if sheet.peak("fp32") is not None:
        # fp32 was not profiled: the shape of bf16 GEMMs at the fp32 peak.
        values, _ = book.values("gemm", "bf16", sheet)
        built["gemm"]["fp32"] = LAWS["gemm"].build(sheet, "fp32", values)
        origin["gemm"]["fp32"] = "carried"
    return KernelConstants(
        sheet=sheet,
        gemm=built["gemm"],
        grouped=built["moe"],
        attention=built["attention"],
        scale_up=built["collective"],
        scale_out=_scale_out(sheet, built["collective"]),
        dispatch=built["dispatch"],
        elementwise=ElementwiseConstants(
            sheet.hbm_bytes_per_s, STREAM_UTILISATION[sheet.vendor], LAUNCH_LATENCY_S
        ),
        origin=origin,
    )


def _scale_out(
    sheet: KernelSheet, scale_up: Mapping[str, CollectiveConstants]
) -> dict[str, CollectiveConstants]:
    """Collectives between nodes, per GPU with its own NIC; no public profile covers them."""
    return {
        kind: CollectiveConstants(
            bytes_per_s=sheet.nic_bytes_per_s,
            bandwidth_utilisation=SCALE_OUT_UTILISATION[kind],
            latency_s=SCALE_OUT_LATENCY_S,
            rank_latency_s=SCALE_OUT_RANK_LATENCY_S,
            ramp_s=SCALE_OUT_RAMP_S,
            ramp_exponent=constants.ramp_exponent,
        )
        for kind, constants in scale_up.items()
    }


__all__ = ["FORMATS", "KernelBook", "KernelConstants", "kernel_constants", "read_book"]
