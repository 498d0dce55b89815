"""Kernel constants of every row, by GPU and number format, as columns."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from specs.choices import Precision
from specs.errors import InputError
from specs.gpu import Gpu
from surrogate.cases import Cases, Column
from surrogate.kernels.analytic import VALUES, without_profiles
from surrogate.kernels.constants import kernel_constants
from surrogate.kernels.laws import LAWS
from surrogate.kernels.sheets import sheet_of
from surrogate.kernels.utilisation import AttentionConstants, GemmConstants, stack_constants

KERNEL_FORMATS = {
    Precision.BF16: "bf16",
    Precision.FP16: "bf16",
    Precision.FP32: "fp32",
    Precision.FP8: "fp8",
    Precision.FP8_CS: "fp8",
    Precision.FP8_SC: "fp8_block",
    Precision.MXFP8: "fp8",
    Precision.NVFP4: "nvfp4",
    Precision.MXFP4: "nvfp4",
}
"""Format of the kernel profiles whose GEMMs a recipe runs."""


def gemm_constants(cases: Cases, precision: Column) -> GemmConstants:
    """Constants of the GEMMs of every row, fields of shape () or (n,).

    Args:
        cases: n rows.
        precision: Precision codes, shape () or (n,).

    Raises:
        InputError: a GPU does not multiply in the format of a row.
    """
    code = cases.cluster.gpu * len(Precision) + precision
    used = np.unique(code)
    tables = []
    for each in used.tolist():
        gpu = cases.gpus[each // len(Precision)]
        tables.append(_of_gpu(gpu.model_dump_json(), each % len(Precision), without_profiles()))
    return stack_constants(tables, np.searchsorted(used, code))


def attention_constants(cases: Cases) -> AttentionConstants:
    """Constants of 16-bit attention of every row, fields of shape () or (n,)."""
    tables = [_attention_of_gpu(gpu.model_dump_json(), without_profiles()) for gpu in cases.gpus]
    return stack_constants(tables, np.asarray(cases.cluster.gpu))


@lru_cache(maxsize=256)
def _attention_of_gpu(gpu_json: str, analytic: bool) -> AttentionConstants:
    gpu = Gpu.model_validate_json(gpu_json)
    if analytic:
        built: AttentionConstants = LAWS["attention"].build(
            sheet_of(gpu), "bf16", VALUES["attention"]
        )
        return built
    return kernel_constants(gpu).attention["bf16"]


@lru_cache(maxsize=256)
def _of_gpu(gpu_json: str, precision: int, analytic: bool) -> GemmConstants:
    gpu = Gpu.model_validate_json(gpu_json)
    label = Precision.labels()[precision]
    table = kernel_constants(gpu).gemm
    kernel_format = KERNEL_FORMATS[list(Precision)[precision]]
    if kernel_format not in table:
        raise InputError(
            f"{gpu.name} does not multiply in {label}; set precision to one of "
            f"{', '.join(gpu.precisions)}."
        )
    if analytic:
        built: GemmConstants = LAWS["gemm"].build(sheet_of(gpu), kernel_format, VALUES["gemm"])
        return built
    return table[kernel_format]
