"""What measured peaks and OOMs teach about projected memory.

log(measured / projected) is a Gaussian process over configs around 0. A measured peak is a point of
it; an OOM only says that the peak is above capacity, and a run whose peak nobody read that it is
below. Such a bound enters with the mean and variance of the process beyond it (moment matching of a
truncated normal), so that a surprise moves its neighbours and what was expected hardly does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search.gaussian_process import GaussianProcess, Points, Prior
from surrogate.memory_calibration import beyond

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


@dataclass(frozen=True)
class MemoryResidual:
    """A fitted residual; ``process`` has no trends."""

    process: GaussianProcess

    @classmethod
    def fit(
        cls,
        points: Points,
        residual: Floats,
        side: NDArray[np.int64],
        prior: Prior = MEMORY_PRIOR,
    ) -> MemoryResidual:
        """The residual from evaluated configs.

        Args:
            points: n configs.
            residual: log(measured / projected) of the peak; log(capacity / projected) for a bound.
            side: 0 for a measured peak, 1 where the peak is above (OOM), -1 where it is below.
            prior: what is believed before.
        """
        points = without_trends(points)
        exact = side == 0
        process = GaussianProcess.fit(points.take(exact), residual[exact], prior)
        if exact.all():
            return cls(process)
        measured, bounded, sign = process, points.take(~exact), side[~exact]
        placed, spread = residual.copy(), np.zeros(len(residual))
        for _ in range(SWEEPS):
            mean, sd = process.predict(bounded)
            sd = np.hypot(sd, process.hyper.noise_sd)
            moved, spread[~exact] = beyond(sign * mean, sd, sign * residual[~exact])
            placed[~exact] = sign * moved
            process = measured.updated(points, placed, spread)
        return cls(process)

    def factor(self, points: Points) -> Floats:
        """Measured over projected peak to expect, shape (m,)."""
        expected: Floats = np.exp(self.process.predict(without_trends(points))[0])
        return expected

    def fit_probability(self, points: Points, log_share: Floats) -> Floats:
        """P(peak <= capacity), shape (m,); ``log_share`` is log(projected peak / capacity)."""
        from scipy.stats import norm

        mean, sd = self.process.predict(without_trends(points))
        probability: Floats = norm.cdf(-(log_share + mean) / np.hypot(sd, 1e-3))
        return probability


def with_sd(prior: Prior, log_sd: float, axes: int) -> Prior:
    """The prior, scaled so that a config of which nothing was measured is off by this log sd.

    Args:
        prior: in which proportion a common offset, single axes and interactions are off.
        log_sd: of log(measured / projected), as the projection itself states it.
        axes: of the space.
    """
    single = prior.single_sd**2 * prior.relevance * axes
    factor = log_sd / float(np.sqrt(single + prior.joint_sd**2 + prior.offset_sd**2))
    return replace(
        prior,
        single_sd=prior.single_sd * factor,
        joint_sd=prior.joint_sd * factor,
        offset_sd=prior.offset_sd * factor,
    )


def without_trends(points: Points) -> Points:
    """The same points without trends."""
    return Points(points.coordinates, np.zeros((len(points), 0)), points.task)
