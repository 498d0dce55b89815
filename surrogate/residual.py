"""What measured runs say beyond the physics: a Gaussian process on log(measured / physics).

The mean of a new run is a weighted sum of the errors of runs like it (``features``), and 0, the
physics itself, where none is. Few facts make a large difference here and trees extrapolate by
standing still: on Folds left out of 1,130 public runs this beat gradient-boosted trees on the same
coordinates, fits in a second and says how much it does not know.

Rasmussen, Williams: Gaussian Processes for Machine Learning (2006), algorithm 2.1; noise is
reweighted as in Student-t regression, so that a mislabelled row does not pull its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.errors import InputError
from surrogate.cases import Cases, Column
from surrogate.features import (
    CLASSES,
    FEATURES,
    MESH,
    MESH_AXES,
    STYLE,
    classes,
    features,
    style_keys,
)
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
UNTHREADED = 1 << 18
"""Multiplications of a matrix product up to which OpenBLAS starts no threads: on so little they
would wait for each other longer than they work."""
POINTS_AT_ONCE = UNTHREADED // NEAREST**2
ROWS_AT_ONCE = 256
"""Points of a study, and rows of any models, computed at once; both stay in the cache."""
MOST_CREDITED = 0.9
"""Recomputation is never free: of its cost in the physics, at most this share is credited back.
Assumed: runs left out are predicted equally well at any share from 0.9 to 1."""
_LEAVES = FEATURES.index("leaves_domain")
_RECOMPUTE = FEATURES.index("recompute")
_MESH, _STYLE = ([FEATURES.index(name) for name in names] for names in (MESH, STYLE))
_OF_STUDY = [i for i, name in enumerate(FEATURES) if name not in MESH + STYLE]
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
    """Facts of one study, the most alike first.

    ``scale`` is their covariance with a config of the study that has their MESH and STYLE, shape
    (r,). ``weights``, shape (r, 2), make a mean of covariances, and the mean of the same config
    within a scale-up domain. ``whitening`` is the inverse of the Cholesky factor of the first few.
    """

    points: Floats
    scale: Floats
    weights: Floats
    whitening: Floats

    def whitened(self, shared: Floats) -> Floats:
        """Covariance with the facts, shape (n, r), as that with few uncorrelated ones."""
        return self.whitening @ shared[:, : len(self.whitening)].T


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
    _studies: dict[Any, _StudyFacts] = field(default_factory=dict, compare=False, repr=False)

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
            cases: n rows; those of one study are computed from the facts that say something of it.
            with_sd: whether to compute ``sd`` (NaN otherwise).
        """
        moe = np.broadcast_to(cases.model.num_experts > 0, (len(cases),))
        noise_sd = np.where(moe, MOE_NOISE_SD, DENSE_NOISE_SD)
        if not len(self) or not len(cases):
            return Prediction(np.zeros(len(moe)), signal_sd(moe), noise_sd, np.zeros(len(moe)))
        find = self._of_study if cases.is_study else self._of_rows
        mean, sd, bare_mean = find(cases, signal_sd(moe), with_sd)
        return Prediction(mean, sd, noise_sd, bare_mean)

    def _of_study(
        self, cases: Cases, own_sd: Floats, with_sd: bool
    ) -> tuple[Floats, Floats, Floats]:
        """Mean, sd and bare mean of rows that share model, GPU and stack.

        Each gets the same in any company. Likeness is a product over coordinates: that in MESH and
        that in STYLE are computed once for each of the few distinct ones.
        """
        facts, own_sd = self._facts_of(cases.take(slice(0, 1))), own_sd[:1]
        first, mesh = distinct_rows(tuple(getattr(cases.config, axis) for axis in MESH_AXES))
        meshes = features(cases.take(first))[:, _MESH]
        first, style = distinct_rows(style_keys(cases))
        styles = features(cases.take(first))[:, _STYLE]
        bare = styles * (np.array(STYLE) != "recompute")
        styles, kind = np.unique(np.concatenate([styles, bare]), axis=0, return_inverse=True)
        by_mesh = _likeness(meshes, facts.points[:, _MESH])
        by_mesh *= facts.scale
        by_style = _likeness(styles, facts.points[:, _STYLE])
        # Every row twice: as it is, and as if it recomputed nothing.
        mesh = np.tile(mesh, 2)
        as_is, without = kind.reshape(2, -1)
        style = np.concatenate([as_is[style], without[style]])
        first, index = distinct_rows((mesh, style))

        def shared(some: slice) -> Floats:
            found: Floats = by_mesh.take(mesh[first[some]], axis=0)
            found *= by_style.take(style[first[some]], axis=0)
            return found

        blocks = _blocks(len(first), POINTS_AT_ONCE)
        whitened = facts.whitened if with_sd else None
        sums, closest, known = _explained(blocks, shared, facts.weights, whitened)
        mean = _credited(sums[:, 0], sums[:, 1], closest, own_sd)
        sd = _left_sd(known, own_sd)
        return mean[index[: len(cases)]], sd[index[: len(cases)]], mean[index[len(cases) :]]

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
        ratio = _ratio_within_domain(float(leaves.max(initial=0.0)), self.points[:, _LEAVES])

        def shared(some: slice) -> Floats:
            found = _likeness(points[some], self.points)
            found *= by_kind.take(kind[some], axis=0)
            return found

        blocks = _blocks(len(points), ROWS_AT_ONCE)
        weights = np.column_stack([self.weights, ratio * self.weights])
        whitened = self._whitened if with_sd else None
        sums, closest, known = _explained(blocks, shared, weights, whitened)
        inside = np.where(leaves > 0, sums[:, 1], sums[:, 0])
        return _credited(sums[:, 0], inside, closest, own_sd), _left_sd(known, own_sd)

    def _whitened(self, shared: Floats) -> Floats:
        """Covariance with all facts, shape (n, r), as that with uncorrelated ones, shape (r, n)."""
        from scipy.linalg import solve_triangular

        whitened: Floats = solve_triangular(self.factor, shared.T, lower=True, check_finite=False)
        return whitened

    def _facts_of(self, one: Cases) -> _StudyFacts:
        """The facts that say something of a study, the most alike first; ``one`` is a row of it."""
        point, labels = features(one)[0], classes(one)
        key = (*point[_OF_STUDY].tolist(), *(str(labels[name][0]) for name in CLASSES))
        if key not in self._studies:
            if len(self._studies) >= REMEMBERED:
                self._studies.clear()
            self._studies[key] = self._study_facts(point, labels)
        return self._studies[key]

    def _study_facts(self, point: Floats, labels: Mapping[str, Column]) -> _StudyFacts:
        """Facts of a study from the coordinates of one row, shape (f,), and its classes."""
        scale = class_covariance(labels, self.labels)[0]
        scale = scale * _likeness(point[None, _OF_STUDY], self.points[:, _OF_STUDY])[0]
        order = np.argsort(-scale, kind="stable")
        order = order[scale[order] > NEGLIGIBLE * scale.max()]
        nearest = order[:NEAREST]
        near_labels = {name: column[nearest] for name, column in self.labels.items()}
        near = self.points[nearest]
        prior = covariance(near, near_labels, near, near_labels) + np.diag(self.noise[nearest])
        ratio = _ratio_within_domain(float(point[_LEAVES]), self.points[order, _LEAVES])
        weights = self.weights[order]
        return _StudyFacts(
            points=self.points[order],
            scale=scale[order],
            weights=np.column_stack([weights, ratio * weights]),
            whitening=np.asarray(np.linalg.inv(np.linalg.cholesky(prior)), dtype=np.float64),
        )

    def posterior_covariance(self, cases: Cases) -> Floats:
        """Covariance of what is still unknown of a few rows, shape (n, n), without scatter."""
        points, labels = features(cases), classes(cases)
        own = covariance(points, labels, points, labels)
        if not len(self):
            return own
        known = self._whitened(covariance(points, labels, self.points, self.labels))
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


def _ratio_within_domain(leaves: float, theirs: Floats) -> Floats:
    """Likeness to each fact within a scale-up domain over that outside of it, shape (r,).

    One coordinate of a product of exponentials, ``leaves``, is exchanged for 0.
    """
    ratio: Floats = np.exp(0.5 * (np.square(leaves - theirs) - np.square(theirs)))
    return ratio


def _blocks(count: int, at_once: int) -> list[slice]:
    """Consecutive slices of ``count`` rows."""
    return [slice(start, min(start + at_once, count)) for start in range(0, count, at_once)]


def _explained(
    blocks: Sequence[slice],
    shared: Callable[[slice], Floats],
    weights: Floats,
    whitened: Callable[[Floats], Floats] | None,
) -> tuple[Floats, Floats, Floats]:
    """Sums, shape (n, 2), largest covariance and explained variance of points, shape (n,).

    Args:
        blocks: of the n points.
        shared: covariance of the points of a block with r facts, shape (some, r).
        weights: of the sums, shape (r, 2).
        whitened: see ``Residual._whitened``; None where the variance is not asked for (NaN then).
    """
    count = blocks[-1].stop if blocks else 0
    sums, closest, known = np.empty((count, 2)), np.empty(count), np.full(count, np.nan)
    for some in blocks:
        block = shared(some)
        sums[some] = block @ weights
        closest[some] = block.max(axis=1)
        if whitened:
            known[some] = np.square(whitened(block)).sum(axis=0)
    return sums, closest, known


def _credited(mean: Floats, inside: Floats, closest: Floats, own_sd: Floats) -> Floats:
    """Mean of rows, where leaving the scale-up domain is credited as far as runs like them say.

    Clusters whose runs came out faster than single nodes, against the physics, were other clusters:
    carried over whole, a GPU would gain by sharing its work with other nodes. Of what a row would
    gain over the same row within a domain, the part stays that its likest fact vouches for.

    Args:
        mean: of all facts, shape (n,).
        inside: the same for the row within a domain.
        closest: largest covariance with a fact.
        own_sd: prior sd of the row.
    """
    likeness = np.minimum(closest / np.square(own_sd), 1.0)
    gain = np.maximum(mean - inside, 0.0)
    credited: Floats = mean - gain * (1.0 - np.square(likeness))
    return credited


def _left_sd(known: Floats, own_sd: Floats) -> Floats:
    """What is left of a prior sd once ``known`` of its variance is explained."""
    left: Floats = np.sqrt(np.maximum(np.square(own_sd) - known, 1e-12))
    return left


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
    shared: Floats = _likeness(points, other_points) * class_covariance(labels, other_labels)
    return shared


def _likeness(points: Floats, others: Floats) -> Floats:
    """Likeness by coordinates alone, shape (n, m): 1 for equal ones."""
    likeness = np.empty((len(points), len(others)))
    squared, other_squared = (0.5 * np.square(x).sum(axis=1) for x in (points, others))
    for some in _blocks(len(points), max(UNTHREADED // max(others.size, 1), 1)):
        exponent = np.matmul(points[some], others.T, out=likeness[some])
        exponent -= squared[some, None]
        exponent -= other_squared
        np.exp(exponent, out=exponent)
    return likeness


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
