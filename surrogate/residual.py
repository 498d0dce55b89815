"""What measured runs say beyond the physics: a Gaussian process on log(measured / physics).

The mean of a new run is a weighted sum of the errors of runs like it (``features``), and 0, the
physics itself, where none is. Few facts make a large difference here and trees extrapolate by
standing still: on Folds left out of 1,130 public runs this beat gradient-boosted trees on the same
coordinates, fits in a second and says how much it does not know.

Rasmussen, Williams: Gaussian Processes for Machine Learning (2006), algorithm 2.1; noise is
reweighted as in Student-t regression, so that a mislabelled row does not pull its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.errors import InputError
from surrogate.cases import Cases, Column
from surrogate.features import CLASSES, CONFIG_AXES, FEATURES, classes, features
from surrogate.pipeline.stages import distinct_rows
from surrogate.step_time import StepTime

Floats = NDArray[np.float64]

SIGNAL_SD = 0.10
"""Prior sd of the log error that the physics leaves in a dense run and that others share."""
MOE_SIGNAL_FACTOR = 1.6
"""The same for MoE runs, times this."""
DENSE_NOISE_SD, MOE_NOISE_SD = 0.015, 0.10
"""Scatter of runs with equal stated layout: releases, kernels and flags that no row states."""
STUDENT_DEGREES = 1.5
NEGLIGIBLE = 1e-3
"""Facts whose covariance with a study is below this share of the largest are left out of it:
together they move a mean by less than 1e-3."""
NEAREST = 96
"""Facts of a study that its spread is computed from: those most alike; the others say little."""
REMEMBERED = 16
"""Studies whose facts are kept at hand."""
MOST_CREDITED = 0.9
"""Recomputation is never free: of its cost in the physics, at most this share is credited back.
Assumed: runs left out are predicted equally well at any share from 0.9 to 1."""
_LEAVES = FEATURES.index("leaves_domain")
_RECOMPUTE = FEATURES.index("recompute")
_BARE_AXES = tuple(axis for axis in CONFIG_AXES if not axis.startswith("recompute"))
_OF_STUDY = [
    FEATURES.index(name)
    for name in (
        *("seq_len", "gpus", "hidden_size", "lora", "drops_tokens", "capacity_factor"),
        *("experts", "cuda_graphs", "leaves_domain", "parameters"),
    )
]
"""Coordinates that do not depend on the config."""


@dataclass(frozen=True)
class Prediction:
    """Mean and sd of log(measured / physics), shape (n,); ``sd`` is without scatter of runs.

    ``bare_mean`` is the mean of the same rows if they recomputed nothing.
    """

    mean: Column
    sd: Column
    noise_sd: Column
    bare_mean: Column

    def credited(self, step: StepTime) -> Column:
        """The mean, where recomputation is credited with less than it costs in the physics.

        Runs that recompute are faster against the physics than runs that do not, for reasons that
        no row states; carried over whole, a config would gain by recomputing.
        """
        cost = -np.log1p(-step.recomputed_s / step.step_time_s)
        mean: Column = np.minimum(self.mean, self.bare_mean + MOST_CREDITED * cost)
        return mean


@dataclass(frozen=True)
class _StudyFacts:
    """Facts of one study: coordinates, weights, and the Cholesky factor of the first few."""

    points: Floats
    weights: Floats
    factor: Floats


@dataclass(frozen=True)
class Residual:
    """A fitted process: its facts and what follows from them.

    ``points`` has shape (r, f), ``labels`` holds the classes of each fact, ``errors`` its
    log(measured / physics) and ``noise`` the variance of its scatter after reweighting.
    """

    points: Floats
    labels: Mapping[str, Column]
    errors: Floats
    noise: Floats
    _studies: dict[Any, tuple[_StudyFacts, Floats]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __len__(self) -> int:
        return len(self.errors)

    @classmethod
    def nothing(cls) -> Residual:
        """A process without facts: the physics as it is."""
        labels = {name: np.empty(0, dtype=object) for name in CLASSES}
        return cls(np.empty((0, len(FEATURES))), labels, np.empty(0), np.empty(0))

    @classmethod
    def fit(cls, cases: Cases, log_errors: Floats) -> Residual:
        """A process from runs.

        Args:
            cases: n rows.
            log_errors: log(measured / physics) of tokens/s, shape (n,).
        """
        points, labels = features(cases), classes(cases)
        prior = covariance(points, labels, points, labels)
        noise = reweighted_noise(prior, labels["moe"] == "moe", log_errors)
        return cls(points, labels, np.asarray(log_errors, dtype=np.float64), noise)

    @cached_property
    def factor(self) -> Floats:
        """Lower Cholesky factor of the covariance of the facts."""
        prior = covariance(self.points, self.labels, self.points, self.labels)
        return np.asarray(np.linalg.cholesky(prior + np.diag(self.noise)), dtype=np.float64)

    @cached_property
    def weights(self) -> Floats:
        """Weight of each fact in a mean."""
        from scipy.linalg import cho_solve

        solved: Floats = cho_solve((self.factor, True), self.errors)
        return solved

    def predict(self, cases: Cases, with_sd: bool = True) -> Prediction:
        """Mean and sd of every row.

        Args:
            cases: n rows; rows of one study that agree in the coordinates are computed once, from
                the facts that say something of any of them.
            with_sd: whether to compute ``sd`` (NaN otherwise).
        """
        if np.ndim(cases.model_index) == np.ndim(cases.cluster.gpu) == 0:
            keys = tuple(getattr(cases.config, axis).astype(np.int64) for axis in CONFIG_AXES)
            first, index = distinct_rows(keys)
            found = self._predict_study(cases.take(first), with_sd)
            return Prediction(*(getattr(found, f.name)[index] for f in fields(Prediction)))
        points, labels = features(cases), classes(cases)
        moe = labels["moe"] == "moe"
        shared = covariance(points, labels, self.points, self.labels)
        found = self._from_shared(shared, points[:, [_LEAVES]], moe, with_sd, self)
        again = np.flatnonzero(points[:, _RECOMPUTE] > 0)
        bare = points[again]
        bare[:, _RECOMPUTE] = 0.0
        some = {name: column[again] for name, column in labels.items()}
        shared = covariance(bare, some, self.points, self.labels)
        found.bare_mean[again] = _mean(shared, points[again][:, [_LEAVES]], moe[again], self)
        return found

    def _predict_study(self, cases: Cases, with_sd: bool) -> Prediction:
        """Rows that share model, GPU and stack; each gets the same in any company."""
        points = features(cases)
        one = {name: column[:1] for name, column in classes(cases.take(slice(0, 1))).items()}
        moe = np.broadcast_to(one["moe"] == "moe", (len(cases),))
        if not len(self) or not len(cases):
            return self._from_shared(np.empty((len(cases), 0)), np.zeros(1), moe, with_sd, self)
        facts, scale = self._facts_of(points[0], one)
        leaves = points[0, _LEAVES]
        shared = _shared_with(facts, scale, points)
        found = self._from_shared(shared, leaves, moe, with_sd, facts)
        again = np.flatnonzero(points[:, _RECOMPUTE] > 0)
        if len(again):
            keys = (getattr(cases.config, axis).astype(np.int64)[again] for axis in _BARE_AXES)
            first, index = distinct_rows(tuple(keys))
            bare = points[again[first]]
            bare[:, _RECOMPUTE] = 0.0
            shared = _shared_with(facts, scale, bare)
            found.bare_mean[again] = _mean(shared, leaves, moe[: len(bare)], facts)[index]
        return found

    def _facts_of(self, point: Floats, one: Mapping[str, Column]) -> tuple[_StudyFacts, Floats]:
        """The facts that say something of a study, the most alike first, and their likeness.

        Args:
            point: coordinates of one row of the study.
            one: its classes, columns of shape (1,).
        """
        key = (*point[_OF_STUDY].tolist(), *(str(one[name][0]) for name in CLASSES))
        if key not in self._studies:
            if len(self._studies) >= REMEMBERED:
                self._studies.clear()
            scale = class_covariance(one, self.labels)[0]
            gap = self.points[:, _OF_STUDY] - point[_OF_STUDY]
            likeness = scale * np.exp(-0.5 * np.square(gap).sum(axis=1))
            order = np.argsort(-likeness, kind="stable")
            order = order[likeness[order] > NEGLIGIBLE * likeness.max()]
            nearest = order[:NEAREST]
            labels = {name: column[nearest] for name, column in self.labels.items()}
            points = self.points[nearest]
            prior = covariance(points, labels, points, labels) + np.diag(self.noise[nearest])
            facts = _StudyFacts(
                self.points[order],
                self.weights[order],
                np.asarray(np.linalg.cholesky(prior), np.float64),
            )
            self._studies[key] = facts, scale[order].astype(np.float32)
        return self._studies[key]

    def _from_shared(
        self,
        shared: Floats,
        leaves: Any,
        moe: Column,
        with_sd: bool,
        facts: Residual | _StudyFacts,
    ) -> Prediction:
        """Predictions from the covariance of rows with some facts, shape (n, facts).

        ``leaves`` is the coordinate of leaving the scale-up domain, one of all rows or (n, 1).
        """
        own = np.square(signal_sd(moe))
        noise_sd = np.where(moe, MOE_NOISE_SD, DENSE_NOISE_SD)
        if not shared.shape[1]:
            return Prediction(np.zeros(len(own)), np.sqrt(own), noise_sd, np.zeros(len(own)))
        mean = _mean(shared, leaves, moe, facts)
        if not with_sd:
            return Prediction(mean, np.full(len(mean), np.nan), noise_sd, mean.copy())
        from scipy.linalg import solve_triangular

        factor = facts.factor
        nearest = shared[:, : len(factor)]
        known = solve_triangular(factor, nearest.T, lower=True, check_finite=False)
        sd = np.sqrt(np.maximum(own - np.square(known).sum(axis=0), 1e-12))
        return Prediction(mean, sd, noise_sd, mean.copy())

    def posterior_covariance(self, cases: Cases) -> Floats:
        """Covariance of what is still unknown of a few rows, shape (n, n), without scatter."""
        points, labels = features(cases), classes(cases)
        own = covariance(points, labels, points, labels)
        if not len(self):
            return own
        from scipy.linalg import solve_triangular

        shared = covariance(points, labels, self.points, self.labels)
        known = solve_triangular(self.factor, shared.T, lower=True)
        left: Floats = own - known.T @ known
        return left

    def as_json(self) -> dict[str, Any]:
        """The facts as data: rounded, so that the file is readable and small."""
        return {
            "features": list(FEATURES),
            "points": np.round(self.points, 4).tolist(),
            "labels": {name: list(map(str, column)) for name, column in self.labels.items()},
            "errors": np.round(self.errors, 5).tolist(),
            "noise": [float(f"{value:.4g}") for value in self.noise],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Residual:
        """A process from ``as_json``.

        Raises:
            InputError: the content is of another version or incomplete.
        """
        try:
            facts = _Facts.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "file"
            raise InputError(f"the residual facts are unusable: {where}: {first['msg']}.") from None
        if facts.features != list(FEATURES):
            raise InputError("the residual was fitted with other coordinates; fit it again.")
        count = len(facts.errors)
        columns = (facts.points, facts.noise, *(facts.labels.get(name, ()) for name in CLASSES))
        whole = all(len(point) == len(FEATURES) for point in facts.points)
        if not whole or any(len(column) != count for column in columns):
            raise InputError("the residual facts are incomplete; fit it again.")
        return cls(
            points=np.array(facts.points, dtype=np.float64).reshape(-1, len(FEATURES)),
            labels={name: np.array(facts.labels[name], dtype=object) for name in CLASSES},
            errors=np.array(facts.errors, dtype=np.float64),
            noise=np.array(facts.noise, dtype=np.float64),
        )


def _mean(shared: Floats, leaves: Any, moe: Column, facts: Residual | _StudyFacts) -> Floats:
    """Mean of rows, where leaving the scale-up domain is credited as far as runs like them say.

    Clusters whose runs came out faster than single nodes, against the physics, were other clusters:
    carried over whole, a GPU would gain by sharing its work with other nodes. Of what a row would
    gain over the same row within a domain, the part stays that its likest fact vouches for.

    Args:
        shared: covariance with the facts, shape (n, facts).
        leaves: coordinate of leaving the domain, one of all rows or (n, 1); 0 within it.
        moe: whether each row is of an MoE model, shape (n,).
        facts: with ``points`` and ``weights``.
    """
    mean: Floats = shared @ facts.weights
    if not shared.shape[1] or not np.any(leaves):
        return mean
    theirs = facts.points[:, _LEAVES]
    # One coordinate of a product of exponentials is exchanged for another.
    ratio = np.exp(0.5 * (np.square(leaves - theirs) - np.square(theirs)))
    if np.ndim(leaves):
        inside = np.einsum("ij,ij,j->i", shared, ratio, facts.weights)
    else:
        inside = shared @ (ratio * facts.weights)
    likeness = np.minimum(shared.max(axis=1) / np.square(signal_sd(moe)), 1.0)
    gain = np.maximum(mean - inside, 0.0)
    credited: Floats = mean - gain * (1.0 - np.square(likeness))
    return credited


def _shared_with(facts: _StudyFacts, scale: Floats, points: Floats) -> Floats:
    """Prior covariance of rows of a study with its facts, shape (n, facts).

    Single precision: exponentials are four times faster and off by less than 1e-5.
    """
    rows, theirs = points.astype(np.float32), facts.points.astype(np.float32)
    shared = rows @ theirs.T
    shared -= 0.5 * np.square(theirs).sum(axis=1)
    shared -= 0.5 * np.square(rows).sum(axis=1)[:, None]
    np.exp(np.minimum(shared, 0.0, out=shared), out=shared)
    shared *= scale
    result: Floats = shared.astype(np.float64)
    return result


class _Facts(BaseModel):
    """Schema of a residual file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    features: list[str]
    points: list[list[float]]
    labels: dict[str, list[str]]
    errors: list[float]
    noise: list[Annotated[float, Field(gt=0)]]


def signal_sd(moe: Column) -> Floats:
    """Prior sd of what the physics leaves, by row."""
    sd: Floats = SIGNAL_SD * np.where(moe, MOE_SIGNAL_FACTOR, 1.0)
    return sd


def covariance(
    points: Floats,
    labels: Mapping[str, Column],
    other_points: Floats,
    other_labels: Mapping[str, Column],
) -> Floats:
    """Prior covariance of log errors between rows and other rows, shape (n, m)."""
    squared = np.square(points).sum(axis=1)[:, None] + np.square(other_points).sum(axis=1)
    distance = np.maximum(squared - 2.0 * (points @ other_points.T), 0.0)
    shared: Floats = np.exp(-0.5 * distance) * class_covariance(labels, other_labels)
    return shared


def class_covariance(labels: Mapping[str, Column], other_labels: Mapping[str, Column]) -> Floats:
    """``covariance`` of rows that differ in their classes only, shape (n, m)."""
    exponent = np.zeros((len(labels["moe"]), len(other_labels["moe"])))
    for name, length in CLASSES.items():
        own, own_code = np.unique(labels[name].astype(str), return_inverse=True)
        code_of = {label: code for code, label in enumerate(own.tolist())}
        other_code = np.array([code_of.get(str(x), -1) for x in other_labels[name]], dtype=np.int64)
        exponent -= length**2 * (own_code[:, None] != other_code[None, :])
    sd = signal_sd(labels["moe"] == "moe")
    other_sd = signal_sd(other_labels["moe"] == "moe")
    shared: Floats = np.exp(exponent) * sd[:, None] * other_sd[None, :]
    return shared


def reweighted_noise(prior: Floats, moe: Column, errors: Floats, rounds: int = 2) -> Floats:
    """Noise variance of each row: larger where the row contradicts its neighbours (Student-t).

    Args:
        prior: covariance of the errors, shape (n, n).
        moe: whether each row is of an MoE model.
        errors: shape (n,).
        rounds: of reweighting.
    """
    base = np.square(np.where(moe, MOE_NOISE_SD, DENSE_NOISE_SD))
    noise = base.copy()
    for _ in range(rounds):
        weights = np.linalg.solve(prior + np.diag(noise), errors)
        scaled = np.square(noise * weights) / base
        noise = base * (STUDENT_DEGREES + scaled) / (STUDENT_DEGREES + 1.0)
    return noise
