"""What measured peaks and OOMs teach about projected memory.

log(measured / projected) is a Gaussian process over configs around 0. A measured peak is a point of
it; an OOM only says that the peak is above capacity: it enters with the mean and variance of the
process beyond that bound (moment matching of a truncated normal), so that a surprising OOM moves
its neighbours and an expected one hardly does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.gaussian_process import GaussianProcess, Points, Prior

Floats = NDArray[np.float64]

MEMORY_PRIOR = Prior(
    single_sd=0.04,
    joint_sd=0.02,
    noise_sd=0.01,
    offset_sd=0.05,
    slope=(),
    slope_sd=(),
)
"""Projected peaks are off by about 5% as a whole and 4% by config on Folds left out (measured);
repeated runs of one config agree to 1% (assumed)."""
SWEEPS = 2
"""Rounds in which OOMs are placed beyond their bounds; the second changes little."""
LEAST_SHARE = 0.05
"""A bound never pins a point more than this share of its variance allows."""


@dataclass(frozen=True)
class MemoryResidual:
    """A fitted residual; ``process`` has no trends."""

    process: GaussianProcess

    @classmethod
    def fit(
        cls,
        points: Points,
        residual: Floats,
        at_least: NDArray[np.bool_],
        prior: Prior = MEMORY_PRIOR,
    ) -> MemoryResidual:
        """The residual from evaluated configs.

        Args:
            points: n configs.
            residual: log(measured / projected) of the peak; log(capacity / projected) for an OOM.
            at_least: which rows are lower bounds (OOMs), shape (n,).
            prior: what is believed before.
        """
        points = without_trends(points)
        exact = ~at_least
        process = GaussianProcess.fit(points.take(exact), residual[exact], prior)
        if not at_least.any():
            return cls(process)
        measured = process
        bounded = points.take(at_least)
        placed, spread = residual.copy(), np.zeros(len(residual))
        for _ in range(SWEEPS):
            mean, sd = process.predict(bounded)
            sd = np.hypot(sd, process.hyper.noise_sd)
            placed[at_least], spread[at_least] = beyond(mean, sd, residual[at_least])
            process = measured.updated(points, placed, spread)
        return cls(process)

    def fit_probability(self, points: Points, log_share: Floats) -> Floats:
        """P(peak <= capacity), shape (m,); ``log_share`` is log(projected peak / capacity)."""
        from scipy.stats import norm

        mean, sd = self.process.predict(without_trends(points))
        probability: Floats = norm.cdf(-(log_share + mean) / np.hypot(sd, 1e-3))
        return probability


def beyond(mean: Floats, sd: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """(mean, variance) of a normal known to lie above ``bound``."""
    from scipy.stats import norm

    alpha = (bound - mean) / sd
    ratio = np.exp(norm.logpdf(alpha) - norm.logsf(alpha))
    left = np.clip(1.0 - ratio * (ratio - alpha), LEAST_SHARE, 1.0)
    return mean + sd * ratio, np.square(sd) * left


def without_trends(points: Points) -> Points:
    """The same points without trends."""
    return Points(points.coordinates, np.zeros((len(points), 0)), points.task)
