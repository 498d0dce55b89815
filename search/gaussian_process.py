"""A Gaussian process over configs: trends of the physics, single axes, and axes that interact.

    f(x) = trends(x) . slopes + sum of single-axis effects + interactions,   y = f(x) + noise

Trends are columns that the physics offers (the analytic log throughput above all); their slopes
have a prior mean, so that without data the process is the physics. Effects and interactions share
one relevance per axis: with s = sum over axes of relevance * alike, single-axis effects have the
covariance s and interactions exp(s - sum(relevance)). An axis of which only one value was seen thus
keeps the uncertainty of its prior, however many other axes were explored. Relevances, variances and
noise maximise the marginal likelihood times log-normal priors, with gradient, from the prior's
centre, so the same data always give the same process.

Rasmussen, Williams: Gaussian Processes for Machine Learning (2006), algorithm 2.1 and section 5.4;
Duvenaud et al.: Additive Gaussian Processes (2011).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.encoding import Coordinates

Floats = NDArray[np.float64]

JITTER = 1e-9
FIT_STEPS = 40


@dataclass(frozen=True)
class Prior:
    """What is believed before any data; spreads are of natural logarithms (assumed).

    ``single_sd`` and ``joint_sd`` are sd of single-axis effects and of interactions, ``noise_sd``
    that of a measurement, ``offset_sd`` that of a common offset. ``slope`` and ``slope_sd`` hold
    mean and sd of the slope of each trend. ``relevance`` is the typical relevance of an axis;
    ``spread`` the log sd of all of these.
    """

    single_sd: float = 0.15
    joint_sd: float = 0.12
    noise_sd: float = 0.02
    offset_sd: float = 0.5
    relevance: float = 0.5
    slope: tuple[float, ...] = (1.0,)
    slope_sd: tuple[float, ...] = (0.4,)
    spread: float = 0.7
    noise_spread: float = 0.5


@dataclass(frozen=True)
class Points:
    """n points: coordinates, trends (n, k), and their studies where there are several."""

    coordinates: Coordinates
    trends: Floats
    task: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.coordinates)

    def take(self, rows: Any) -> Points:
        """The selected points."""
        task = None if self.task is None else self.task[rows]
        return Points(self.coordinates.take(rows), self.trends[rows], task)

    @property
    def tasks(self) -> NDArray[np.int64]:
        """The study of each point, shape (n,)."""
        return np.zeros(len(self), dtype=np.int64) if self.task is None else self.task

    def joined(self, other: Points) -> Points:
        """These points, then the others."""
        own, theirs = self.coordinates, other.coordinates
        return Points(
            Coordinates(np.concatenate([own.columns, theirs.columns]), own.axis, own.names),
            np.concatenate([self.trends, other.trends]),
            np.concatenate([self.tasks, other.tasks]),
        )


@dataclass(frozen=True)
class GaussianProcess:
    """A fitted process; ``theta`` are the logarithms of its hyperparameters.

    ``target`` (n,) is y less the prior mean, ``extra`` (n,) a variance of single points on top of
    the noise.
    """

    points: Points
    target: Floats
    extra: Floats
    prior: Prior
    theta: Floats
    log_likelihood: float = field(default=np.nan)

    @classmethod
    def fit(
        cls, points: Points, y: Floats, prior: Prior, extra: Floats | None = None
    ) -> GaussianProcess:
        """The process at the maximum of marginal likelihood times prior.

        Args:
            points: n points.
            y: shape (n,).
            prior: what is believed before.
            extra: variance of single points on top of the noise, shape (n,).
        """
        from scipy.optimize import minimize

        target = y - points.trends @ np.array(prior.slope)
        spare = np.zeros(len(y)) if extra is None else extra
        problem = _Likelihood(points, target, spare, prior)
        start = problem.centre
        if not len(y):
            return cls(points, target, spare, prior, start)
        found = minimize(
            problem.loss, start, jac=True, method="L-BFGS-B", options={"maxiter": FIT_STEPS}
        )
        return cls(points, target, spare, prior, np.asarray(found.x), -float(found.fun))

    @property
    def hyper(self) -> Hyper:
        """The hyperparameters in their units."""
        return Hyper.of(self.theta, self.points.coordinates.axes)

    @cached_property
    def _factor(self) -> Floats:
        covariance = kernel(self.points, self.points, self.hyper, self.prior)
        covariance += np.diag(self.hyper.noise_sd**2 + self.extra + JITTER)
        return np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)

    @cached_property
    def _weights(self) -> Floats:
        from scipy.linalg import cho_solve

        return np.asarray(cho_solve((self._factor, True), self.target), dtype=np.float64)

    def predict(self, points: Points) -> tuple[Floats, Floats]:
        """(mean, sd) of f at some points, shape (m,): without the noise of a measurement."""
        from scipy.linalg import solve_triangular

        mean = points.trends @ np.array(self.prior.slope)
        own = own_variance(points, self.hyper, self.prior)
        if not len(self.points):
            return mean, np.sqrt(own)
        shared = kernel(points, self.points, self.hyper, self.prior)
        known = solve_triangular(self._factor, shared.T, lower=True, check_finite=False)
        left = own - np.einsum("ij,ij->j", known, known)
        return mean + shared @ self._weights, np.sqrt(np.maximum(left, 1e-12))

    def updated(self, points: Points, y: Floats, extra: Floats) -> GaussianProcess:
        """The same hyperparameters with these points instead."""
        target = y - points.trends @ np.array(self.prior.slope)
        return replace(self, points=points, target=target, extra=extra)


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters in their units; ``agreement`` is how far other studies hold here, 0 to 1."""

    relevance: Floats
    single_sd: float
    joint_sd: float
    noise_sd: float
    agreement: float

    @classmethod
    def of(cls, theta: Floats, axes: int) -> Hyper:
        """From the vector that is optimised."""
        values = np.exp(theta[: axes + 3])
        return cls(
            relevance=values[:axes],
            single_sd=float(values[axes]),
            joint_sd=float(values[axes + 1]),
            noise_sd=float(values[axes + 2]),
            agreement=float(1 / (1 + np.exp(-theta[axes + 3]))),
        )


def kernel(left: Points, right: Points, hyper: Hyper, prior: Prior) -> Floats:
    """Prior covariance between points, shape (n, m)."""
    total = float(hyper.relevance.sum())
    s = left.coordinates.alike(right.coordinates, hyper.relevance)
    covariance = s * hyper.single_sd**2
    s -= total
    np.exp(s, out=s)
    s *= hyper.joint_sd**2
    covariance += s
    slopes = np.square(np.array(prior.slope_sd))
    covariance += (left.trends * slopes) @ right.trends.T
    if left.task is not None or right.task is not None:
        same = left.tasks[:, None] == right.tasks[None, :]
        covariance *= np.where(same, 1.0, hyper.agreement)
        covariance += prior.offset_sd**2 * same
    else:
        covariance += prior.offset_sd**2
    return covariance


def own_variance(points: Points, hyper: Hyper, prior: Prior) -> Floats:
    """Prior variance of single points, shape (n,)."""
    slopes = np.square(np.array(prior.slope_sd))
    own: Floats = np.square(points.trends) @ slopes
    single = hyper.single_sd**2 * float(hyper.relevance.sum())
    return own + single + hyper.joint_sd**2 + prior.offset_sd**2


class _Likelihood:
    """Negative log of marginal likelihood times prior of the hyperparameters, with gradient."""

    def __init__(self, points: Points, target: Floats, extra: Floats, prior: Prior) -> None:
        axes = points.coordinates.axes
        self.points, self.target, self.extra, self.prior = points, target, extra, prior
        self.by_axis = (
            points.coordinates.by_axis() if axes else np.zeros((0, len(target), len(target)))
        )
        tasks = points.tasks
        self.same = tasks[:, None] == tasks[None, :]
        self.many = points.task is not None and len(np.unique(tasks)) > 1
        slopes = np.square(np.array(prior.slope_sd))
        self.trend = (points.trends * slopes) @ points.trends.T
        self.centre = np.concatenate(
            [
                np.full(axes, np.log(prior.relevance)),
                np.log([prior.single_sd, prior.joint_sd, prior.noise_sd]),
                [0.0],
            ]
        )
        self.spread = np.concatenate(
            [np.full(axes, 1.0), [prior.spread, prior.spread, prior.noise_spread], [1.5]]
        )

    def loss(self, theta: Floats) -> tuple[float, Floats]:
        """Value and gradient."""
        from scipy.linalg import cho_solve

        axes = len(self.by_axis)
        hyper = Hyper.of(theta, axes)
        total = float(hyper.relevance.sum())
        s = np.tensordot(hyper.relevance, self.by_axis, axes=1)
        single = s * hyper.single_sd**2
        joint = hyper.joint_sd**2 * np.exp(s - total)
        shared = single + joint + self.trend
        across = np.where(self.same, 1.0, hyper.agreement)
        covariance = shared * across + self.prior.offset_sd**2 * self.same
        noise = hyper.noise_sd**2
        covariance[np.diag_indices_from(covariance)] += noise + self.extra + JITTER
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        inverse = cho_solve((factor, True), np.eye(len(self.target)))
        weights = inverse @ self.target
        away = (theta - self.centre) / self.spread
        value = 0.5 * self.target @ weights + np.log(np.diag(factor)).sum() + 0.5 * away @ away
        pull = 0.5 * (inverse - np.outer(weights, weights))
        within = pull * across
        gradient = away / self.spread
        by_s = within * (hyper.single_sd**2 + joint)
        down = float((within * joint).sum())
        slopes = np.tensordot(self.by_axis, by_s, axes=([1, 2], [0, 1]))
        gradient[:axes] += hyper.relevance * (slopes - down)
        gradient[axes] += 2 * float((within * single).sum())
        gradient[axes + 1] += 2 * float((within * joint).sum())
        gradient[axes + 2] += 2 * noise * float(np.trace(pull))
        if self.many:
            rho = hyper.agreement
            gradient[axes + 3] += rho * (1 - rho) * float((pull * shared)[~self.same].sum())
        return float(value), gradient
