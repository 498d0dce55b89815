"""Learns from measured runs: the constants of the physics and the residual, together.

Fitting constants first and the residual to what is left would let the constants chase errors that
they share with no cause. Both are found at once: the errors of the physics are correlated between
like runs (``residual``), and the constants are the generalised least squares solution under that
correlation, held near their priors. Linear in the logarithms of the constants, so a few
Gauss-Newton steps suffice.

``python -m surrogate.learning --measured DIR`` writes what ships: constants, residual, intervals.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.models_json import models_json
from specs.runs import RunTable, read_runs
from surrogate.calibration import Calibration
from surrogate.cases import Cases
from surrogate.features import classes, features
from surrogate.fitting import STEP, fit, measured_step_s, row_weights
from surrogate.learned import SHIPPED, Learned, write_learned
from surrogate.likeness import covariance
from surrogate.pipeline.stages import StageColumns, stage_columns
from surrogate.residual import Residual, reweighted_noise
from surrogate.run_cases import cases_of
from surrogate.step_time import step_time
from surrogate.time_constants import RateDesign, TimeConstants, nudged, prior_of
from surrogate.uncertainty import FAMILIES, GAUSSIAN_90, Intervals, conformal_width
from surrogate.validation import (
    Predictor,
    Projected,
    calibration_draws,
    calibration_metrics,
    error_metrics,
)

Floats = NDArray[np.float64]

ROUNDS = 4
"""Gauss-Newton steps. A longer-of-two-times has a kink, about which full steps swing from one side
to the other for ever: step k therefore goes 1/k of the way, which averages the solutions."""

FIRST_STEPS = 3
"""Steps of the first fit of the constants, which only has to come near."""

LINEAR_UP_TO = 0.1
"""Move of a log constant up to which its slope is taken as the same: projections are then within
0.4% of those learned from scratch (measured on six Folds), and 8% off where one moved by 0.6."""


def has_throughput(table: RunTable) -> NDArray[np.int64]:
    """Rows whose throughput was measured, not converted from a printed TFLOP/s."""
    return np.flatnonzero(np.isin(table.throughput_from, ("tokens", "step")))


def learn(table: RunTable, start: TimeConstants | None = None) -> Learned:
    """What the rows with measured throughput teach.

    Args:
        table: measured runs.
        start: constants to start from; without it they are fitted alone first.
    """
    used = table.take(has_throughput(table))
    if not len(used):
        return Learned.nothing()
    return learn_cases(cases_of(used), measured_step_s(used), row_weights(used.fold), start)


def learn_cases(
    cases: Cases, measured_s: Floats, weights: Floats, start: TimeConstants | None = None
) -> Learned:
    """``learn`` from cases.

    Args:
        cases: n rows.
        measured_s: step times in s, shape (n,).
        weights: of the rows in the first fit of the constants, shape (n,).
        start: see ``learn``.
    """
    problem = _Joint.solved(cases, measured_s, weights, start)
    found = _with_residual(cases, measured_s, problem.constants(), problem.stages)
    return replace(found, posterior_sd=problem.posterior_sd)


def _with_residual(
    cases: Cases, measured_s: Floats, constants: TimeConstants, stages: StageColumns
) -> Learned:
    """Constants and the residual beside them."""
    log_error = np.log(step_time(cases, constants, stages=stages).step_time_s / measured_s)
    return Learned(
        constants=constants,
        posterior_sd={},
        residual=Residual.fit(cases, log_error),
        intervals=Intervals.gaussian(),
        calibration=Calibration.nothing(),
    )


@dataclass(frozen=True)
class RunLearner:
    """Learns from measured runs alone; what ``validation.leave_out`` fits again and again."""

    intervals: Intervals

    def fit(self, train: RunTable) -> Learned:
        """Constants and residual from ``train``, with the widths of ``intervals``."""
        return replace(learn(train), intervals=self.intervals)


class _Joint:
    """Generalised least squares on the log constants under the covariance of the residual."""

    def __init__(self, cases: Cases, target: Floats, start: TimeConstants) -> None:
        self.cases, self.target, self.start = cases, target, start
        self.stages: StageColumns = stage_columns(cases)
        self.design = RateDesign(cases)
        names = self.design.names
        beliefs = [prior_of(name) for name in names]
        self.prior = np.log([belief[0] for belief in beliefs])
        self.sd = np.array([belief[1] for belief in beliefs])
        self.theta = np.array(
            [start.log_values.get(n, p) for n, p in zip(names, self.prior, strict=True)]
        )
        points, labels = features(cases), classes(cases)
        self.moe = labels["moe"] == "moe"
        self.shared = covariance(points, labels, points, labels)
        self.posterior_sd: dict[str, float] = {}

    @classmethod
    def solved(
        cls,
        cases: Cases,
        measured_s: Floats,
        weights: Floats,
        start: TimeConstants | None = None,
    ) -> _Joint:
        """The problem at its solution; arguments are those of ``learn_cases``."""
        if start is None:
            start = fit(cases, measured_s, weights, max_steps=FIRST_STEPS).constants
        problem = cls(cases, np.log(measured_s), start)
        for done in range(ROUNDS):
            problem.step(1.0 / (done + 1))
        return problem

    def step(self, share: float = 1.0) -> None:
        """Goes this share of the way to the posterior mean of the linearised problem."""
        error, spread = self.at_priors()
        prior = self.shared + spread @ spread.T
        noise = reweighted_noise(prior, self.moe, error)
        solved = np.linalg.solve(prior + np.diag(noise), np.column_stack([error, spread]))
        mean = self.prior - self.sd * (spread.T @ solved[:, 0])
        self.theta = self.theta + share * (mean - self.theta)
        explained = np.einsum("ij,ij->j", spread, solved[:, 1:])
        posterior = self.sd * np.sqrt(np.maximum(1.0 - explained, 0.0))
        self.posterior_sd = dict(zip(self.design.names, map(float, posterior), strict=True))

    def at_priors(self) -> tuple[Floats, Floats]:
        """(log errors of tokens/s if the constants were at their priors, to first order, shape
        (n,); what one prior sd of each constant changes, shape (n, constants))."""
        log_step, slopes = self._linearised()
        error: Floats = log_step - self.target + slopes @ (self.prior - self.theta)
        return error, slopes * self.sd

    def _linearised(self) -> tuple[Floats, Floats]:
        """Log step times and their derivatives by every log constant, shape (n, constants)."""
        rates = self.design.rates(self.theta)
        base = np.log(step_time(self.cases, rates=rates, stages=self.stages).step_time_s)
        slopes = np.zeros((len(base), len(self.theta)))
        by_column: dict[str, Floats] = {}
        for column, position, rows in self.design.uses():
            if column not in by_column:
                # Downwards: a constant at its bound cannot grow, but data may lower it again.
                moved = step_time(
                    self.cases, rates=nudged(rates, column, np.exp(-STEP)), stages=self.stages
                )
                by_column[column] = (base - np.log(moved.step_time_s)) / STEP
            slopes[:, position] += np.where(rows, by_column[column], 0.0)
        return base, slopes

    def constants(self, theta: Floats | None = None) -> TimeConstants:
        """The constants where the steps have led, or those of ``theta``."""
        values = self.theta if theta is None else theta
        named = zip(self.design.names, map(float, values), strict=True)
        return TimeConstants({**self.start.log_values, **dict(named)})


class _Solved:
    """A table that was learned from, linearised at its solution: solving it again without some of
    its rows is one linear step."""

    def __init__(self, cases: Cases, measured_s: Floats, weights: Floats) -> None:
        self.cases, self.measured_s, self.weights = cases, measured_s, weights
        self.problem = problem = _Joint.solved(cases, measured_s, weights)
        self.error, self.spread = problem.at_priors()
        self.covariance = problem.shared + self.spread @ self.spread.T
        self.everything = self._solution(np.arange(len(cases)))

    def without(self, rows: NDArray[np.int64]) -> Learned:
        """What the other rows teach.

        The constants move as the linear solution does, and those that no other row can tell are at
        their priors. Where one moves far its slope is no longer the same: steps from there follow.
        """
        problem = self.problem
        kept = np.setdiff1d(np.arange(len(self.cases)), rows)
        told = np.any(self.spread[kept] != 0.0, axis=0)
        moved = np.where(told, self._solution(kept) - self.everything, 0.0)
        theta = np.where(told, problem.theta + moved, problem.prior)
        constants = problem.constants(theta)
        cases, measured_s = self.cases.take(kept), self.measured_s[kept]
        if np.abs(moved).max(initial=0.0) > LINEAR_UP_TO:
            return learn_cases(cases, measured_s, self.weights[kept], constants)
        return _with_residual(cases, measured_s, constants, problem.stages.take(kept))

    def _solution(self, rows: NDArray[np.int64]) -> Floats:
        """Posterior mean of the log constants from these rows."""
        covariance, error = self.covariance[np.ix_(rows, rows)], self.error[rows]
        noise = reweighted_noise(covariance, self.problem.moe[rows], error)
        weights = np.linalg.solve(covariance + np.diag(noise), error)
        mean: Floats = self.problem.prior - self.problem.sd * (self.spread[rows].T @ weights)
        return mean


def leave_each_out(
    table: RunTable, labels: NDArray[np.object_]
) -> tuple[Projected, list[tuple[NDArray[np.int64], Predictor]]]:
    """Each row projected by what was learned from all groups but its own.

    ``validation.leave_out`` learns anew and can do so a few times only, for several groups at once:
    then a row misses others that a user would have. Here the table is solved again for each group.

    Args:
        table: rows with measured throughput.
        labels: group of each row, shape (n,).

    Returns:
        Projections in row order, and the (rows left out, predictor) of each group.
    """
    solved = _Solved(cases_of(table), measured_step_s(table), row_weights(table.fold))
    projected = Projected.empty(len(table))
    predictors: list[tuple[NDArray[np.int64], Predictor]] = []
    for label in dict.fromkeys(labels.tolist()):
        rows = np.flatnonzero(labels == label)
        predictor = solved.without(rows)
        projected.fill(rows, predictor.predict(table.take(rows)))
        # A copy: what a process works out to predict takes 20 MB, and there are hundreds.
        bare = replace(predictor, residual=replace(predictor.residual))
        predictors.append((rows, bare))
    return projected, predictors


def judged(table: RunTable, draws: int = 5) -> tuple[Intervals, dict[str, Any]]:
    """Interval widths and error metrics from Folds left out, zero-shot and after one and three
    runs of the Fold.

    Args:
        table: rows with measured throughput.
        draws: of the runs that are revealed.
    """
    measured = table.tokens_per_s_per_gpu
    projected, predictors = leave_each_out(table, table.fold)
    metrics = {"zero_shot": error_metrics(measured, projected)}
    parts = {"zero_shot": [(np.arange(len(table)), projected)], "calibrated": []}
    for runs in (1, 3):
        drawn = calibration_draws(table, predictors, runs, draws)
        parts["calibrated"].append((drawn.rows, drawn.projected))
        metrics[f"after_{runs}"] = calibration_metrics(measured, drawn)
    widths: dict[str, dict[str, float]] = {family: {} for family in FAMILIES}
    for knowledge, found in parts.items():
        rows = np.concatenate([r for r, _ in found])
        errors = np.concatenate([np.log(measured[r] / p.value) for r, p in found])
        spreads = np.concatenate([np.log(p.hi90 / p.value) for _, p in found]) / GAUSSIAN_90
        moe = table.is_moe[rows]
        for family, members in zip(FAMILIES, (~moe, moe), strict=True):
            widths[family][knowledge] = conformal_width(errors[members], spreads[members])
    kept = ("n", "mape", "median_ape", "bias")
    short = {
        name: {k: round(v, 4) for k, v in found.items() if k in kept and v is not None}
        for name, found in metrics.items()
    }
    return Intervals(widths), short


def main() -> None:
    """Learns what ships from the public runs of a folder: ``--measured DIR``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--measured", type=Path, required=True, help="runs.csv and models.json")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    arguments = parser.parse_args()
    runs = arguments.measured / "runs.csv"
    table = read_runs(runs, models_json(arguments.measured / "models.json").find)
    table = table.take(has_throughput(table))
    intervals, metrics = judged(table)
    learned = replace(learn(table), intervals=intervals)
    data_hash = hashlib.sha256(runs.read_bytes()).hexdigest()
    write_learned(arguments.out, learned, "runs.csv", data_hash, metrics)
    print(f"{len(table)} runs: {metrics}, {intervals.as_json()}, written to {arguments.out}")


if __name__ == "__main__":
    main()
