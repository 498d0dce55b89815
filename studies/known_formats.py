"""Number formats that measured runs are known of, by vendor of the GPU."""

from __future__ import annotations

import numpy as np

from specs import catalog
from specs.choices import Precision
from specs.gpu import Gpu
from surrogate.features import FEATURES
from surrogate.learned import Learned

_WIDTH = {"fp8": "eight_bit", "fp4": "four_bit"}
"""Format of GEMMs -> the coordinate of a fact that says so; the wider formats have none."""


def runs_of_format(learned: Learned, precision: Precision, gpu: Gpu) -> int:
    """How many measured runs of the GEMM format of ``precision`` on GPUs of a vendor are known.

    Those that the residual was fitted to and those of a calibration count. Recipes of one format
    (fp8, fp8-cs, mxfp8) count together, as the surrogate learns of the format alone.

    Args:
        learned: what a projection is made with.
        precision: of the config that is projected.
        gpu: whose vendor is asked about.
    """
    facts = learned.residual
    held = {name: facts.points[:, FEATURES.index(name)] > 0 for name in _WIDTH.values()}
    width = _WIDTH.get(precision.gemm_format)
    alike = held[width] if width else ~np.any(list(held.values()), axis=0)
    count = sum(_is_kin(name, gpu) for name in facts.labels["gpu"][alike])
    told = learned.calibration.labels
    formats = [Precision.parse(label).gemm_format for label in told["precision"]]
    return count + sum(
        form == precision.gemm_format and _is_kin(name, gpu)
        for form, name in zip(formats, told["gpu"], strict=True)
    )


def _is_kin(name: str, gpu: Gpu) -> bool:
    """Whether a GPU is this one or, as far as the catalog knows it, one of the same vendor."""
    return name == gpu.name or (
        name in catalog.gpu_names() and catalog.gpu(name).vendor == gpu.vendor
    )
