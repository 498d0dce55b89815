"""What a data sheet says about a GPU's kernels, and the number formats that kernels come in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from specs.choices import Precision
from specs.gpu import Gpu


@dataclass(frozen=True)
class KernelFormat:
    """Operands of a low-precision GEMM: whose peak bounds it and what moves per element."""

    peak: str  # key of Gpu.peak_flops
    a_bytes: float
    b_bytes: float  # block scales included
    quantise_bytes: float  # per activation element: read in 16 bit, written in the format


FORMATS: dict[str, KernelFormat] = {
    "fp32": KernelFormat("fp32", 4, 4, 0),
    "bf16": KernelFormat("bf16", 2, 2, 0),
    "fp8": KernelFormat("fp8", 1, 1, 3),
    "fp8_block": KernelFormat("fp8", 1, 1, 3),
    "nvfp4": KernelFormat("fp4", 0.5625, 0.5625, 2.5625),
    "w4a16": KernelFormat("bf16", 2, 0.53125, 0),
    "w4a8": KernelFormat("fp8", 1, 0.53125, 3),
}
"""fp8 is scaled per tensor, fp8_block per 128 (or MX 32) elements; w4* have MXFP4 weights."""

_PRECISION_FORMATS = {
    Precision.BF16: "bf16",
    Precision.FP16: "bf16",
    Precision.FP32: "fp32",
    Precision.FP8: "fp8",
    Precision.FP8_CS: "fp8",
    Precision.FP8_SC: "fp8_block",
    Precision.MXFP8: "fp8_block",
    Precision.NVFP4: "nvfp4",
    Precision.MXFP4: "nvfp4",
}


def kernel_format(precision: Precision) -> str:
    """Key of ``FORMATS`` in which a training precision runs its GEMMs."""
    return _PRECISION_FORMATS[precision]


@dataclass(frozen=True)
class KernelSheet:
    """Data-sheet numbers that the kernel laws need; rates per GPU, one direction."""

    name: str
    vendor: str
    architecture: str
    peak_flops: dict[str, float]
    hbm_bytes_per_s: float
    sm_count: float
    power_w: float
    link_bytes_per_s: float
    nic_bytes_per_s: float

    def peak(self, format_name: str) -> float | None:
        """Dense FLOP/s of the format, None if the GPU has no such unit."""
        return self.peak_flops.get(FORMATS[format_name].peak)

    def power_density(self, format_name: str) -> float:
        """Peak per watt, TFLOP/s/W, in bf16 equivalents: how hard power limits the clock.

        One fp8 operation needs about half, one fp4 operation a quarter of the energy of bf16.
        """
        key = FORMATS[format_name].peak
        scale = {"fp32": 2.0, "bf16": 1.0, "fp8": 0.5, "fp4": 0.25}[key]
        return self.peak_flops[key] * scale / self.power_w / 1e12

    def as_json(self) -> dict[str, Any]:
        """Plain values, to ship beside the constants that were fitted against them."""
        return asdict(self)


def sheet_of(gpu: Gpu) -> KernelSheet:
    """The kernel sheet of a catalog GPU."""
    return KernelSheet(
        name=gpu.name,
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        peak_flops={key: each.value for key, each in gpu.peak_flops.items() if each.value > 0},
        hbm_bytes_per_s=gpu.hbm_bytes_per_s.value,
        sm_count=gpu.sm_count.value,
        power_w=gpu.power_w.value,
        link_bytes_per_s=gpu.link_bytes_per_s.value,
        nic_bytes_per_s=gpu.nic_bytes_per_s.value,
    )
