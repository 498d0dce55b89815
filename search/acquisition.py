"""Which config to evaluate next: expected gain times the probability that it fits.

The log of the value (or the standardised value, where nothing was projected) is a Gaussian process
around the projection; the gain of a config is its expected improvement over the best that has been
seen. Configs that are being evaluated count as evaluated at the mean of the process (the constant
liar whose constant is the mean), so that parallel workers do not crowd. Where evaluations differ in
cost, gain per cost counts. The search is done when no gain is left that noise would not hide.

Jones, Schonlau, Welch: Efficient Global Optimization (1998); Gardner et al.: Bayesian Optimization
with Inequality Constraints (2014); Ginsbourger et al.: Kriging is well-suited to parallelize
optimization (2010).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from search.gaussian_process import GaussianProcess, Points, Prior
from search.memory_residual import MEMORY_PRIOR, MemoryResidual

Floats = NDArray[np.float64]

PROJECTED_PRIOR = Prior(single_sd=0.15, joint_sd=0.12, spread=0.7)
"""Around a projection: its log is right up to a slope, single axes and interactions (tuned on
synthetic tasks that the benchmark does not use)."""
EXPLAINED_PRIOR = Prior(slope_sd=(0.05,), single_sd=0.04, joint_sd=0.03, noise_sd=0.015, spread=0.3)
"""Around a projection that says what it is unsure of: less is left to slope, axes, interactions."""


BLIND_PRIOR = Prior(single_sd=0.5, joint_sd=0.7, noise_sd=0.1, offset_sd=1.0, slope=(), slope_sd=())
"""Around nothing: values are standardised."""
CAUTION = 2.0
"""Power of the fit probability: an OOM costs an evaluation and teaches little (tuned on synthetic
tasks: halves OOMs at equal regret)."""


def projected_prior(loadings: int) -> Prior:
    """The prior around a projection with so many columns of loadings."""
    if not loadings:
        return PROJECTED_PRIOR
    plain = EXPLAINED_PRIOR
    return replace(
        plain,
        slope=(*plain.slope, *([0.0] * loadings)),
        slope_sd=(*plain.slope_sd, *([1.0] * loadings)),
    )


@dataclass(frozen=True)
class Evidence:
    """What has been evaluated.

    ``points`` (n) with the modelled ``value`` (n,), higher is better; ``running`` are under way.
    ``memory_points`` with ``memory_residual``, ``memory_side`` and ``memory_prior`` (see
    ``MemoryResidual.fit``) where a projection of memory exists. ``constraints`` maps other
    constraints to (points, standardised value): above 0 is violated.
    """

    points: Points
    value: Floats
    running: Points
    memory_points: Points | None = None
    memory_residual: Floats = field(default_factory=lambda: np.empty(0))
    memory_side: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    memory_prior: Prior = MEMORY_PRIOR
    constraints: Mapping[str, tuple[Points, Floats]] = field(default_factory=dict)


@dataclass(frozen=True)
class Models:
    """What the evidence teaches; ``incumbent`` is the mean at the best point seen, or None."""

    value: GaussianProcess
    incumbent: float | None
    memory: MemoryResidual | None
    constraints: tuple[GaussianProcess, ...]

    @classmethod
    def of(cls, evidence: Evidence, prior: Prior) -> Models:
        """Fits every process."""
        process = GaussianProcess.fit(evidence.points, evidence.value, prior)
        incumbent = None
        own = np.flatnonzero(evidence.points.tasks == 0)
        if len(own):
            incumbent = float(process.predict(evidence.points.take(own))[0].max())
        if len(evidence.running):
            believed = process.predict(evidence.running)[0]
            if incumbent is None:  # nothing came back yet: what is out is what there is to beat
                incumbent = float(believed.max())
            points = evidence.points.joined(evidence.running)
            value = np.concatenate([evidence.value, believed])
            process = process.updated(points, value, np.zeros(len(value)))
        memory = None
        if evidence.memory_points is not None:
            memory = MemoryResidual.fit(
                evidence.memory_points,
                evidence.memory_residual,
                evidence.memory_side,
                evidence.memory_prior,
            )
        constraints = tuple(
            GaussianProcess.fit(points, value, BLIND_PRIOR)
            for points, value in evidence.constraints.values()
        )
        return cls(process, incumbent, memory, constraints)


@dataclass(frozen=True)
class Scores:
    """What is thought of m candidates, shape (m,).

    ``mean`` and ``sd`` of the modelled value, ``gain`` the expected improvement, ``score`` what
    proposals are ranked by: the log of what a candidate may gain plus ``log_weight``, which holds
    fit, cost and what someone believes.
    """

    mean: Floats
    sd: Floats
    fit_probability: Floats
    gain: Floats
    score: Floats
    log_weight: Floats


def scores(
    models: Models,
    candidates: Points,
    log_share: Floats | None = None,
    cost: Floats | None = None,
    log_prior: Floats | None = None,
) -> Scores:
    """Judges candidates.

    Args:
        models: what was learned.
        candidates: m points.
        log_share: log(projected peak / capacity), shape (m,), where memory is projected.
        cost: of evaluating each candidate, shape (m,), positive.
        log_prior: what someone believes, as a log weight of each candidate, shape (m,).
    """
    mean, sd = models.value.predict(candidates)
    fits = np.ones(len(mean))
    if models.memory is not None and log_share is not None:
        fits = models.memory.fit_probability(candidates, log_share)
    for process in models.constraints:
        fits = fits * below_zero(*process.predict(Points(candidates.coordinates, _none(mean))))
    if models.incumbent is None:
        # Nothing seen yet: the best by the projection of those that fit as likely as not.
        gain = log_gain = mean - mean.max()
        weight = CAUTION * np.log(np.clip(2.0 * fits, 1e-12, 1.0))
    else:
        gain = expected_improvement(mean, sd, models.incumbent)
        log_gain = np.log(np.maximum(gain, 1e-300))
        gain = gain * fits
        weight = CAUTION * np.log(np.maximum(fits, 1e-12))
    if cost is not None:
        weight = weight - np.log(cost)
    if log_prior is not None:
        weight = weight + log_prior
    return Scores(mean, sd, fits, gain, log_gain + weight, weight)


def _none(like: Floats) -> Floats:
    return np.zeros((len(like), 0))


def expected_improvement(mean: Floats, sd: Floats, incumbent: float) -> Floats:
    """E[max(f - incumbent, 0)], shape (m,)."""
    from scipy.stats import norm

    z = (mean - incumbent) / sd
    gain: Floats = sd * (z * norm.cdf(z) + norm.pdf(z))
    return np.maximum(gain, 0.0)


def below_zero(mean: Floats, sd: Floats) -> Floats:
    """P(f <= 0), shape (m,)."""
    from scipy.stats import norm

    probability: Floats = norm.cdf(-mean / sd)
    return probability


def is_done(judged: Scores, models: Models, open_rows: NDArray[np.int64]) -> bool:
    """Whether the largest expected gain of the open candidates is below the noise of one run."""
    if models.incumbent is None or not len(open_rows):
        return not len(open_rows)
    return bool(judged.gain[open_rows].max() < models.value.hyper.noise_sd)
