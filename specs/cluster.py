"""Cluster: how many GPUs of one kind, in which nodes and scale-up domains."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from specs.gpu import Gpu
from specs.names import Name
from specs.numbers import Number, Whole

UsdPerGpuHour = Annotated[Number, Field(ge=0, le=1e6)]
"""A price of a GPU hour; beyond a million it is a typing error."""


class Cluster(BaseModel):
    """Nodes of one GPU kind. Overrides of the GPU's own link and NIC rates go into ``gpu``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    gpu: Gpu
    num_nodes: Whole = Field(gt=0)
    gpus_per_node: Whole = Field(gt=0)
    price_usd_per_gpu_hour: UsdPerGpuHour | None = None

    @property
    def num_gpus(self) -> int:
        """GPUs in the whole cluster."""
        return self.num_nodes * self.gpus_per_node

    @property
    def scale_up_gpus(self) -> int:
        """GPUs reachable over the scale-up links: those of a node, unless the GPU's own domain is
        larger than its usual node (an NVL72 rack) or smaller (two boards of four A100)."""
        domain, usual_node = self.gpu.scale_up_gpus, self.gpu.gpus_per_node
        if domain > usual_node:
            return min(domain, self.num_gpus)
        return self.gpus_per_node if domain == usual_node else min(domain, self.gpus_per_node)

    @property
    def shape(self) -> str:
        """Nodes and GPUs in words, as ``8 nodes x 8 MI355X``."""
        nodes = "node" if self.num_nodes == 1 else "nodes"
        return f"{self.num_nodes:,} {nodes} x {self.gpus_per_node} {self.gpu.name}"

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.name:
            object.__setattr__(self, "name", f"{self.num_gpus}x{self.gpu.name}")
        return self


SHORTHAND = re.compile(r"^(?:(?P<nodes>\d+)x)?(?P<gpus>\d+)x(?P<gpu>[A-Za-z][\w.+-]*)$")
"""``64xMI355X`` is 64 GPUs; ``8x8xMI355X`` is 8 nodes of 8."""
