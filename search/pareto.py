"""Trade-offs between throughput, memory headroom, money and energy: objectives and their front.

On one cluster money and energy of a token follow from its throughput (a GPU costs and draws the
same whatever it computes, at its rated power: an upper bound), so a front over several clusters or
precisions is where they add something.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.ranking import Projected
from specs.cluster import Cluster

Floats = NDArray[np.float64]

OBJECTIVES = ("tokens_per_s_per_gpu", "headroom_gib", "usd_per_million_tokens", "joule_per_token")
DIRECTIONS = ("maximize", "maximize", "minimize", "minimize")


@dataclass(frozen=True)
class TradeOff:
    """Objective values of projected configs on a cluster; columns of shape (n,).

    ``usd_per_million_tokens`` is NaN where the cluster has no price.
    """

    tokens_per_s_per_gpu: Floats
    headroom_gib: Floats
    usd_per_million_tokens: Floats
    joule_per_token: Floats

    @classmethod
    def of(cls, projected: Projected, cluster: Cluster) -> TradeOff:
        """Objectives of every projected row."""
        speed = np.asarray(projected.tokens_per_s_per_gpu, dtype=np.float64)
        gpu = cluster.gpu
        price = cluster.price_usd_per_gpu_hour
        if price is None:
            price = gpu.usd_per_gpu_hour.value if gpu.usd_per_gpu_hour is not None else np.nan
        return cls(
            tokens_per_s_per_gpu=speed,
            headroom_gib=gpu.hbm_gib.value - np.asarray(projected.device_gib, dtype=np.float64),
            usd_per_million_tokens=price / 3600.0 / speed * 1e6,
            joule_per_token=gpu.power_w.value / speed,
        )

    def columns(self, names: tuple[str, ...] = OBJECTIVES) -> Floats:
        """The named objectives side by side, shape (n, objectives)."""
        return np.stack([getattr(self, name) for name in names], axis=1)


def pareto_front(values: Floats, directions: tuple[str, ...]) -> NDArray[np.int64]:
    """Rows that no other row beats in one objective without losing in another, in order.

    Equal rows count once: the first stays.

    Args:
        values: shape (n, objectives).
        directions: ``maximize`` or ``minimize`` for each.
    """
    signs = np.array([1.0 if direction == "maximize" else -1.0 for direction in directions])
    points = values * signs
    order = np.lexsort(tuple(-points[:, j] for j in reversed(range(points.shape[1]))))
    front: list[int] = []
    kept = np.empty((0, points.shape[1]))
    for row in order.tolist():
        if not (kept >= points[row]).all(axis=1).any():
            front.append(row)
            kept = np.vstack([kept, points[row]])
    return np.sort(np.array(front, dtype=np.int64))
