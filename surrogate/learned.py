"""Everything that was learned, composed: constants, residual, calibration and intervals.

A ``Learned`` is the correction that ``projection.project`` takes; ``shipped()`` is what the package
learned from public runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from specs.errors import InputError
from specs.files import input_file
from specs.runs import RunTable
from surrogate.calibration import Calibration, Offset, Rehearsal
from surrogate.calibration_prior import alike, labels_of
from surrogate.cases import Cases, Column
from surrogate.constants import ConstantFile, shipped_constants, write_json
from surrogate.likeness import signal_sd
from surrogate.memory_calibration import MemoryFacts
from surrogate.projection import Corrected, Projections, project
from surrogate.residual import DENSE_NOISE_SD, Prediction, Residual
from surrogate.run_cases import cases_of
from surrogate.speed_of_light import fastest_tokens_per_s_per_gpu
from surrogate.step_time import StepTime, step_time
from surrogate.time_constants import RateDesign, TimeConstants, nudged
from surrogate.uncertainty import Intervals, correlated_draws, doubt, trust_grades
from surrogate.validation import Projected

Floats = NDArray[np.float64]

STEP = 1e-3
FOLD_SD = 0.013
"""Sd that every Fold has of its own, dense, beyond what like runs say of it."""
SPREAD_POWER = 0.75
"""Errors on Folds left out grow slower than the sd that the process believes: with this power of it
intervals of equal coverage are the narrowest."""
SHIPPED = Path(__file__).parent / "data" / "learned.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Learned:
    """Constants of the physics, their posterior sd in log space, and what corrects them.

    ``has_moved`` says that the constants are already those of the calibration.
    """

    constants: TimeConstants
    posterior_sd: Mapping[str, float]
    residual: Residual
    intervals: Intervals
    calibration: Calibration
    has_moved: bool = False

    @classmethod
    def nothing(cls) -> Learned:
        """Priors alone: data sheets, kernel profiles and general knowledge."""
        calibration = Calibration.nothing(fitted_to_runs=False)
        constants = TimeConstants.of_priors()
        return cls(constants, {}, Residual.nothing(), Intervals.gaussian(), calibration)

    def settled(self, cases: Cases, constants: TimeConstants) -> tuple[TimeConstants, Learned]:
        """The constants moved as calibrated, where all rows are of one GPU and framework.

        Then one step time a row is enough; rows of many GPUs and frameworks are moved one by one.
        """
        of_study = np.ndim(cases.cluster.gpu) == np.ndim(cases.stack_index) == 0
        if self.has_moved or not len(self.calibration) or not of_study:
            return constants, self
        gpu = cases.gpus[int(cases.cluster.gpu)].name
        framework = cases.stacks[int(cases.stack_index)].framework_name
        moved = constants.changed(self.calibration.constant_factors(gpu, framework))
        return moved, replace(self, has_moved=True)

    def factor(self, cases: Cases, step: StepTime) -> Floats:
        """Factor on the tokens/s that ``step`` (made with ``constants``) implies, shape (n,)."""
        like = self.residual.predict(cases, with_sd=False)
        offset = self.calibration.offset(cases)
        factor: Floats = np.exp(self._log_factor(cases, step, like, offset))
        return factor

    def corrected(self, cases: Cases, step: StepTime) -> Corrected:
        """``factor`` with its 90% interval and trust."""
        like = self.residual.predict(cases)
        offset = self.calibration.offset(cases)
        log_factor = self._log_factor(cases, step, like, offset)
        moe = np.broadcast_to(cases.model.num_experts > 0, log_factor.shape)
        half = self.intervals.half_width(spread(like, offset), moe, offset.calibrated)
        explained = 1.0 - np.square(like.sd / signal_sd(moe))
        return Corrected(
            factor=np.exp(log_factor),
            lo90=np.exp(-half),
            hi90=np.exp(half),
            trust=trust_grades(explained, len(self.residual), offset.calibrated, offset.measured),
        )

    def _log_factor(self, cases: Cases, step: StepTime, like: Prediction, offset: Offset) -> Floats:
        """Log of ``factor``.

        A calibration credits recomputation no more than public runs do, unless this very config was
        measured.
        """
        moved = self._moved_constants(cases, step)
        plain: Floats = like.credited(step) + offset.mean + moved
        if not len(self.calibration) or not np.any(cases.config.recompute):
            return plain
        bare = self.calibration.offset(cases.without_recomputation()).mean
        told = replace(like, mean=like.mean + offset.mean, bare_mean=like.bare_mean + bare)
        return np.where(offset.measured, plain, told.credited(step) + moved)

    def _moved_constants(self, cases: Cases, step: StepTime) -> Floats:
        """Log gain of tokens/s where constants are calibrated for a GPU and framework."""
        gain = np.zeros(len(cases))
        if self.has_moved or not len(self.calibration):
            return gain
        labels, facts = labels_of(cases), self.calibration.labels
        here = alike(labels, facts, "gpu", "framework")
        for gpu, framework in dict.fromkeys(zip(facts["gpu"], facts["framework"], strict=True)):
            fact = (facts["gpu"] == gpu) & (facts["framework"] == framework)
            rows = np.flatnonzero(np.broadcast_to(here[:, fact.argmax()], gain.shape))
            if len(rows):
                factors = self.calibration.constant_factors(gpu, framework)
                moved = step_time(cases.take(rows), self.constants.changed(factors))
                gain[rows] = np.log(step.step_time_s[rows] / moved.step_time_s)
        return gain

    def predict(self, table: RunTable) -> Projected:
        """Tokens/s/GPU of the rows of a table of runs."""
        if not len(table):
            return Projected.empty(0)
        found = self.projections_of(table)
        return Projected(found.tokens_per_s_per_gpu, found.lo90, found.hi90)

    def projections_of(self, table: RunTable) -> Projections:
        """Projections of the rows of a table of runs; rows that leave their recomputation open have
        wider intervals."""
        cases = cases_of(table)
        found = project(cases, self.constants, self)
        value, wider = found.tokens_per_s_per_gpu, doubt(table.is_moe, table.recompute_unknown)
        highest = value * (found.hi90 / value) ** wider
        return replace(
            found,
            lo90=value * (found.lo90 / value) ** wider,
            hi90=np.minimum(highest, fastest_tokens_per_s_per_gpu(cases)),
        )

    def calibrated(self, runs: RunTable) -> Learned:
        """The same after these measured runs; runs without measured throughput say nothing."""
        known = runs.take(np.isfinite(runs.tokens_per_s_per_gpu))
        if not len(known):
            return self
        cases = cases_of(known)
        errors = self._errors(cases, known)
        run_ids = tuple(map(str, known.run_id))
        calibration = self.calibration.with_runs(
            cases, errors, self.constants, run_ids, known.recompute_unknown, self.projections
        )
        return replace(self, calibration=calibration)

    def with_peaks(self, runs: RunTable) -> Learned:
        """The same after the measured peaks of memory of these runs.

        Runs that state no peak or no recomputation say nothing, and peaks that were read where a
        run went out of memory are those of its beginning.
        """
        stated = np.isfinite(runs.peak_memory_gib) & ~runs.out_of_memory & ~runs.recompute_unknown
        known = runs.take(stated)
        if not len(known):
            return self
        peaks = MemoryFacts.of(
            cases_of(known), known.memory_counter, known.peak_memory_gib, known.run_id
        )
        both = self.calibration.peaks.merged(peaks)
        calibration = replace(self.calibration, peaks=both, projections=self.projections)
        return replace(self, calibration=calibration)

    def peaks(self) -> MemoryFacts:
        """What measured peaks say of memory."""
        return self.calibration.peaks

    @property
    def projections(self) -> str:
        """A hash of what is projected without calibration, to which errors of runs belong."""
        constants = sorted(self.constants.log_values.items())
        memory = sorted(shipped_constants("memory_constants").values().items())
        facts = (constants, self.residual.errors.tolist(), memory)
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

    def _errors(self, cases: Cases, runs: RunTable) -> Floats:
        """log(measured / projected) of runs, calibration and its bias aside, shape (n,)."""
        plain = replace(self, calibration=Calibration.nothing())
        projected = project(cases, plain.constants, plain).tokens_per_s_per_gpu
        errors: Floats = np.log(runs.tokens_per_s_per_gpu / projected)
        return errors

    def rehearse(self, table: RunTable) -> Callable[[Column, Column], Projected]:
        """Calibration played through on measured runs: (known rows, other rows) -> projections.

        Everything that does not depend on which runs are known is computed once. Constants move to
        first order, which is exact to a few per mille.
        """
        cases = cases_of(table)
        errors = self._errors(cases, table)
        run_ids = tuple(map(str, np.arange(len(table))))
        everything = self.calibration.with_runs(
            cases, errors, self.constants, run_ids, table.recompute_unknown, self.projections
        )
        rehearsal = Rehearsal(everything, len(everything) - len(table))
        like = self.residual.predict(cases)
        log_base = np.log(table.tokens_per_s_per_gpu) - errors
        wider = doubt(table.is_moe, table.recompute_unknown)

        def after(known: Column, rest: Column) -> Projected:
            offset = rehearsal.after(known, rest)
            seen = Prediction(*(getattr(like, f.name)[rest] for f in fields(Prediction)))
            half = self.intervals.half_width(
                wider[rest] * spread(seen, offset), table.is_moe[rest], offset.calibrated
            )
            log_speed = log_base[rest] + offset.mean
            return Projected(np.exp(log_speed), np.exp(log_speed - half), np.exp(log_speed + half))

        return after

    def joint_draws(self, cases: Cases, draws: int, seed: int = 0) -> Floats:
        """Joint draws of log tokens/s/GPU of a few candidates, shape (draws, n).

        Constants, residual and key offset are drawn once for all candidates, so that what they have
        in common cancels in a comparison; the scatter of single runs is drawn for each. The spread
        is scaled as the intervals are.
        """
        found = project(cases, self.constants, self)
        centre = np.log(found.tokens_per_s_per_gpu)
        moe = np.broadcast_to(cases.model.num_experts > 0, centre.shape)
        like, offset = self.residual.predict(cases), self.calibration.offset(cases)
        slopes = self._slopes(cases)
        covariance = slopes @ slopes.T + self.residual.posterior_covariance(cases)
        covariance += np.outer(offset.sd, offset.sd)
        covariance += np.diag(np.square(like.noise_sd))
        half = self.intervals.half_width(spread(like, offset), moe, offset.calibrated)
        wanted = half / 1.645
        scale = wanted / np.sqrt(np.diag(covariance))
        scaled = covariance * np.outer(scale, scale)
        return centre + correlated_draws(scaled, draws, np.random.default_rng(seed))

    def constant_loadings(self, cases: Cases) -> Floats:
        """How log tokens/s moves when each constant moves by its posterior sd, shape (n, c)."""
        return self._slopes(cases)

    def _slopes(self, cases: Cases) -> Floats:
        """Derivative of log tokens/s by each constant times its posterior sd, shape (n, c)."""
        design = RateDesign(cases, only=self.constants.log_values)  # type: ignore[arg-type]
        rates = self.constants.rates(cases)
        base = np.log(step_time(cases, rates=rates).step_time_s)
        slopes = np.zeros((len(base), len(design.names)))
        by_column: dict[str, Floats] = {}
        for column, position, rows in design.uses():
            if column not in by_column:
                moved = step_time(cases, rates=nudged(rates, column, np.exp(STEP)))
                by_column[column] = (base - np.log(moved.step_time_s)) / STEP
            slopes[:, position] += np.where(rows, by_column[column], 0.0)
        sd = np.array([self.posterior_sd.get(name, 0.0) for name in design.names])
        scaled: Floats = slopes * sd
        return scaled


def spread(like: Prediction, offset: Offset) -> Floats:
    """Sd of the log error of a run, shape (n,).

    Scatter stays whatever is known; what like runs leave open shrinks by the share of the key's own
    variance that its measured runs explain. Both grow where runs of the key contradict each other.
    """
    unknown = np.square(like.sd) + np.square(FOLD_SD * like.noise_sd / DENSE_NOISE_SD)
    total = np.sqrt(np.square(like.noise_sd) + unknown * offset.open_share)
    tempered: Floats = like.noise_sd * (total / like.noise_sd) ** SPREAD_POWER
    return tempered * offset.scale


def read_learned(path: Path) -> Learned:
    """What was learned, from its file.

    Raises:
        InputError: the file is missing, no JSON, or of another version.
    """
    try:
        content = json.loads(input_file(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}; learn again.") from None
    if not isinstance(content, dict) or content.get("schema_version") != SCHEMA_VERSION:
        raise InputError(f"{path} is of another version; learn again.")
    try:
        constants = ConstantFile.model_validate(content["constants"])
        facts, widths = content["residual"], content["intervals"]
    except (KeyError, ValidationError):
        raise InputError(f"{path} is incomplete; learn again.") from None
    sd = {name: constant.posterior_sd for name, constant in constants.constants.items()}
    return Learned(
        constants=TimeConstants.of_file(constants),
        posterior_sd={name: value for name, value in sd.items() if value is not None},
        residual=Residual.from_json(facts),
        intervals=Intervals.from_json(widths),
        calibration=Calibration.nothing(),
    )


def write_learned(
    path: Path, learned: Learned, fitted_on: str, data_hash: str, metrics: Mapping[str, Any]
) -> None:
    """Writes what was learned with the hash of the runs and the errors on Folds left out."""
    constants = learned.constants.as_file(learned.posterior_sd, fitted_on, data_hash)
    content = {
        "schema_version": SCHEMA_VERSION,
        "fitted_on": fitted_on,
        "data_hash": data_hash,
        "metrics": dict(metrics),
        "constants": constants.model_dump(),
        "intervals": learned.intervals.as_json(),
        "residual": learned.residual.as_json(),
    }
    write_json(path, content)


@lru_cache(maxsize=1)
def shipped() -> Learned:
    """What the package learned from public runs."""
    return read_learned(SHIPPED)
