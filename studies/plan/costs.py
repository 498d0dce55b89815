"""What training on a cluster costs: time, GPU-days, money, energy; whether it is done in time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.special import ndtr

from specs.cluster import Cluster
from specs.formats.plan import PlanFile
from specs.gpu import Gpu
from studies.plan.pair import PairResult
from surrogate.uncertainty import GAUSSIAN_90

SECONDS_PER_DAY = 86_400.0
SURE = 0.95
"""P(in time) from which a cluster is called surely big enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a token count takes; ``days90`` runs from the fast to the slow end of the 90% interval.

    ``usd`` is None where no price is known. ``in_time`` is the probability that the deadline is met
    where the config fits (a leaner one is found in minutes where it does not); None without one.
    """

    tokens: float
    days: float
    days90: tuple[float, float]
    gpu_days: float
    usd: float | None
    energy_mwh: float
    in_time: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest:
    """The smallest cluster of one entry of ``clusters`` that trains a workload in time.

    ``expected`` is the fewest GPUs that are expected to, ``surely`` those that do with 95%
    probability; None where no size listed does. ``tried`` are the sizes that were weighed.
    """

    workload: str
    cluster: str
    deadline_days: float
    expected: int | None
    surely: int | None
    tried: tuple[int, ...]


def cost(
    pair: PairResult,
    cluster: Cluster,
    settings: PlanFile,
    tokens: float,
    deadline_days: float | None,
) -> Cost:
    """What ``tokens`` tokens take with the best config of a pair.

    Time is tokens / (tokens/s of all GPUs x goodput); money and energy follow the GPU-hours. A GPU
    draws what its board may (``power_w`` of the catalog) all the time, times the PUE.
    """
    assert pair.best is not None
    low, high = pair.best.interval90
    speeds = (pair.best.tokens_per_s_per_gpu, high, low)
    gpu_days, fast, slow = (tokens / (s * settings.goodput) / SECONDS_PER_DAY for s in speeds)
    gpus = pair.num_gpus
    price = price_of(cluster, settings)
    in_time = None
    if deadline_days is not None:
        spread = math.log(high / low) / (2 * GAUSSIAN_90)
        margin = math.log(deadline_days * gpus / gpu_days) / spread
        in_time = float(ndtr(margin))
    return Cost(
        tokens=tokens,
        days=gpu_days / gpus,
        days90=(fast / gpus, slow / gpus),
        gpu_days=gpu_days,
        usd=None if price is None else gpu_days * 24 * price,
        energy_mwh=gpu_days * 24 * cluster.gpu.power_w.value * settings.pue / 1e6,
        in_time=in_time,
    )


def price_of(cluster: Cluster, settings: PlanFile) -> float | None:
    """USD a GPU-hour: of the cluster, else of the plan, else of the catalog."""
    if cluster.price_usd_per_gpu_hour is not None:
        return cluster.price_usd_per_gpu_hour
    if settings.price_usd_per_gpu_hour is not None:
        return settings.price_usd_per_gpu_hour
    known = cluster.gpu.usd_per_gpu_hour
    return None if known is None else known.value


def power_source(gpu: Gpu) -> str:
    """The watts of a GPU with where they come from."""
    return f"{gpu.name}: {gpu.power_w.value:,.0f} W ({gpu.power_w.kind}: {gpu.power_w.source})"


def smallest(
    rows: Iterable[tuple[PairResult, Cost | None, float | None]],
) -> tuple[Smallest, ...]:
    """The smallest sizes that meet each deadline, by workload and entry of ``clusters``.

    Args:
        rows: every pair, what it costs (None where nothing fits) and its deadline in days.
    """
    groups: dict[tuple[str, str], list[tuple[PairResult, Cost | None, float]]] = {}
    for pair, spent, deadline in rows:
        if deadline is not None:
            groups.setdefault((pair.workload, pair.cluster), []).append((pair, spent, deadline))
    return tuple(
        Smallest(
            workload=workload,
            cluster=name,
            deadline_days=group[0][2],
            expected=_fewest(
                [p.num_gpus for p, spent, days in group if spent and spent.days <= days]
            ),
            surely=_fewest(
                [p.num_gpus for p, spent, _ in group if spent and (spent.in_time or 0) >= SURE]
            ),
            tried=tuple(sorted(pair.num_gpus for pair, _, _ in group)),
        )
        for (workload, name), group in groups.items()
    )


def _fewest(gpus: Sequence[int]) -> int | None:
    return min(gpus, default=None)
