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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.errors import InputError
from surrogate.cases import Cases, Column
from surrogate.features import CLASSES, FEATURES, classes, features
from surrogate.likeness import class_covariance, covariance, likeness, signal_sd
from surrogate.pipeline.stages import distinct_rows
from surrogate.posterior import blocks, credited, explained, left_sd, ratio_within_domain
from surrogate.step_time import StepTime
from surrogate.study_residual import OF_STUDY, StudyFacts, implied_by_few

Floats = NDArray[np.float64]

DENSE_NOISE_SD, MOE_NOISE_SD = 0.015, 0.10
"""Scatter of runs with equal stated layout: releases, kernels and flags that no row states."""
STUDENT_DEGREES = 1.5
NEGLIGIBLE = 1e-3
"""Facts whose covariance with a study is below this share of the largest are left out of it:
together they move a mean by less than 1e-3."""
REMEMBERED = 16
"""Studies whose facts are kept at hand."""
ROWS_AT_ONCE = 256
"""Rows of any models computed at once: their covariance with all facts stays in the cache."""
MOST_CREDITED = 0.9
"""Recomputation is never free: of its cost in the physics, at most this share is credited back.
Assumed: runs left out are predicted equally well at any share from 0.9 to 1."""
_LEAVES = FEATURES.index("leaves_domain")
_RECOMPUTE = FEATURES.index("recompute")


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
class Residual:
    """A fitted process: its facts and what follows from them.

    ``points`` has shape (r, f), ``labels`` holds the classes of each fact, ``errors`` its
    log(measured / physics) and ``noise`` the variance of its scatter after reweighting.
    """

    points: Floats
    labels: Mapping[str, Column]
    errors: Floats
    noise: Floats
    _studies: dict[Any, StudyFacts] = field(default_factory=dict, compare=False, repr=False)

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
    def _merged(self) -> Residual:
        """The same process with one fact for all runs of equal coordinates and classes.

        Their errors are averaged and their noise shrinks: the same is predicted, from fewer facts.
        """
        codes = [np.unique(self.labels[n].astype(str), return_inverse=True)[1] for n in CLASSES]
        place = np.column_stack([self.points, *codes])
        _, first, index = np.unique(place, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)
        first, fact_of_run = first[order], np.argsort(order)[index.ravel()]
        precision = np.bincount(fact_of_run, 1.0 / self.noise)
        return Residual(
            points=self.points[first],
            labels={name: column[first] for name, column in self.labels.items()},
            errors=np.bincount(fact_of_run, self.errors / self.noise) / precision,
            noise=1.0 / precision,
        )

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
            cases: n rows; those of one study are computed from the facts that say something of it.
            with_sd: whether to compute ``sd`` (NaN otherwise).
        """
        moe = np.broadcast_to(cases.model.num_experts > 0, (len(cases),))
        noise_sd = np.where(moe, MOE_NOISE_SD, DENSE_NOISE_SD)
        if not len(self) or not len(cases):
            return Prediction(np.zeros(len(moe)), signal_sd(moe), noise_sd, np.zeros(len(moe)))
        find = self._facts_of(cases).predict if cases.is_study else self._merged._of_rows
        mean, sd, bare_mean = find(cases, signal_sd(moe), with_sd)
        return Prediction(mean, sd, noise_sd, bare_mean)

    def _of_rows(
        self, cases: Cases, own_sd: Floats, with_sd: bool
    ) -> tuple[Floats, Floats, Floats]:
        """Mean, sd and bare mean of rows of any models, from all facts."""
        points = features(cases)
        place = (cases.model_index, cases.cluster.gpu, cases.stack_index)
        first, kind = distinct_rows(tuple(np.broadcast_to(index, own_sd.shape) for index in place))
        by_kind = class_covariance(classes(cases.take(first)), self.labels)
        mean, sd = self._from_all_facts(points, by_kind, kind, own_sd, with_sd)
        again = np.flatnonzero(points[:, _RECOMPUTE] > 0)
        bare, bare_mean = points[again], mean.copy()
        bare[:, _RECOMPUTE] = 0.0
        bare_mean[again], _ = self._from_all_facts(bare, by_kind, kind[again], own_sd[again], False)
        return mean, sd, bare_mean

    def _from_all_facts(
        self, points: Floats, by_kind: Floats, kind: Column, own_sd: Floats, with_sd: bool
    ) -> tuple[Floats, Floats]:
        """Mean and sd of points, whose classes ``by_kind``, shape (k, r), and ``kind`` describe."""
        leaves = points[:, _LEAVES]
        ratio = ratio_within_domain(float(leaves.max(initial=0.0)), self.points[:, _LEAVES])

        def shared(some: slice) -> Floats:
            found = likeness(points[some], self.points)
            found *= by_kind.take(kind[some], axis=0)
            return found

        parts = blocks(len(points), ROWS_AT_ONCE)
        weights = np.column_stack([self.weights, ratio * self.weights])
        whitened = self._whitened if with_sd else None
        sums, closest, known = explained(parts, shared, weights, whitened)
        inside = np.where(leaves > 0, sums[:, 1], sums[:, 0])
        return credited(sums[:, 0], inside, closest, own_sd), left_sd(known, own_sd)

    def _whitened(self, shared: Floats) -> Floats:
        """Covariance with all facts, shape (n, r), as that with uncorrelated ones, shape (r, n)."""
        from scipy.linalg import solve_triangular

        whitened: Floats = solve_triangular(self.factor, shared.T, lower=True, check_finite=False)
        return whitened

    def _facts_of(self, cases: Cases) -> StudyFacts:
        """The facts that say something of the study of these rows."""
        one = cases.take(slice(0, 1))
        point, labels = features(one)[0], classes(one)
        key = (*point[OF_STUDY].tolist(), *(str(labels[name][0]) for name in CLASSES))
        if key not in self._studies:
            if len(self._studies) >= REMEMBERED:
                self._studies.clear()
            self._studies[key] = self._study_facts(point, labels)
        return self._studies[key]

    def _study_facts(self, point: Floats, labels: Mapping[str, Column]) -> StudyFacts:
        """Facts of a study from the coordinates of one row, shape (f,), and its classes."""
        facts = self._merged
        scale = class_covariance(labels, facts.labels)[0]
        scale *= likeness(point[None, OF_STUDY], facts.points[:, OF_STUDY])[0]
        least = NEGLIGIBLE * scale.max()
        order = np.argsort(-scale, kind="stable")
        order = order[scale[order] > least]
        kept, implied = implied_by_few(facts.points[order], scale[order])
        whole = np.zeros((len(kept), len(facts)))
        whole[:, order] = implied
        order = np.concatenate([order[kept], np.delete(order, kept)])
        ratio = ratio_within_domain(float(point[_LEAVES]), facts.points[order, _LEAVES])
        weights = facts.weights[order]
        return StudyFacts(
            points=facts.points[order],
            scale=scale[order],
            weights=np.column_stack([weights, ratio * weights]),
            whitening=np.asarray(np.linalg.qr(facts._whitened(whole), mode="r"), dtype=np.float64),
        )

    def posterior_covariance(self, cases: Cases) -> Floats:
        """Covariance of what is still unknown of a few rows, shape (n, n), without scatter."""
        points, labels = features(cases), classes(cases)
        own = covariance(points, labels, points, labels)
        if not len(self):
            return own
        facts = self._merged
        known = facts._whitened(covariance(points, labels, facts.points, facts.labels))
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


class _Facts(BaseModel):
    """Schema of a residual file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    features: list[str]
    points: list[list[float]]
    labels: dict[str, list[str]]
    errors: list[float]
    noise: list[Annotated[float, Field(gt=0)]]


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
