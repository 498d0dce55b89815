"""What measured runs of a key (GPU x Stack x Model) teach, from one run on.

The errors of the projections are explained, in this order of preference, by constants of the
physics that are other on this GPU and framework (a NIC shared by more, a slower all-to-all), by
offsets of the levels GPU, Stack, release and Model, and by how alike the configs are. Each has a
prior variance, so one run moves a little of everything and ten runs move what they identify: the
best linear unbiased prediction of a linear mixed model (Henderson 1975; Rasmussen, Williams 2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.choices import MoeDispatcher, Precision
from specs.errors import InputError
from surrogate.cases import Cases, Column
from surrogate.constants import write_json
from surrogate.features import FEATURES, features
from surrogate.pipeline.stages import stage_columns
from surrogate.step_time import step_time
from surrogate.time_constants import TimeConstants, nudged, prior_of
from surrogate.time_rates import ALIASES, BELIEFS, RATE_COLUMNS

Floats = NDArray[np.float64]

SCHEMA_VERSION: Literal[1] = 1
MOE_FACTOR = 1.5
"""Errors of MoE runs vary this much more than those of dense runs, on Folds left out."""
NOISE_SD, MOE_NOISE_FACTOR = 0.025, 2.5
"""Scatter of runs with equal stated layout, dense, and how much more it is for MoE models."""
LARGEST_LOG_ERROR = 3.0
"""A run this far from its projection (a factor of 20) was measured in another unit, or is of
another job (assumed: the physics is never that wrong where it is worth correcting)."""
SMALLEST_CONSTANT_SD = 0.1
"""A constant may be at least this different on a GPU and framework of its own (log sd)."""

LEVELS = {
    ("gpu",): 0.015,
    ("gpu", "framework"): 0.02,
    ("gpu", "model"): 0.03,
    ("gpu", "framework", "release"): 0.015,
    ("gpu", "framework", "model"): 0.035,
}
"""Sd of the log offset that runs of one level share, dense models; measured on Folds left out."""

CONFIG_SD = 0.12
"""Sd of the log error that runs of one key share when their configs are alike."""
CONFIG_REACH = 0.6
"""How fast likeness of configs decays within a key, of the rate of the residual."""
DIFFERENT = {"release": 0.5, "precision": 0.5, "dispatcher": 1.0}
"""Runs of one key are exp(-this) alike when they differ in it."""
LABELS = ("gpu", "framework", "release", "model", "precision", "dispatcher", "kind")

PROJECTION_BIAS, PROJECTION_BIAS_SD = -0.10, 0.10
"""log(measured / projected) where no constant was ever fitted to runs: projections from profiles
are optimistic (Primus: +1.6% on its baseline, +11.5% on its winner)."""
STEP = 1e-3
SENSITIVE = 0.02
"""A run depends on a constant if 1% of the constant is at least this share of 1% of its time."""


@dataclass(frozen=True)
class Offset:
    """What a calibration says of n rows, columns of shape (n,).

    ``mean`` is the log offset, ``sd`` what is left of its prior sd and ``open_share`` the variance
    that is left over that of the prior; ``calibrated`` marks rows whose key has measured runs,
    ``measured`` those whose very config has one.
    """

    mean: Floats
    sd: Floats
    open_share: Floats
    calibrated: NDArray[np.bool_]
    measured: NDArray[np.bool_]


@dataclass(frozen=True)
class Calibration:
    """Measured runs as facts: where they lie, what they are and how wrong the projection was.

    ``slopes`` are derivatives of log tokens/s by the log of each constant of ``BELIEFS``, shape
    (r, c); ``errors`` log(measured / projected), shape (r,). ``bias`` is the prior mean of errors.
    """

    points: Floats
    labels: Mapping[str, Column]
    slopes: Floats
    errors: Floats
    run_ids: tuple[str, ...]
    bias: float = 0.0
    bias_sd: float = 0.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.errors)

    @classmethod
    def nothing(cls, fitted_to_runs: bool = True) -> Calibration:
        """No measured runs. Constants never fitted to runs are believed to be optimistic."""
        bias, sd = (0.0, 0.0) if fitted_to_runs else (PROJECTION_BIAS, PROJECTION_BIAS_SD)
        labels = {name: np.empty(0, dtype=object) for name in LABELS}
        empty = np.empty((0, len(FEATURES)))
        return cls(empty, labels, np.empty((0, len(BELIEFS))), np.empty(0), (), bias, sd)

    def with_runs(
        self, cases: Cases, errors: Floats, constants: TimeConstants, run_ids: tuple[str, ...]
    ) -> Calibration:
        """The facts of these runs added to those already there.

        Args:
            cases: n measured runs.
            errors: log(measured / projected without calibration), shape (n,).
            constants: with which they were projected.
            run_ids: one a run; a run that is already there is replaced.
        """
        keep = np.array([run_id not in run_ids for run_id in self.run_ids], dtype=bool)
        labels = labels_of(cases)
        return Calibration(
            points=np.vstack([self.points[keep], features(cases)]),
            labels={n: np.concatenate([self.labels[n][keep], labels[n]]) for n in LABELS},
            slopes=np.vstack([self.slopes[keep], constant_slopes(cases, constants)]),
            errors=np.concatenate([self.errors[keep], errors]),
            run_ids=(*(r for r, k in zip(self.run_ids, keep, strict=True) if k), *run_ids),
            bias=self.bias,
            bias_sd=self.bias_sd,
            about=self.about,
        )

    @cached_property
    def _weights(self) -> Floats:
        """Weight of each fact in an offset."""
        return np.asarray(np.linalg.solve(self._covariance, self.errors - self.bias))

    @cached_property
    def _covariance(self) -> Floats:
        """Covariance of the facts with their scatter."""
        prior = self._shared(self.points, self.labels) + self._structural(self.labels, self.slopes)
        moe = self.labels["kind"] == "moe"
        noise = np.square(NOISE_SD * np.where(moe, MOE_NOISE_FACTOR, 1.0))
        covariance: Floats = prior + np.diag(noise)
        return covariance

    def _shared(self, points: Floats, labels: Mapping[str, Column]) -> Floats:
        """Covariance of rows with the facts by levels and likeness of configs, shape (n, r)."""
        same = {name: labels[name][:, None] == self.labels[name][None, :] for name in LABELS}
        total = np.full((len(points), len(self)), self.bias_sd**2)
        for level, sd in LEVELS.items():
            total += sd**2 * np.logical_and.reduce([same[name] for name in level])
        squared = np.square(points).sum(axis=1)[:, None] + np.square(self.points).sum(axis=1)
        distance = np.maximum(squared - 2.0 * points @ self.points.T, 0.0)
        exponent = -0.5 * CONFIG_REACH * distance
        for name, penalty in DIFFERENT.items():
            exponent = exponent - penalty * ~same[name]
        key = same["gpu"] & same["framework"] & same["model"]
        total += np.where(key, CONFIG_SD**2 * np.exp(exponent), 0.0)
        total *= same["kind"]
        scale = np.where(labels["kind"] == "moe", MOE_FACTOR, 1.0)
        own = np.where(self.labels["kind"] == "moe", MOE_FACTOR, 1.0)
        shared: Floats = total * scale[:, None] * own[None, :]
        return shared

    def _structural(self, labels: Mapping[str, Column], slopes: Floats) -> Floats:
        """Covariance of rows with the facts by constants of their GPU and framework, (n, r)."""
        spread = slopes * constant_sd()
        own = self.slopes * constant_sd()
        together = labels["gpu"][:, None] == self.labels["gpu"][None, :]
        together &= labels["framework"][:, None] == self.labels["framework"][None, :]
        structural: Floats = (spread @ own.T) * together
        return structural

    def constant_factors(self, gpu: str, framework: str) -> dict[str, float]:
        """Factors on the constants of the physics for a GPU and framework; empty if unmeasured."""
        rows = (self.labels["gpu"] == gpu) & (self.labels["framework"] == framework)
        if not rows.any():
            return {}
        moved = constant_sd() ** 2 * (self.slopes[rows].T @ self._weights[rows])
        return {name: float(np.exp(m)) for name, m in zip(BELIEFS, moved, strict=True)}

    def offset(self, cases: Cases) -> Offset:
        """What is left after the constants have moved, shape (n,)."""
        scale = np.where(cases.model.num_experts > 0, MOE_FACTOR, 1.0)
        prior = np.broadcast_to(self.prior_variance() * scale**2, (len(cases),))
        if not len(self):
            never = np.zeros(len(cases), dtype=bool)
            full = np.full(len(cases), self.bias)
            return Offset(full, np.sqrt(prior), np.ones(len(cases)), never, never)
        labels, points = labels_of(cases), features(cases)
        shared = self._shared(points, labels)
        explained = np.einsum("ij,ji->i", shared, np.linalg.solve(self._covariance, shared.T))
        same = np.ones(shared.shape, dtype=bool)
        for name in ("gpu", "framework", "model"):
            same &= labels[name][:, None] == self.labels[name][None, :]
        alike = same & (labels["release"][:, None] == self.labels["release"][None, :])
        alike &= labels["precision"][:, None] == self.labels["precision"][None, :]
        distance = np.abs(points[:, None, :] - self.points[None, :, :]).max(axis=2)
        left = np.maximum(prior - explained, 1e-12)
        return Offset(
            mean=self.bias + shared @ self._weights,
            sd=np.sqrt(left),
            open_share=left / prior,
            calibrated=np.asarray(same.any(axis=1)),
            measured=np.asarray((alike & (distance < 1e-6)).any(axis=1)),
        )

    def leave_one_out(self) -> tuple[Floats, Floats]:
        """(error left, its sd) of each run when all others are known, shape (r,).

        Rasmussen, Williams (2006), equation 5.12.
        """
        inverse = np.linalg.inv(self._covariance)
        variance = 1.0 / np.diag(inverse)
        return self._weights * variance, np.sqrt(variance)

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

    def rehearsal(
        self, cases: Cases, errors: Floats, constants: TimeConstants, run_ids: tuple[str, ...]
    ) -> Rehearsal:
        """What these runs would teach of each other; arguments as in ``with_runs``."""
        everything = self.with_runs(cases, errors, constants, run_ids)
        return Rehearsal(everything, len(everything) - len(cases))

    def prior_variance(self) -> float:
        """Variance of the log offset of a dense run of which nothing is known."""
        return sum(sd**2 for sd in LEVELS.values()) + CONFIG_SD**2 + self.bias_sd**2

    def as_json(self) -> dict[str, Any]:
        """The calibration as data."""
        return {
            "schema_version": SCHEMA_VERSION,
            **self.about,
            "bias": self.bias,
            "bias_sd": self.bias_sd,
            "features": list(FEATURES),
            "constants": list(BELIEFS),
            "runs": [
                {
                    "run_id": self.run_ids[i],
                    "log_error": round(float(self.errors[i]), 5),
                    "labels": {name: str(self.labels[name][i]) for name in LABELS},
                    "point": np.round(self.points[i], 4).tolist(),
                    "slopes": np.round(self.slopes[i], 5).tolist(),
                }
                for i in range(len(self))
            ],
        }


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
        self.shared = everything._shared(everything.points, everything.labels)
        self.total = everything._covariance
        structural = everything._structural(everything.labels, everything.slopes)
        self.with_structure = self.shared + structural
        self.prior = np.diag(self.shared)
        codes = [
            np.unique(everything.labels[name].astype(str), return_inverse=True)[1]
            for name in ("gpu", "framework", "model")
        ]
        self.key = np.unique(np.column_stack(codes), axis=0, return_inverse=True)[1].ravel()

    def after(self, known: Column, rest: Column) -> Offset:
        """What is known of ``rest`` once ``known`` are revealed; rows of the table."""
        seen = np.concatenate([np.arange(self.before), known + self.before])
        rows = rest + self.before
        never = np.zeros(len(rows), dtype=bool)
        bias = self.facts.bias
        if not len(seen):
            full = np.full(len(rows), bias)
            return Offset(full, np.sqrt(self.prior[rows]), np.ones(len(rows)), never, never)
        covariance = self.total[np.ix_(seen, seen)]
        weights = np.linalg.solve(covariance, self.facts.errors[seen] - bias)
        shared = self.shared[np.ix_(rows, seen)]
        explained = np.einsum("ij,ji->i", shared, np.linalg.solve(covariance, shared.T))
        left = np.maximum(self.prior[rows] - explained, 1e-12)
        return Offset(
            mean=bias + self.with_structure[np.ix_(rows, seen)] @ weights,
            sd=np.sqrt(left),
            open_share=left / self.prior[rows],
            calibrated=np.isin(self.key[rows], self.key[seen]),
            measured=never,
        )


def labels_of(cases: Cases) -> dict[str, Column]:
    """GPU, framework, release, model, precision, dispatcher and kind of every row as text, (n,)."""
    size = (len(cases),)
    stacks = np.array([s.framework_name for s in cases.stacks], dtype=object)
    releases = np.array([s.version for s in cases.stacks], dtype=object)
    models = np.array([model.name for model in cases.models], dtype=object)
    gpus = np.array([gpu.name for gpu in cases.gpus], dtype=object)
    precisions = np.array(Precision.labels(), dtype=object)
    dispatchers = np.array(MoeDispatcher.labels(), dtype=object)
    kind = np.where(cases.model.num_experts > 0, "moe", "dense").astype(object)
    columns = {
        "gpu": gpus[cases.cluster.gpu],
        "framework": stacks[cases.stack_index],
        "release": releases[cases.stack_index],
        "model": models[cases.model_index],
        "precision": precisions[cases.config.precision],
        "dispatcher": dispatchers[cases.config.moe_dispatcher],
        "kind": kind,
    }
    return {name: np.broadcast_to(columns[name], size) for name in LABELS}


def constant_sd() -> Floats:
    """How different each constant may be on a GPU and framework of its own, in log space."""
    return np.array([max(prior_of(name)[1], SMALLEST_CONSTANT_SD) for name in BELIEFS])


def constant_slopes(cases: Cases, constants: TimeConstants) -> Floats:
    """Derivatives of log tokens/s by the log of each constant of BELIEFS, shape (n, c)."""
    rates, stages = constants.rates(cases), stage_columns(cases)
    base = np.log(step_time(cases, rates=rates, stages=stages).step_time_s)
    place = {name: index for index, name in enumerate(BELIEFS)}
    slopes = np.zeros((len(cases), len(BELIEFS)))
    for column in RATE_COLUMNS:
        moved = step_time(cases, rates=nudged(rates, column, np.exp(STEP)), stages=stages)
        change = (base - np.log(moved.step_time_s)) / STEP
        slopes[:, place[ALIASES.get(column, column)]] += change
    return slopes


_LogError = Annotated[float, Field(ge=-LARGEST_LOG_ERROR, le=LARGEST_LOG_ERROR)]
_Coordinate = Annotated[float, Field(gt=-1e6, lt=1e6)]


class _Run(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run_id: str
    log_error: _LogError
    labels: dict[str, str]
    point: list[_Coordinate]
    slopes: list[_Coordinate]


class _File(BaseModel):
    """Schema of a calibration file; other keys say what it was fitted on."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    schema_version: Literal[1]
    bias: _LogError
    bias_sd: Annotated[float, Field(ge=0, le=LARGEST_LOG_ERROR)]
    features: list[str]
    constants: list[str]
    runs: list[_Run]


def read_calibration(path: Path) -> Calibration:
    """A calibration from its file.

    Raises:
        InputError: the file is missing, is no calibration, or was made with other coordinates or
            constants than this version has.
    """
    try:
        file = _File.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise InputError(f"{path} is no calibration file: {where}: {first['msg']}.") from None
    if file.features != list(FEATURES) or file.constants != list(BELIEFS):
        raise InputError(f"{path} is of another version of the physics; calibrate again.")
    runs = file.runs
    sizes = (len(FEATURES), len(BELIEFS))
    if any((len(run.point), len(run.slopes)) != sizes or set(run.labels) != set(LABELS)
           for run in runs):  # fmt: skip
        raise InputError(f"{path} has a run with missing values; calibrate again.")
    return Calibration(
        points=np.array([run.point for run in runs]).reshape(-1, sizes[0]),
        labels={n: np.array([run.labels[n] for run in runs], dtype=object) for n in LABELS},
        slopes=np.array([run.slopes for run in runs]).reshape(-1, sizes[1]),
        errors=np.array([run.log_error for run in runs], dtype=np.float64),
        run_ids=tuple(run.run_id for run in runs),
        bias=file.bias,
        bias_sd=file.bias_sd,
        about=dict(file.model_extra or {}),
    )


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Writes a calibration atomically."""
    write_json(path, calibration.as_json())
