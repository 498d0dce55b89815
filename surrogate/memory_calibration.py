"""What measured peaks of a stack teach of the constants of the memory model, from one run on.

Each peak, in the reading of its counter, says by how much groups of constants are other in this
stack: activations, live memory as a whole, fragmentation, what lies outside of the allocator ...
How a reading depends on each is known from the model, so a peak of one layout corrects others.
A run out of memory says that its peak lay above capacity: it enters as such a bound, and its very
config on its very job is known not to fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from surrogate.cases import Cases, Column
from surrogate.memory import (
    Gap,
    Memory,
    counter_reading,
    explain_gap,
    fit_probability,
    memory,
    memory_doubt,
    memory_log_sd,
)
from surrogate.memory_constants import MemoryConstants, shipped_memory_constants
from surrogate.memory_jobs import (
    JOB,
    Finished,
    contradicts,
    is_study,
    job_key,
    jobs_of,
    largest,
)
from surrogate.robust import student_noise

Floats = NDArray[np.float64]

GROUPS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "live memory": (0.06, ("stack_offset",)),
    "activations": (0.06, ("activation_scale",)),
    "logits": (0.2, ("logits_bytes", "fused_logits_bytes")),
    "gathered parameters": (0.3, ("gathered_copies", "backward_copies", "unsharded_layers")),
    "expert buffers": (0.3, ("expert_output_copies", "dispatch_copies")),
    "fragmentation": (0.3, ("fragmentation",)),
    "outside the allocator": (0.3, ("context_gib", "communicator_gib", "allocated_base_gib")),
}
"""Constants that move together, and the sd of their logarithm between stacks of one framework:
that of the priors. Twice as wide corrects other runs of a Fold equally well, half as wide less
after one peak."""
_GROUP_SD = np.array([sd for sd, _ in GROUPS.values()])
PEAK_SD = 0.03
"""Scatter of log peaks around right constants: rounding, unstated settings."""
STEP = 1e-3
LARGEST_LOG_ERROR = 1.5
"""A peak this far from its projection is in another unit, or of another rank (assumed)."""
LEAST_SHARE = 0.05
"""A bound never pins a quantity more than this share of its variance allows."""
FARTHEST = 3.0
"""Sd that one OOM moves memory at most: of Gaussian errors one in 740 is larger, so beyond it
something else (a GPU that was not empty, a wrong row) is as likely (assumed)."""


@dataclass(frozen=True)
class OutOfMemory:
    """A run that went out of memory: ``config`` on ``job``, in the words of ``jobs_of``.

    ``log_bound`` is log(capacity / projected device peak), above which the error of its peak lies;
    ``slopes`` of that log peak by the log of each of GROUPS, shape (g,).
    """

    run_id: str
    job: Mapping[str, str]
    config: TrainingConfig
    log_bound: float
    slopes: Floats

    @property
    def framework(self) -> str:
        """Name of its stack."""
        return self.job["framework"]


@dataclass(frozen=True)
class MemoryFacts:
    """Measured peaks of r runs: ``errors`` log(measured / projected reading), shape (r,), and
    ``slopes`` of the log reading by the log of each of GROUPS, shape (r, g). ``out_of_memory`` are
    runs that have no peak, ``finished`` the run of each job that needed most and did not run out:
    it moves nothing, but refutes runs out of memory that are projected to need no more."""

    run_ids: tuple[str, ...]
    frameworks: tuple[str, ...]
    errors: Floats
    slopes: Floats
    out_of_memory: tuple[OutOfMemory, ...] = ()
    finished: tuple[Finished, ...] = ()

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def is_empty(self) -> bool:
        """Whether neither a peak nor a run out of memory is known."""
        return not len(self) and not self.out_of_memory

    @classmethod
    def nothing(cls) -> MemoryFacts:
        """No peaks."""
        return cls((), (), np.empty(0), np.empty((0, len(GROUPS))))

    @classmethod
    def of(cls, cases: Cases, counters: Column, peaks_gib: Floats, run_ids: Column) -> MemoryFacts:
        """The facts of n runs; peaks that cannot be those of their run are left out.

        Args:
            cases: n runs.
            counters: what each peak was read from; see ``memory.counter_reading``.
            peaks_gib: shape (n,), positive.
            run_ids: one a run.
        """
        frameworks = _frameworks(cases)
        projected, slopes = _log_readings(cases, counters, frameworks)
        errors = np.log(peaks_gib) - projected
        kept = np.flatnonzero(np.abs(errors) <= LARGEST_LOG_ERROR)
        return cls(
            tuple(str(run_ids[row]) for row in kept),
            tuple(frameworks[row] for row in kept),
            errors[kept],
            slopes[kept],
        )

    @classmethod
    def of_out_of_memory(cls, cases: Cases, run_ids: Sequence[str]) -> MemoryFacts:
        """The facts of n runs that went out of memory; ``run_ids`` is one a run."""
        counters = np.array(["device"] * len(cases), dtype=object)
        projected, slopes = _log_readings(cases, counters, _frameworks(cases))
        capacity_gib = np.broadcast_to(cases.cluster.hbm_gib, (len(cases),))
        bounds = np.clip(np.log(capacity_gib) - projected, -LARGEST_LOG_ERROR, LARGEST_LOG_ERROR)
        jobs = jobs_of(cases)
        runs = tuple(
            OutOfMemory(
                run_id=str(run_id),
                job=jobs[row % len(jobs)],
                config=cases.config.config(row),
                log_bound=float(bounds[row]),
                slopes=slopes[row],
            )
            for row, run_id in enumerate(run_ids)
        )
        return replace(cls.nothing(), out_of_memory=runs)

    def merged(self, other: MemoryFacts) -> MemoryFacts:
        """The peaks of both; of a run that is in both, what ``other`` says.

        Runs out of memory that a finished run of either refutes are left out (``refuted``).
        """
        replaced = {*other.run_ids, *other.failed}
        kept = [row for row, run in enumerate(self.run_ids) if run not in replaced]
        out = [run for run in self.out_of_memory if run.run_id not in other.told]
        ended = [run for run in self.finished if run.run_id not in other.failed]
        both = MemoryFacts(
            (*(self.run_ids[row] for row in kept), *other.run_ids),
            (*(self.frameworks[row] for row in kept), *other.frameworks),
            np.concatenate([self.errors[kept], other.errors]),
            np.concatenate([self.slopes[kept], other.slopes]),
            (*out, *other.out_of_memory),
            largest([*ended, *other.finished]),
        )
        refuted = both.refuted()
        left = tuple(run for run in both.out_of_memory if run.run_id not in refuted)
        return replace(both, out_of_memory=left)

    @property
    def failed(self) -> set[str]:
        """Names of the runs out of memory."""
        return {run.run_id for run in self.out_of_memory}

    @property
    def told(self) -> set[str]:
        """Names of all runs."""
        return {*self.run_ids, *self.failed, *(run.run_id for run in self.finished)}

    def refuted(self) -> dict[str, str]:
        """Runs out of memory, each with a finished run of its job that needs no less."""
        ended = {job_key(run.job): run for run in self.finished}
        pairs = ((run, ended.get(job_key(run.job))) for run in self.out_of_memory)
        return {
            run.run_id: other.run_id
            for run, other in pairs
            if other is not None and contradicts(np.exp(-other.log_bound), np.exp(-run.log_bound))
        }

    @classmethod
    def of_finished(cls, cases: Cases, run_ids: Sequence[str]) -> MemoryFacts:
        """The facts of n runs that finished; ``run_ids`` is one a run."""
        needed, jobs = memory(cases).device_gib, jobs_of(cases)
        bounds = np.log(np.broadcast_to(cases.cluster.hbm_gib, (len(cases),)) / needed)
        runs = (
            Finished(str(run_id), jobs[row % len(jobs)], float(bounds[row]))
            for row, run_id in enumerate(run_ids)
        )
        return replace(cls.nothing(), finished=largest(runs))

    def ran_out(self, cases: Cases) -> NDArray[np.bool_]:
        """Rows whose very config, on the very job, went out of memory, shape (n,)."""
        found = np.zeros(len(cases), dtype=bool)
        if not self.out_of_memory or not len(cases):
            return found
        jobs = jobs_of(cases)
        for run in self.out_of_memory:
            same = np.array([job == run.job for job in jobs])
            rows = np.flatnonzero(np.broadcast_to(same, (len(cases),)))
            found[rows] |= cases.config.take(rows).axes_changed(run.config) == 0
        return found

    def failed_here(self, cases: Cases) -> Cases | None:
        """The configs that went out of memory on the very job of ``cases``; None where none did, or
        where the rows are of many jobs."""
        found = self._failed_by_job(cases) if is_study(cases) else []
        return found[0][1] if found else None

    def fit_probability(
        self, cases: Cases, device_gib: Column, unstated: Column | None = None
    ) -> Column:
        """Probability that every row stays below capacity, given which runs did not, shape (n,).

        What a projection misses is shared by the configs of a job: one that is projected no leaner
        than a config that ran out does not fit, and one that is little leaner fits less likely.

        Args:
            cases: n rows, of one job or of many.
            device_gib: what is projected of them (``memory``), shape (n,).
            unstated: rows of a table of runs that leave unsaid what decides their memory, shape
                (n,); none where not given.
        """
        nothing = np.zeros(len(cases), dtype=bool)
        wider = memory_doubt(nothing if unstated is None else unstated)
        found = fit_probability(device_gib, cases.cluster.hbm_gib, memory_log_sd(cases) * wider)
        for rows, failed in self._failed_by_job(cases):
            owners = rows[:1] if is_study(cases) else rows
            doubt = np.repeat(wider[owners], len(failed) // len(owners))
            sd, capacity_gib = memory_log_sd(failed) * doubt, failed.cluster.hbm_gib
            chance = fit_probability(self.memory(failed).device_gib, capacity_gib, sd)
            least = chance.reshape(len(owners), -1).max(axis=1)
            found[rows] = np.maximum(found[rows] - least, 0.0) / np.maximum(1.0 - least, 1e-12)
        return np.where(self.ran_out(cases), 0.0, found)

    def _failed_by_job(self, cases: Cases) -> list[tuple[Column, Cases]]:
        """Rows of each job of which configs went out of memory, and those configs: once for a
        study, else in the place of every row, whose stack may differ in what is no part of JOB."""
        configs: dict[tuple[str, ...], list[TrainingConfig]] = {}
        for run in self.out_of_memory:
            configs.setdefault(job_key(run.job), []).append(run.config)
        if not configs or not len(cases):
            return []
        jobs, found = [job_key(job) for job in jobs_of(cases)], []
        for job, failed in configs.items():
            same = np.array([own == job for own in jobs])
            rows = np.flatnonzero(np.broadcast_to(same, (len(cases),)))
            if len(rows):
                owners = rows[:1] if is_study(cases) else rows
                each = np.tile(np.arange(len(failed)), len(owners))
                table = ConfigTable.from_configs(failed).take(each)
                owned = cases.take(np.repeat(owners, len(failed)))
                found.append((rows, replace(owned, config=table)))
        return found

    @cached_property
    def _factors(self) -> dict[str, dict[str, float]]:
        """Factors on GROUPS by framework name."""
        found = {}
        names = (*self.frameworks, *(run.framework for run in self.out_of_memory))
        for name in dict.fromkeys(names):
            rows = np.array([framework == name for framework in self.frameworks], dtype=bool)
            out = [run for run in self.out_of_memory if run.framework == name]
            moved = _posterior_mean(self.slopes[rows], self.errors[rows], out)
            found[name] = dict(zip(GROUPS, map(float, np.exp(moved)), strict=True))
        return found

    def leave_one_out(self) -> Floats:
        """log(measured / reading projected by the other peaks of the stack), shape (r,).

        Rasmussen, Williams (2006), equation 5.12; the scatter of each is that found among all.
        """
        left = np.empty(len(self))
        for name in dict.fromkeys(self.frameworks):
            rows = np.array([framework == name for framework in self.frameworks])
            errors = self.errors[rows]
            inverse = np.linalg.inv(_covariance(self.slopes[rows], errors))
            left[rows] = inverse @ errors / np.diag(inverse)
        return left

    def factors(self, framework: str) -> dict[str, float]:
        """Factors on GROUPS in the stack of this name; empty where no peak of it is known."""
        return self._factors.get(framework, {})

    def constants(self, framework: str) -> MemoryConstants:
        """The constants of the memory model for the stack of this name."""
        return moved_constants(shipped_memory_constants(), self.factors(framework), (framework,))

    def memory(self, cases: Cases) -> Memory:
        """Peak memory of every row with the constants of its stack."""
        moved = self._moved_rows(cases)
        if len(moved) == 1 and len(moved[0][0]) == len(cases):
            return memory(cases, moved[0][1])
        held = memory(cases)
        for rows, constants in moved:
            own = memory(cases.take(rows), constants)
            for column in fields(Memory):
                getattr(held, column.name)[rows] = getattr(own, column.name)
        return held

    def reading(self, cases: Cases, counters: Column) -> Column:
        """``memory.counter_reading`` of every row with the constants of its stack, (n,)."""
        reading = counter_reading(cases, counters)
        for rows, constants in self._moved_rows(cases):
            reading[rows] = counter_reading(cases.take(rows), counters[rows], constants)
        return reading

    def gaps(self, cases: Cases, measured_gib: Column, counters: Column) -> list[Gap]:
        """``memory.explain_gap`` of every row with the constants of its stack."""
        gaps = explain_gap(cases, measured_gib, counters)
        for rows, constants in self._moved_rows(cases):
            own = explain_gap(cases.take(rows), measured_gib[rows], counters[rows], constants)
            for row, gap in zip(rows, own, strict=True):
                gaps[row] = gap
        return gaps

    def _moved_rows(self, cases: Cases) -> list[tuple[Column, MemoryConstants]]:
        """Rows of each stack of which peaks are known, and its constants."""
        if self.is_empty or not len(cases):
            return []
        frameworks = np.array(_frameworks(cases), dtype=object)
        names = [name for name in dict.fromkeys(frameworks) if name in self._factors]
        return [(np.flatnonzero(frameworks == name), self.constants(name)) for name in names]

    def as_json(self) -> list[dict[str, Any]]:
        """The peaks as data."""
        return [
            {
                "run_id": self.run_ids[row],
                "framework": self.frameworks[row],
                "log_error": round(float(self.errors[row]), 5),
                "slopes": np.round(self.slopes[row], 5).tolist(),
            }
            for row in range(len(self))
        ]

    def out_of_memory_json(self) -> list[dict[str, Any]]:
        """The runs out of memory as data."""
        return [
            {
                "run_id": run.run_id,
                "job": dict(run.job),
                "config": run.config.as_labels(),
                "log_bound": round(run.log_bound, 5),
                "slopes": np.round(run.slopes, 5).tolist(),
            }
            for run in self.out_of_memory
        ]

    def finished_json(self) -> list[dict[str, Any]]:
        """The finished runs as data."""
        return [
            {"run_id": run.run_id, "job": dict(run.job), "log_bound": round(run.log_bound, 5)}
            for run in self.finished
        ]

    @classmethod
    def from_json(
        cls,
        peaks: Sequence[Peak],
        failed: Sequence[FailedRun] = (),
        finished: Sequence[FinishedRun] = (),
    ) -> MemoryFacts:
        """The peaks, the runs out of memory and the finished runs of a file."""
        return cls(
            tuple(peak.run_id for peak in peaks),
            tuple(peak.framework for peak in peaks),
            np.array([peak.log_error for peak in peaks], dtype=np.float64),
            np.array([peak.slopes for peak in peaks]).reshape(-1, len(GROUPS)),
            tuple(run.as_fact() for run in failed),
            tuple(Finished(run.run_id, run.job, run.log_bound) for run in finished),
        )


_LogError = Annotated[float, Field(ge=-LARGEST_LOG_ERROR, le=LARGEST_LOG_ERROR)]
_Slopes = Annotated[
    list[Annotated[float, Field(gt=-10, lt=10)]],
    Field(min_length=len(GROUPS), max_length=len(GROUPS)),
]


class Peak(BaseModel):
    """A measured peak in a calibration file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run_id: str
    framework: str
    log_error: _LogError
    slopes: _Slopes


class _RunOfJob(BaseModel):
    """A run in a calibration file with its job."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run_id: str
    job: dict[str, str]

    @field_validator("job")
    @classmethod
    def _is_whole(cls, job: dict[str, str]) -> dict[str, str]:
        if set(job) != set(JOB):
            raise ValueError(f"state {', '.join(JOB)}")
        return job


class FinishedRun(_RunOfJob):
    """A run in a calibration file that did not run out of memory."""

    log_bound: Annotated[float, Field(ge=-10, le=10)]


class FailedRun(_RunOfJob):
    """A run out of memory in a calibration file."""

    config: dict[str, Any]
    log_bound: _LogError
    slopes: _Slopes

    @field_validator("config")
    @classmethod
    def _is_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        try:
            TrainingConfig.from_labels(config)
        except InputError as error:
            raise ValueError(str(error)) from None
        return config

    def as_fact(self) -> OutOfMemory:
        """The run as a fact."""
        config = TrainingConfig.from_labels(self.config)
        return OutOfMemory(self.run_id, self.job, config, self.log_bound, np.array(self.slopes))


def is_doubtful(cases: Cases) -> Column:
    """Which runs, had they gone out of memory, would have needed FARTHEST times more than
    projections usually err: something else may have been wrong; shape (n,)."""
    margin = np.log(cases.cluster.hbm_gib / memory(cases).device_gib)
    return np.asarray(margin > FARTHEST * memory_log_sd(cases))


def moved_constants(
    constants: MemoryConstants, factors: Mapping[str, float], frameworks: Sequence[str]
) -> MemoryConstants:
    """The constants with groups of them multiplied, for rows of stacks of these names."""
    changed: dict[str, Any] = {}
    for group, factor in factors.items():
        for name in GROUPS[group][1]:
            value = getattr(constants, name)
            if name == "stack_offset":
                own = {stack: value.get(stack, 1.0) * factor for stack in frameworks}
                changed[name] = {**value, **own}
            else:
                changed[name] = value * factor
    return replace(constants, **changed)


def _frameworks(cases: Cases) -> list[str]:
    """Name of the stack of every row."""
    names = [stack.framework_name for stack in cases.stacks]
    return [names[index] for index in np.broadcast_to(cases.stack_index, (len(cases),))]


def _log_readings(
    cases: Cases, counters: Column, frameworks: Sequence[str]
) -> tuple[Floats, Floats]:
    """(log of what is projected for each counter, its slopes by the logs of GROUPS), (n, g)."""
    constants = shipped_memory_constants()
    projected = np.log(counter_reading(cases, counters, constants))
    columns = []
    for group in GROUPS:
        moved = moved_constants(constants, {group: float(np.exp(STEP))}, frameworks)
        reading = np.log(counter_reading(cases, counters, moved))
        columns.append((reading - projected) / STEP)
    return projected, np.column_stack(columns)


def _covariance(slopes: Floats, errors: Floats) -> Floats:
    """Covariance of r peaks of one stack, scatter included, shape (r, r)."""
    spread = slopes * _GROUP_SD
    prior: Floats = spread @ spread.T
    return prior + np.diag(student_noise(prior, errors, np.full(len(errors), PEAK_SD)))


def _posterior_mean(slopes: Floats, errors: Floats, out: Sequence[OutOfMemory]) -> Floats:
    """Logs of the factors on GROUPS that r peaks and OOMs of one stack make likely, shape (g,)."""
    covariance = _covariance(slopes, errors)
    for run in out:
        slopes, errors, covariance = _with_bound(slopes, errors, covariance, run)
    weights = np.linalg.solve(covariance, errors)
    mean: Floats = np.square(_GROUP_SD) * (slopes.T @ weights)
    return mean


def _with_bound(
    slopes: Floats, errors: Floats, covariance: Floats, run: OutOfMemory
) -> tuple[Floats, Floats, Floats]:
    """The same facts and one more that has the effect of the bound that an OOM is.

    A normal known to lie above a bound has another mean and variance; the added fact is the one
    measurement that leads there (assumed density filtering: Minka 2001, section 3.3).
    """
    spread = run.slopes * _GROUP_SD
    shared = (slopes * _GROUP_SD) @ spread
    weights = np.linalg.solve(covariance, shared)
    mean, left = float(weights @ errors), float(spread @ spread - weights @ shared)
    variance = left + PEAK_SD**2
    moved, narrowed = beyond(np.array([mean]), np.sqrt([variance]), np.array([run.log_bound]))
    if narrowed[0] >= variance * (1.0 - 1e-6):
        return slopes, errors, covariance  # it was expected to run out: nothing new
    noise = 1.0 / (1.0 / narrowed[0] - 1.0 / variance)
    error = noise * (moved[0] / narrowed[0] - mean / variance)
    grown = np.empty((len(errors) + 1, len(errors) + 1))
    grown[:-1, :-1], grown[:-1, -1], grown[-1, :-1] = covariance, shared, shared
    grown[-1, -1] = spread @ spread + PEAK_SD**2 + noise
    return np.vstack([slopes, run.slopes]), np.append(errors, error), grown


def beyond(mean: Floats, sd: Floats, bound: Floats) -> tuple[Floats, Floats]:
    """(mean, variance) of a normal known to lie above ``bound``, shapes (n,).

    A bound FARTHEST sd above what is expected or more teaches as much as one there: it keeps its
    weight, for a twin of what ran out will not fit, and does not override measured peaks.
    """
    from scipy.stats import norm

    alpha = np.minimum((bound - mean) / sd, FARTHEST)
    ratio = np.exp(norm.logpdf(alpha) - norm.logsf(alpha))
    left = np.clip(1.0 - ratio * (ratio - alpha), LEAST_SHARE, 1.0)
    return mean + sd * ratio, np.square(sd) * left
