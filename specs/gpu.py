"""Gpu: hardware constants of one accelerator with their provenance, and GPUs as numpy columns."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specs.choices import Precision
from specs.names import Name
from specs.numbers import Whole
from specs.provenance import Quantity

LARGEST = 1e24


class Gpu(BaseModel):
    """One accelerator as a training job sees it.

    Rates are per GPU and one direction, in bytes/s and FLOP/s; ``peak_flops`` is dense, by GEMM
    format (bf16, fp8, fp4, fp32); ``hbm_gib`` is what vendors print as GB. ``link_*`` is the
    scale-up domain (NVLink, xGMI), ``nic_*`` the scale-out network.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    vendor: Literal["amd", "nvidia"]
    architecture: Name
    aliases: tuple[Name, ...] = ()
    precisions: tuple[str, ...] = Field(description="labels of Precision that the GPU runs")
    hbm_gib: Quantity
    hbm_bytes_per_s: Quantity
    peak_flops: dict[str, Quantity]
    sm_count: Quantity
    max_clock_hz: Quantity
    power_w: Quantity
    link_bytes_per_s: Quantity
    link_latency_s: Quantity
    link_topology: Literal["mesh", "switch"]
    scale_up_gpus: Whole = Field(gt=0, description="GPUs in one scale-up domain")
    gpus_per_node: Whole = Field(gt=0)
    nic_bytes_per_s: Quantity
    nic_latency_s: Quantity
    usd_per_gpu_hour: Quantity | None = None

    @model_validator(mode="after")
    def _physical(self) -> Self:
        """Rates, sizes and latencies are above 0 and of this world."""
        for name in type(self).model_fields:
            held = getattr(self, name)
            for quantity in held.values() if isinstance(held, dict) else (held,):
                if isinstance(quantity, Quantity) and not 0 < quantity.value < LARGEST:
                    raise ValueError(f"{name} is {quantity.value:g}; use a number above 0")
        return self

    def supports(self, precision: Precision) -> bool:
        """Whether the GPU runs GEMMs in this format."""
        return precision.label in self.precisions
