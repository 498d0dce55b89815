"""What measured runs of a key (GPU x Stack x Model) teach, from one run on.

The errors of the projections are explained together by constants of the physics that are other on
this GPU and framework (a slower all-to-all, better GEMMs), by offsets of the levels GPU, Stack,
release and Model, and by how alike the configs are. Each has a prior variance
(``calibration_prior``), so one run moves a little of everything and ten runs move what they
identify, but no constant that projected times do not depend on, as the NIC's where its traffic
hides behind compute: the best linear unbiased prediction of a linear mixed model (Henderson 1975;
Rasmussen, Williams 2006). A run that contradicts the others loses weight, and runs that contradict
each other widen the interval of their key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from surrogate.calibration_prior import (
    KEY,
    LABELS,
    MOE_FACTOR,
    Facts,
    Labelled,
    alike,
    constant_sd,
    constant_slopes,
    labels_of,
    prior_variance,
    scatter_of,
    shared_covariance,
    squared_distance,
)
from surrogate.cases import Cases, Column
from surrogate.features import CONFIG_AXES, FEATURES, features
from surrogate.memory_calibration import MemoryFacts
from surrogate.pipeline.stages import distinct_rows
from surrogate.robust import student_noise
from surrogate.time_constants import TimeConstants
from surrogate.time_rates import BELIEFS

Floats = NDArray[np.float64]

LARGEST_LOG_ERROR = 3.0
"""A run this far from its projection (a factor of 20) was measured in another unit, or is of
another job (assumed: the physics is never that wrong where it is worth correcting)."""

PROJECTION_BIAS, PROJECTION_BIAS_SD = -0.10, 0.10
"""log(measured / projected) where no constant was ever fitted to runs: projections from profiles
are optimistic (Primus: +1.6% on its baseline, +11.5% on its winner)."""
SENSITIVE = 0.02
"""A run depends on a constant if 1% of the constant is at least this share of 1% of its time."""
AGREEING_RUNS = 4.0
"""So many runs must agree before the scatter of their key is believed to be small."""
SMALLEST_SCALE = 0.7
"""However well the runs of a key agree, its spread is at least this share of what is usual."""
SAME_CONFIG = 1e-6
"""Squared distance of coordinates, as rounded in files, up to which two configs are the same."""


@dataclass(frozen=True)
class Offset:
    """What a calibration says of n rows, columns of shape (n,).

    ``mean`` is the log offset, ``sd`` what is left of its prior sd and ``open_share`` the variance
    that is left over that of the prior; ``scale`` is the scatter of the runs of the row's key over
    the usual one: above 1 where they contradict each other, 1 with one run or none. ``calibrated``
    marks rows whose key has measured runs, ``measured`` those whose very config has one.
    """

    mean: Floats
    sd: Floats
    open_share: Floats
    scale: Floats
    calibrated: NDArray[np.bool_]
    measured: NDArray[np.bool_]

    @classmethod
    def unknown(cls, mean: Floats, prior: Floats) -> Offset:
        """Rows of which no run is known; ``prior`` is their variance."""
        one, never = np.ones(len(mean)), np.zeros(len(mean), dtype=bool)
        return cls(mean, np.sqrt(prior), one, one, never, never)

    @classmethod
    def known(
        cls,
        found: Posterior,
        mean: Floats,
        prior: Floats,
        shared: Floats,
        same_key: NDArray[np.bool_],
        measured: NDArray[np.bool_],
    ) -> Offset:
        """Rows that share ``shared``, shape (n, r), of their ``prior`` variance with r facts."""
        explained = np.einsum("ij,ij->i", shared @ found.inverse, shared)
        left = np.maximum(prior - explained, 1e-12)
        calibrated = np.asarray(same_key.any(axis=1))
        scale = np.where(calibrated, found.scale[same_key.argmax(axis=1)], 1.0)
        return cls(mean, np.sqrt(left), left / prior, scale, calibrated, measured)


class Posterior(NamedTuple):
    """What r facts say: ``weights`` of their errors in a mean, shape (r,); ``noise`` the variance
    of their scatter after reweighting; ``inverse`` of their covariance with the usual scatter; and
    ``scale``, the scatter of the runs of each one's key over the usual one."""

    weights: Floats
    noise: Floats
    inverse: Floats
    scale: Floats

    @classmethod
    def of(cls, prior: Floats, errors: Floats, scatter: Floats, key: Column) -> Posterior:
        """The posterior of r facts.

        Args:
            prior: covariance of what lies behind the errors, shape (r, r).
            errors: shape (r,).
            scatter: sd of each run around that, shape (r,).
            key: number of each one's CalibrationKey, shape (r,).
        """
        noise = student_noise(prior, errors, scatter)
        weights = np.asarray(np.linalg.solve(prior + np.diag(noise), errors), dtype=np.float64)
        usual = prior + np.diag(np.square(scatter))
        scale = np.ones(len(errors))
        for code in np.unique(key):
            rows = np.flatnonzero(key == code)
            scale[rows] = _scatter_scale(usual[np.ix_(rows, rows)], errors[rows])
        return cls(weights, noise, np.linalg.inv(usual), scale)


def _scatter_scale(covariance: Floats, errors: Floats) -> float:
    """Scatter of runs of one key around their common offset, over what their covariance expects.

    An inverse-gamma prior around 1 of AGREEING_RUNS runs; the common offset is free, so that one
    run, however surprising, says nothing of the scatter.
    """
    inverse = np.linalg.inv(covariance)
    centre = inverse.sum(axis=0) @ errors / inverse.sum()
    apart = errors - centre
    contradiction = apart @ inverse @ apart
    squared = (AGREEING_RUNS + contradiction) / (AGREEING_RUNS + len(errors) - 1.0)
    return float(np.sqrt(max(squared, SMALLEST_SCALE**2)))


@dataclass(frozen=True)
class Calibration:
    """Measured runs as facts: where they lie, what they are and how wrong the projection was.

    ``slopes`` are derivatives of log tokens/s by the log of each constant of ``BELIEFS``, shape
    (r, c); ``errors`` log(measured / projected), shape (r,); ``scatter`` the sd of each run around
    what runs like it have in common. ``bias`` is the prior mean of errors, ``projections`` a hash
    of what the errors were measured against, empty without runs. ``peaks`` are measured peaks of
    memory and runs out of memory.
    """

    points: Floats
    labels: Facts
    slopes: Floats
    errors: Floats
    scatter: Floats
    run_ids: tuple[str, ...]
    bias: float = 0.0
    bias_sd: float = 0.0
    projections: str = ""
    peaks: MemoryFacts = field(default_factory=MemoryFacts.nothing)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.errors)

    @classmethod
    def nothing(cls, fitted_to_runs: bool = True) -> Calibration:
        """No measured runs. Constants never fitted to runs are believed to be optimistic."""
        bias, sd = (0.0, 0.0) if fitted_to_runs else (PROJECTION_BIAS, PROJECTION_BIAS_SD)
        labels = {name: np.empty(0, dtype=object) for name in LABELS}
        none, points = np.empty(0), np.empty((0, len(FEATURES)))
        return cls(points, labels, np.empty((0, len(BELIEFS))), none, none, (), bias, sd)

    def with_runs(
        self,
        cases: Cases,
        errors: Floats,
        constants: TimeConstants,
        run_ids: tuple[str, ...],
        unstated: Column,
        projections: str = "",
    ) -> Calibration:
        """The facts of these runs added to those already there.

        Args:
            cases: n measured runs.
            errors: log(measured / projected without calibration), shape (n,).
            constants: with which they were projected.
            run_ids: one a run; a run that is already there is replaced.
            unstated: whether a run's recomputation is not stated, shape (n,).
            projections: hash of what the errors were measured against.

        Raises:
            InputError: the runs already there were measured against other projections.
        """
        new = Calibration(
            points=features(cases),
            labels={name: label.text(len(cases)) for name, label in labels_of(cases).items()},
            slopes=constant_slopes(cases, constants),
            errors=errors,
            scatter=scatter_of(cases, unstated),
            run_ids=run_ids,
            projections=projections,
        )
        return self.merged(new)

    def merged(self, other: Calibration) -> Calibration:
        """The runs of both; of a run that is in both, what ``other`` says.

        Raises:
            InputError: they were measured against other projections.
        """
        if self.projections and other.projections and self.projections != other.projections:
            raise InputError(
                "the calibrations were learned on projections of two versions; calibrate again "
                "from the runs."
            )
        keep = np.array([run_id not in other.run_ids for run_id in self.run_ids], dtype=bool)
        kept = tuple(run for run, k in zip(self.run_ids, keep, strict=True) if k)

        def joined(name: str) -> Floats:
            return np.concatenate([getattr(self, name)[keep], getattr(other, name)])

        return replace(
            self,
            points=joined("points"),
            labels={n: np.concatenate([self.labels[n][keep], other.labels[n]]) for n in LABELS},
            slopes=joined("slopes"),
            errors=joined("errors"),
            scatter=joined("scatter"),
            run_ids=(*kept, *other.run_ids),
            projections=other.projections or self.projections,
            peaks=self.peaks.merged(other.peaks),
        )

    @cached_property
    def _prior(self) -> Floats:
        """Covariance of what lies behind the errors of the facts, shape (r, r)."""
        labels = {name: Labelled.of(self.labels[name]) for name in LABELS}
        distance = squared_distance(self.points, self.points)
        shared = shared_covariance(labels, distance, self.labels, self.bias_sd**2)
        return shared + self._structural

    @cached_property
    def _posterior(self) -> Posterior:
        return Posterior.of(self._prior, self.errors - self.bias, self.scatter, self.key)

    @property
    def key(self) -> Column:
        """Number of the CalibrationKey of each run, shape (r,)."""
        codes = [Labelled.of(self.labels[name]).codes for name in KEY]
        numbers: Column = np.unique(np.column_stack(codes), axis=0, return_inverse=True)[1].ravel()
        return numbers

    @property
    def _structural(self) -> Floats:
        """Covariance of the facts by constants of their GPU and framework, shape (r, r)."""
        own = self.slopes * constant_sd()
        labels = {name: Labelled.of(self.labels[name]) for name in ("gpu", "framework")}
        structural: Floats = (own @ own.T) * alike(labels, self.labels, "gpu", "framework")
        return structural

    def constant_factors(self, gpu: str, framework: str) -> dict[str, float]:
        """Factors on the constants of the physics for a GPU and framework; empty if unmeasured."""
        rows = (self.labels["gpu"] == gpu) & (self.labels["framework"] == framework)
        if not rows.any():
            return {}
        moved = constant_sd() ** 2 * (self.slopes[rows].T @ self._posterior.weights[rows])
        return {name: float(np.exp(m)) for name, m in zip(BELIEFS, moved, strict=True)}

    def offset(self, cases: Cases) -> Offset:
        """What is left after the constants have moved, shape (n,).

        Rows of one study that agree in the coordinates are computed once.
        """
        rows = len(cases)
        factor = np.where(cases.model.num_experts > 0, MOE_FACTOR**2, 1.0)
        prior = np.broadcast_to(prior_variance(self.bias_sd**2) * factor, (rows,))
        if not len(self):
            return Offset.unknown(np.full(rows, self.bias), prior)
        if np.ndim(cases.model_index) == np.ndim(cases.cluster.gpu) == 0:
            keys = tuple(getattr(cases.config, axis).astype(np.int64) for axis in CONFIG_AXES)
            first, index = distinct_rows(keys)
            found = self._offset(cases.take(first), prior[first])
            return Offset(**{f.name: getattr(found, f.name)[index] for f in fields(Offset)})
        return self._offset(cases, prior)

    def _offset(self, cases: Cases, prior: Floats) -> Offset:
        """``offset`` of rows of ``prior`` variance, each computed for itself."""
        labels = labels_of(cases)
        distance = squared_distance(features(cases), self.points)
        shared = shared_covariance(labels, distance, self.labels, self.bias_sd**2)
        same = alike(labels, self.labels, *KEY)
        near = distance < SAME_CONFIG
        near &= same & alike(
            labels, self.labels, "release", "precision", "dispatcher", "tp", "sharding"
        )
        return Offset.known(
            self._posterior,
            mean=self.bias + shared @ self._posterior.weights,
            prior=prior,
            shared=shared,
            same_key=np.broadcast_to(same, shared.shape),
            measured=np.asarray(near.any(axis=1)),
        )

    def leave_one_out(self) -> tuple[Floats, Floats]:
        """(error left, its sd) of each run when all others are known, shape (r,).

        Rasmussen, Williams (2006), equation 5.12. The sd is that of a usual run: what others say
        of a run does not depend on how much it surprises.
        """
        weights, noise = self._posterior.weights, self._posterior.noise
        variance = 1.0 / np.diag(np.linalg.inv(self._prior + np.diag(noise)))
        usual = variance - noise + np.square(self.scatter)
        return weights * variance, np.sqrt(np.maximum(usual, np.square(self.scatter)))

    def moves(self) -> Floats:
        """Log factor by which constants and offset move the projection of each run, shape (r,)."""
        moved: Floats = self.errors - self._posterior.noise * self._posterior.weights
        return moved

    def key_scale(self) -> Floats:
        """Scatter of the runs of each one's key over the usual one, shape (r,)."""
        return self._posterior.scale

    def moved_constants(self) -> list[MovedConstant]:
        """Constants that the runs move, the most consequential first."""
        found: list[MovedConstant] = []
        places = zip(self.labels["gpu"], self.labels["framework"], strict=True)
        for gpu, framework in dict.fromkeys(places):
            here = (self.labels["gpu"] == gpu) & (self.labels["framework"] == framework)
            factors = self.constant_factors(gpu, framework)
            for column, (name, factor) in enumerate(factors.items()):
                slopes = self.slopes[here][:, column]
                effect = float(np.abs(slopes * np.log(factor)).max())
                found.append(
                    MovedConstant(
                        constant=name,
                        gpu=gpu,
                        framework=framework,
                        factor=factor,
                        largest_effect=effect,
                        runs=int((np.abs(slopes) > SENSITIVE).sum()),
                    )
                )
        return sorted(found, key=lambda moved: -moved.largest_effect)


class MovedConstant(NamedTuple):
    """A constant that is other on a GPU and framework.

    ``largest_effect`` is how far that moves the log throughput of the run that it moves most,
    ``runs`` how many runs depend on the constant.
    """

    constant: str
    gpu: str
    framework: str
    factor: float
    largest_effect: float
    runs: int


class Rehearsal:
    """A calibration on all runs of a table, from which any subset can be revealed."""

    def __init__(self, everything: Calibration, before: int) -> None:
        """``before`` facts were known from the start; the runs of the table follow them."""
        self.facts, self.before = everything, before
        self.prior = everything._prior
        self.shared = self.prior - everything._structural
        self.key = everything.key

    def after(self, known: Column, rest: Column) -> Offset:
        """What is known of ``rest`` once ``known`` are revealed; rows of the table."""
        facts, seen = self.facts, np.concatenate([np.arange(self.before), known + self.before])
        rows = rest + self.before
        own = np.diag(self.shared)[rows]
        if not len(seen):
            return Offset.unknown(np.full(len(rows), facts.bias), own)
        key = self.key[seen]
        found = Posterior.of(
            self.prior[np.ix_(seen, seen)],
            facts.errors[seen] - facts.bias,
            facts.scatter[seen],
            key,
        )
        return Offset.known(
            found,
            mean=facts.bias + self.prior[np.ix_(rows, seen)] @ found.weights,
            prior=own,
            shared=self.shared[np.ix_(rows, seen)],
            same_key=self.key[rows][:, None] == key[None, :],
            measured=np.zeros(len(rows), dtype=bool),
        )
