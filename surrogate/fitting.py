"""Fits the constants of the time model to measured runs, held near their priors.

Maximum a posteriori in log space: robust residuals of log(step time) plus one residual a constant
for its distance to the prior. A group of many rows (a sweep) counts by the root of its size, so
that no source outvotes the others, and what the data cannot tell stays at its prior.

``python -m surrogate.fitting --measured DIR --out FILE`` writes the constants that ship.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specs.models_json import models_json
from specs.runs import RunTable, read_runs
from surrogate.cases import Cases
from surrogate.constants import write_json
from surrogate.pipeline.stages import stage_columns
from surrogate.step_time import step_time
from surrogate.time_constants import RateDesign, TimeConstants, nudged, prior_of
from surrogate.time_rates import TimeRates

Floats = NDArray[np.float64]

NOISE = 0.1
"""Scale of log residuals beyond which a row is an outlier: equal layouts differ by 2-5%."""
SHIPPED = Path(__file__).parent / "data" / "time_constants.json"
STEP = 1e-3
"""Finite difference of a log constant."""


@dataclass(frozen=True)
class Fit:
    """Fitted constants, their posterior sd in log space and the residuals of the rows."""

    constants: TimeConstants
    posterior_sd: Mapping[str, float]
    log_errors: Floats


def row_weights(groups: Sequence[str] | NDArray[np.object_], power: float = 0.5) -> Floats:
    """One weight a row: a group of n rows counts n**power in total."""
    _, index, counts = np.unique(
        np.asarray(groups, dtype=str), return_inverse=True, return_counts=True
    )
    weights: Floats = counts[index].astype(np.float64) ** (power - 1.0)
    return weights


def fit(
    cases: Cases,
    measured_step_s: Floats,
    weights: Floats,
    start: TimeConstants | None = None,
    max_steps: int = 12,
    fixed: frozenset[str] = frozenset(),
) -> Fit:
    """Constants that explain measured step times.

    Args:
        cases: n rows.
        measured_step_s: shape (n,), positive.
        weights: of the squared residuals, shape (n,).
        start: where to start; the priors stay those of ``time_constants``.
        max_steps: Gauss-Newton steps at most.
        fixed: constants (global names) that stay where they are.
    """
    problem = _Problem(cases, measured_step_s, weights, start or TimeConstants.of_priors(), fixed)
    theta = problem.solve(max_steps)
    return problem.fit_of(theta)


class _Problem:
    """Robust Gauss-Newton with Levenberg damping on the constants that the rows can tell."""

    def __init__(
        self,
        cases: Cases,
        measured_step_s: Floats,
        weights: Floats,
        start: TimeConstants,
        fixed: frozenset[str],
    ) -> None:
        self.cases = cases
        self.start = start
        self.design = RateDesign(cases)
        self.names = self.design.names
        self.target = np.log(measured_step_s)
        self.root_weight = np.sqrt(weights)
        priors = [prior_of(name) for name in self.names]
        self.prior = np.log([p[0] for p in priors])
        self.sd = np.array([p[1] for p in priors])
        self.free = np.array([n.split("/")[0] not in fixed for n in self.names])
        self.stages = stage_columns(cases)

    def log_step(self, rates: TimeRates) -> Floats:
        """Log of the step time of every row."""
        timed = step_time(self.cases, rates=rates, stages=self.stages)
        log: Floats = np.log(timed.step_time_s)
        return log

    def jacobian(self, theta: Floats, base: Floats) -> Floats:
        """Derivatives of the log step time by every free constant, shape (n, free).

        A row depends on its own rates only, so one difference a rate column serves all constants
        that the column is made of.
        """
        rates = self.design.rates(theta)
        slopes = np.zeros((len(base), len(theta)))
        by_column: dict[str, Floats] = {}
        for column, position, rows in self.design.uses():
            if not self.free[position]:
                continue
            if column not in by_column:
                moved = self.log_step(nudged(rates, column, np.exp(STEP)))
                by_column[column] = (moved - base) / STEP
            slopes[:, position] += np.where(rows, by_column[column], 0.0)
        return slopes[:, self.free]

    def cost(self, theta: Floats, log: Floats) -> float:
        """Robust loss of the rows plus that of the priors."""
        errors = (log - self.target) / NOISE
        rows = 2.0 * (np.sqrt(1.0 + np.square(errors)) - 1.0)
        prior = np.square((theta - self.prior) / self.sd)
        return float((self.root_weight**2 * rows).sum() + prior.sum())

    def solve(self, max_steps: int) -> Floats:
        """The minimum, by damped steps with reweighting (soft L1)."""
        theta = np.array(
            [self.start.log_values.get(n, p) for n, p in zip(self.names, self.prior, strict=True)]
        )
        log = self.log_step(self.design.rates(theta))
        cost = self.cost(theta, log)
        damping = 1e-2
        for _ in range(max_steps):
            slopes = self.jacobian(theta, log)
            normal, pull = self._normal(theta, log, slopes)
            improved = False
            for _ in range(6):
                scaled = normal + damping * np.diag(np.diag(normal))
                move = np.zeros_like(theta)
                move[self.free] = np.clip(np.linalg.solve(scaled, pull), -0.7, 0.7)
                trial = theta + move
                trial_log = self.log_step(self.design.rates(trial))
                trial_cost = self.cost(trial, trial_log)
                if trial_cost < cost:
                    improved = True
                    break
                damping *= 6.0
            if not improved:
                break
            gain = cost - trial_cost
            theta, log, cost, damping = trial, trial_log, trial_cost, damping / 4.0
            if gain < 1e-3 * cost:
                break
        return theta

    def _normal(self, theta: Floats, log: Floats, slopes: Floats) -> tuple[Floats, Floats]:
        """Normal matrix and right-hand side at theta."""
        errors = log - self.target
        robust = self.root_weight**2 / np.sqrt(1.0 + np.square(errors / NOISE)) / NOISE**2
        weighted = slopes * robust[:, None]
        spread = self.sd[self.free]
        normal = slopes.T @ weighted + np.diag(1.0 / spread**2)
        pull = -(weighted.T @ errors) - (theta - self.prior)[self.free] / spread**2
        return normal, pull

    def fit_of(self, theta: Floats) -> Fit:
        """The result at a minimum with its Laplace approximation."""
        log = self.log_step(self.design.rates(theta))
        normal, _ = self._normal(theta, log, self.jacobian(theta, log))
        sd = np.sqrt(np.diag(np.linalg.inv(normal)))
        names = [n for n, free in zip(self.names, self.free, strict=True) if free]
        values = {**self.start.log_values, **dict(zip(self.names, map(float, theta), strict=True))}
        return Fit(
            constants=TimeConstants(values),
            posterior_sd=dict(zip(names, map(float, sd), strict=True)),
            log_errors=log - self.target,
        )


def fit_runs(table: RunTable, start: TimeConstants | None = None) -> Fit:
    """Constants from the rows of a table that state a throughput.

    Rows whose only figure is a printed TFLOP/s are left out: its definition differs by source.
    """
    stated = np.isfinite(table.tokens_per_s_per_gpu) & (table.throughput_from != "tflops")
    rows = np.flatnonzero(stated)
    used = table.take(rows)
    cases = Cases.of_runs(used.config, used.workloads, used.clusters, used.stacks)
    weights = row_weights(used.fold)
    return fit(cases, measured_step_s(used), weights, start)


def measured_step_s(table: RunTable) -> Floats:
    """Measured step time of every row, NaN where none is stated."""
    tokens = np.array([float(w.tokens_per_step) for w in table.workloads])
    gpus = np.array([c.num_gpus for c in table.clusters])
    step: Floats = tokens / gpus / table.tokens_per_s_per_gpu
    return step


def main() -> None:
    """Fits the constants that ship: ``--measured DIR --out FILE``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--measured", type=Path, required=True, help="runs.csv and models.json")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    arguments = parser.parse_args()
    runs = arguments.measured / "runs.csv"
    table = read_runs(runs, models_json(arguments.measured / "models.json").find)
    result = fit_runs(table)
    data_hash = hashlib.sha256(runs.read_bytes()).hexdigest()
    file = result.constants.as_file(result.posterior_sd, "runs.csv", data_hash)
    write_json(arguments.out, file.model_dump())
    median = float(np.median(np.abs(result.log_errors)))
    print(f"{len(result.log_errors)} runs, median error {median:.1%}, written to {arguments.out}")


if __name__ == "__main__":
    main()
