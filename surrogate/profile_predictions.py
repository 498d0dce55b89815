"""What the physics expects of a profiled item: seconds as a function of a few constants.

Compute items are predicted by the kernel laws at the rate of a benchmark (a training job runs at a
share of it, which is what the constants of the time model say); collectives and the optimizer by
the time model itself. A measured ratio therefore multiplies the constant of its column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specs.gpu import Gpu
from specs.profile_rows import PlanItem
from surrogate.cases import Cases, ClusterColumns
from surrogate.communication import Network, all_gather_s, all_reduce_s, all_to_all_s, ring_step_s
from surrogate.kernels.constants import KernelConstants, kernel_constants
from surrogate.kernels.utilisation import (
    attention_forward_time_s,
    elementwise_time_s,
    gemm_time_s,
)
from surrogate.time_constants import TimeConstants
from surrogate.time_rates import TimeRates
from surrogate.topology import Group, group

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
ADAM_BYTES = 28
"""A step over fp32 parameters reads parameter, gradient and two moments and writes three."""
_EDGE = 100.0
"""Elements of a GEMM side that cost as much as filling its tiles (as in ``surrogate.compute``)."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("gemm_utilisation",),
    "attention": ("attention_utilisation",),
    "attention_backward": ("attention_backward",),
    "grouped_gemm": ("grouped_utilisation", "grouped_padding", "gemm_utilisation"),
    "elementwise": ("memory_utilisation",),
    "optimizer": ("optimizer_utilisation",),
    "collective": ("link_utilisation", "nic_utilisation", "link_latency", "nic_latency"),
    "all_to_all": (
        *("alltoall_link_utilisation", "alltoall_nic_utilisation", "link_latency"),
        "nic_latency",
    ),
}
"""Observation -> columns of TimeRates that it teaches."""

Factors = Mapping[str, float]
"""Column of TimeRates -> factor on what is believed."""


@dataclass(frozen=True)
class NodePhysics:
    """The laws and constants of one GPU and job, from which items are predicted.

    ``rates`` are those of one row, ``cluster`` its columns.
    """

    kernels: KernelConstants
    rates: TimeRates
    cluster: ClusterColumns
    hbm_bytes_per_s: float

    @classmethod
    def of(cls, gpu: Gpu, cases: Cases, constants: TimeConstants) -> NodePhysics:
        """The physics of the first row of ``cases``."""
        one = cases.take(np.array([0]))
        return cls(
            kernel_constants(gpu), constants.rates(one), one.cluster, gpu.hbm_bytes_per_s.value
        )

    def gemm_s(self, m: Any, n: Any, k: Any, dtype: str, factors: Factors) -> float:
        """One GEMM at the rate of a benchmark."""
        law = self.kernels.gemm["fp32" if dtype == "fp32" else "bf16"]
        reached = law.utilisation_max * factors.get("gemm_utilisation", 1.0)
        law = replace(law, utilisation_max=np.minimum(reached, 1.0))
        return float(gemm_time_s(m, n, k, law, quantise=False))

    def column(self, name: str, factors: Factors) -> float:
        """A constant of the time model with its factor."""
        return float(np.ravel(getattr(self.rates, name))[0]) * factors.get(name, 1.0)


def observations(item: PlanItem, has_backward: bool) -> list[str]:
    """What an item lets observe; keys of ``COLUMNS``. A layer is a check, nothing is learned."""
    if item.kind == "collective":
        return ["all_to_all" if item.variant == "all_to_all" else "collective"]
    if item.kind == "attention":
        return ["attention", *(["attention_backward"] if has_backward else [])]
    return [item.kind] if item.kind in COLUMNS else []


def predicted_s(item: PlanItem, what: str, physics: NodePhysics, factors: Factors) -> float:
    """Expected seconds of an observation of ``item``; for ``attention_backward`` the ratio of
    backward to forward."""
    return _PREDICTIONS[what](item, physics, factors)


def _gemm(item: PlanItem, physics: NodePhysics, factors: Factors) -> float:
    s = item.sizes
    return physics.gemm_s(s["m"], s["n"], s["k"], item.dtype, factors)


def _attention(item: PlanItem, physics: NodePhysics, factors: Factors) -> float:
    s, law = item.sizes, physics.kernels.attention["bf16"]
    reached = law.utilisation_max * factors.get("attention_utilisation", 1.0)
    law = replace(law, utilisation_max=np.minimum(reached, 1.0))
    widths = s["head_dim_qk"], s["head_dim_v"]
    time_s = attention_forward_time_s(
        s["batch"], s["seq"], s["seq"], s["heads"], s["kv_heads"], *widths, law
    )
    return float(time_s)


def _backward_ratio(item: PlanItem, physics: NodePhysics, factors: Factors) -> float:
    del item
    return physics.column("attention_backward", factors)


def _grouped(item: PlanItem, physics: NodePhysics, factors: Factors) -> float:
    """Both GEMMs of the local experts and the activation between them."""
    s, law = item.sizes, physics.kernels.gemm["bf16"]
    up = s["ffn"] * (2 if s["gated"] else 1)
    padding = 1.0 + physics.column("grouped_padding", factors) * s["experts"] / s["rows"]
    edges = 1.0 + _EDGE * (1.0 / s["hidden"] + 1.0 / s["ffn"])
    share = physics.column("grouped_utilisation", factors) * factors.get("gemm_utilisation", 1.0)
    rate = float(law.peak_flops * law.utilisation_max) * min(share, 1.0) / (padding * edges)
    flops = 2.0 * s["rows"] * s["hidden"] * (up + s["ffn"])
    weights = s["experts"] * s["hidden"] * (up + s["ffn"])
    hbm = physics.hbm_bytes_per_s * float(physics.kernels.elementwise.memory_utilisation)
    traffic = 2.0 * (weights + s["rows"] * (2 * s["hidden"] + up + s["ffn"])) / hbm
    activation = 2.0 * s["rows"] * (up + s["ffn"]) / hbm
    return max(flops / rate, traffic) + activation + 2.0 * float(law.latency_s)


def _elementwise(item: PlanItem, physics: NodePhysics, factors: Factors) -> float:
    law = physics.kernels.elementwise
    reached = law.memory_utilisation * factors.get("memory_utilisation", 1.0)
    law = replace(law, memory_utilisation=np.minimum(reached, 1.0))
    moved = 3.0 * item.sizes["elements"] * BYTES[item.dtype]
    return float(elementwise_time_s(moved, law))


def _optimizer(item: PlanItem, physics: NodePhysics, factors: Factors) -> float:
    rate = physics.hbm_bytes_per_s * min(physics.column("optimizer_utilisation", factors), 1.0)
    return ADAM_BYTES * item.sizes["parameters"] / rate


def _collective(item: PlanItem, physics: NodePhysics, factors: Factors) -> float:
    s = item.sizes
    network = _network(physics, factors)
    members = _members(item)
    whole = float(s["message_bytes"])
    if item.variant == "all_reduce":
        time_s = all_reduce_s(whole, members, network)
    elif item.variant == "all_to_all":
        time_s = all_to_all_s(whole, members, network)
    elif item.variant == "p2p":
        time_s = ring_step_s(whole, members, network)
    else:
        time_s = all_gather_s(whole, members, network)
    return float(np.ravel(time_s)[0])


def _members(item: PlanItem) -> Group:
    return group(np.array(item.sizes["ranks"]), 1, np.array(item.sizes["ranks_per_node"]))


def _network(physics: NodePhysics, factors: Factors) -> Network:
    columns = {name for names in COLUMNS.values() for name in names}
    moved = {
        name: getattr(physics.rates, name) * factors[name] for name in columns & factors.keys()
    }
    return Network.of(physics.cluster, replace(physics.rates, **moved))


_PREDICTIONS: dict[str, Callable[[PlanItem, NodePhysics, Factors], float]] = {
    "gemm": _gemm,
    "attention": _attention,
    "attention_backward": _backward_ratio,
    "grouped_gemm": _grouped,
    "elementwise": _elementwise,
    "optimizer": _optimizer,
    "collective": _collective,
    "all_to_all": _collective,
}
