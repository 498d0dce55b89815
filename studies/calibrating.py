"""Learns a calibration from measured runs and says what changed and why: ``foretune calibrate``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.config import ConfigTable
from specs.errors import InputError
from specs.files import input_file
from specs.runs import Refusal, RunTable
from studies.impossible_runs import impossible_peaks, impossible_speeds, rows_with_speed
from studies.job import Job
from surrogate.calibration import Calibration
from surrogate.calibration_file import ABOUT, FIELDS, read_calibration
from surrogate.learned import Learned, shipped
from surrogate.learning import has_throughput
from surrogate.memory import memory
from surrogate.memory_calibration import MemoryFacts, is_doubtful
from surrogate.memory_jobs import job_key, refuted_by
from surrogate.run_cases import cases_of

Floats = NDArray[np.float64]

DISAGREES_FROM = 2.0
"""A run disagrees with the others if its error is this many sd from what they say."""
NOTHING_STATED = (
    "tokens_per_s_per_gpu, step_time_s, a peak of memory or an end out of memory (a run_id that "
    "ends in -oom), and the config, must be stated"
)
NOTEWORTHY = 0.005
"""Effects on throughput below this are not told."""


def calibrated_by(path: Path | None) -> Learned:
    """What ships, with the calibration of a file where one is given.

    Raises:
        InputError: the file is no calibration of this version.
    """
    if path is None:
        return shipped()
    return replace(shipped(), calibration=_current(path))


def calibrated_job(job: Job, path: Path | None) -> Job:
    """The job with the calibration of a file where one is given, and a note where it has no run of
    the job's GPU, stack and model.

    Raises:
        InputError: the file is no calibration of this version.
    """
    return job if path is None else taught_job(job, calibrated_by(path))


def taught_job(job: Job, learned: Learned) -> Job:
    """The job as calibrated, and a note where the calibration has no run of its key."""
    notes = [_unused_by(learned.calibration, job), _ran_out(learned, job)]
    return replace(job, learned=learned, notes=(*job.notes, *(note for note in notes if note)))


def _ran_out(learned: Learned, job: Job) -> str:
    """One sentence where a calibration knows configs that ran out of memory on this very job."""
    failed = learned.peaks().failed_here(job.cases(ConfigTable.from_configs([job.baseline])))
    if failed is None:
        return ""
    configs = "1 config" if len(failed) == 1 else f"{len(failed)} configs"
    return f"the calibration knows {configs} of this job that ran out of memory: P(fits) counts it."


def _unused_by(calibration: Calibration, job: Job) -> str:
    """One sentence where a calibration has runs, but none of this job's key; else empty."""
    names = (job.cluster.gpu.name, job.experiment.stack.framework_name,
             job.experiment.workload.model.name)  # fmt: skip
    keys = list(
        dict.fromkeys(
            zip(*(calibration.labels[name] for name in ("gpu", "framework", "model")), strict=True)
        )
    )
    if not keys or names in keys:
        return ""
    known = ", ".join(" | ".join(key) for key in keys[:3])
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return (
        f"the calibration has no run of {' | '.join(names)} and says little of this job: its runs "
        f"are of {known}{more}."
    )


def _current(path: Path) -> Calibration:
    """The calibration of a file, of what this release projects.

    Raises:
        InputError: the file is no calibration of this version.
    """
    calibration = read_calibration(path)
    unknown = sorted(set(calibration.about) - set(ABOUT))
    if unknown:
        near = get_close_matches(unknown[0], (*ABOUT, *FIELDS), n=1)
        meant = f"; is it {near[0]}?" if near else "; leave it out."
        raise InputError(f"{path} has a field that calibrations do not have: {unknown[0]}{meant}")
    known = len(calibration) or not calibration.peaks.is_empty
    if known and calibration.projections != shipped().projections:
        raise InputError(
            f"{path} corrects projections of another release; calibrate again from the runs."
        )
    return calibration


def merge(paths: Sequence[Path], fit_date: str) -> tuple[Calibration, dict[str, Any]]:
    """The runs of several calibrations as one, and its report.

    Args:
        paths: calibration files; of a run that is in two of them, the later one counts.
        fit_date: ISO date to write into the file.

    Raises:
        InputError: a file is no calibration of this version, or none of them has a run.
    """
    calibration, skipped = Calibration.nothing(), []
    for path in paths:
        calibration, refuted = _merged(calibration, _current(path))
        skipped += refuted
    if not len(calibration) and calibration.peaks.is_empty:
        raise InputError("there is no run to calibrate with: the calibrations are empty.")
    report = report_of(calibration)
    about = {"merged_from": _sources(paths), "fit_date": fit_date, **_before_after(report)}
    return replace(calibration, about=about), {**report, "skipped": skipped, "doubtful": []}


def _merged(first: Calibration, second: Calibration) -> tuple[Calibration, list[dict[str, Any]]]:
    """Both as one, and the runs out of memory that a finished run of the other refutes."""
    both = first.merged(second)
    before = (*first.peaks.out_of_memory, *second.peaks.out_of_memory)
    kept = {run.run_id for run in both.peaks.out_of_memory}
    ended = {job_key(run.job): run.run_id for run in both.peaks.finished}
    lost = {run.run_id: run.job for run in before if run.run_id not in kept}
    return both, [
        Refusal(name, _refuted_by(ended[job_key(job)]), 0)._asdict()
        for name, job in lost.items()
        if name not in second.peaks.told or name in second.peaks.failed
    ]


def _refuted_by(run_id: str) -> str:
    """Why a run out of memory counts for nothing."""
    return (
        f"ran out of memory, and run {run_id} of the same job, which is projected to need no less, "
        "did not"
    )


def calibrate(
    table: RunTable, source: Path, fit_date: str, known: Sequence[Path] = ()
) -> tuple[Calibration, dict[str, Any]]:
    """A calibration from the runs of a table and its report.

    Args:
        table: measured runs.
        source: the file that they come from, for the provenance.
        fit_date: ISO date to write into the file.
        known: calibration files whose runs are added; the table counts where it has them too.

    Raises:
        InputError: no run has a throughput to learn from, or one that is possible.
    """
    data_hash = _hash(source)
    told = table.take(rows_with_speed(table))
    impossible = impossible_speeds(told, shipped().predict(told).value)
    # Where the throughput is not that of the config, the memory is not to be believed either.
    believed = table.take(~np.isin(table.run_id, told.run_id[list(impossible)]))
    used = believed.take(has_throughput(believed))
    failed, left_out = _out_of_memory(believed)
    peaks = with_out_of_memory(shipped().with_peaks(believed), failed).calibration
    skipped = [refusal._asdict() for refusal in (*table.refused, *left_out)]
    wrong = [_skipped(told, row, why) for row, why in impossible.items()]
    wrong += [_skipped(believed, row, why) for row, why in impossible_peaks(believed).items()]
    skipped += wrong
    if not len(used) and peaks.peaks.is_empty:
        why = wrong[-1]["reason"] if wrong else NOTHING_STATED
        raise InputError(f"{source} has no run to calibrate with: {why}.")
    calibration = shipped().calibrated(used).calibration.merged(peaks)
    if known:
        before, of_known = merge(known, fit_date)
        calibration, refuted = _merged(before, calibration)
        skipped += [*of_known["skipped"], *refuted]
    report = report_of(calibration)
    about = {
        "fitted_on": str(source),
        "fit_date": fit_date,
        "data_hash": data_hash,
        **({"merged_from": _sources(known)} if known else {}),
        **_before_after(report),
    }
    doubtful = _doubtful(believed, failed)
    return replace(calibration, about=about), {**report, "skipped": skipped, "doubtful": doubtful}


def with_out_of_memory(learned: Learned, failed: MemoryFacts) -> Learned:
    """The same after these runs out of memory and those that finished."""
    if failed.is_empty and not failed.finished:
        return learned
    known = learned.calibration
    calibration = replace(known, peaks=known.peaks.merged(failed), projections=learned.projections)
    return replace(learned, calibration=calibration)


def _out_of_memory(table: RunTable) -> tuple[MemoryFacts, list[Refusal]]:
    """The runs of a table that ran out of memory or finished, and those out of memory that say
    nothing, each with why."""
    failed = np.flatnonzero(table.out_of_memory)
    ended = np.isfinite(table.tokens_per_s_per_gpu) | np.isfinite(table.peak_memory_gib)
    finished = np.flatnonzero(ended & ~table.out_of_memory & ~table.recompute_unknown)
    if not len(failed) and not len(finished):
        return MemoryFacts.nothing(), []
    cases = cases_of(table)
    facts = MemoryFacts.of_finished(cases.take(finished), table.run_id[finished].tolist())
    refuted = refuted_by(cases, failed, finished)
    kept, left_out = [], []
    for row in failed.tolist():
        if table.recompute_unknown[row]:
            why = "ran out of memory and does not state recompute, on which its memory depends"
        elif row in refuted:
            why = _refuted_by(table.run_id[refuted[row]])
        else:
            kept.append(row)
            continue
        left_out.append(Refusal(str(table.run_id[row]), why, int(table.row[row])))
    if kept:
        run_ids = table.run_id[kept].tolist()
        out = MemoryFacts.of_out_of_memory(cases.take(np.array(kept)), run_ids)
        facts = facts.merged(out)
    return facts, left_out


def _doubtful(table: RunTable, failed: MemoryFacts) -> list[dict[str, Any]]:
    """Runs out of memory of a table that are projected to need much less than their GPU has."""
    ids = [run.run_id for run in failed.out_of_memory]
    known = table.take(table.out_of_memory & np.isin(table.run_id, ids))
    if not len(known):
        return []
    cases = cases_of(known)
    needed, capacity_gib = memory(cases).device_gib, cases.cluster.hbm_gib
    return [
        {
            "run_id": str(known.run_id[row]),
            "projected_gib": float(needed[row]),
            "capacity_gib": float(capacity_gib[row]),
        }
        for row in np.flatnonzero(is_doubtful(cases))
    ]


def _hash(path: Path) -> str:
    return hashlib.sha256(input_file(path, again=True).read_bytes()).hexdigest()


def _sources(paths: Sequence[Path]) -> list[dict[str, str]]:
    """Provenance of calibrations that went into one."""
    return [{"file": str(path), "data_hash": _hash(path)} for path in paths]


def _before_after(report: Mapping[str, Any]) -> dict[str, Any]:
    return {"before": report["before"], "after": report["after"]}


def _skipped(table: RunTable, row: int, why: str) -> dict[str, Any]:
    """A row that is not learned from."""
    return {"row": int(table.row[row]), "run_id": str(table.run_id[row]), "reason": why}


def report_of(calibration: Calibration) -> dict[str, Any]:
    """Before, after (each run judged by the others), what moved and which runs disagree."""
    if not len(calibration):
        empty: dict[str, Any] = {"keys": [], "moved": [], "disagree": []}
        memory = _memory_report(calibration.peaks)
        return {"runs": 0, "before": None, "after": None, **empty, "memory": memory}
    left, sd = calibration.leave_one_out()
    score, scale, moves = left / sd, calibration.key_scale(), calibration.moves()
    keys = np.array(
        [
            " | ".join(calibration.labels[name][row] for name in ("gpu", "framework", "model"))
            for row in range(len(calibration))
        ],
        dtype=object,
    )
    order = np.argsort(-np.abs(score))
    return {
        "runs": len(calibration),
        "before": _errors(calibration.errors),
        "after": _errors(left),
        "keys": [
            {
                "key": key,
                "runs": int((keys == key).sum()),
                "before": _errors(calibration.errors[keys == key]),
                "after": _errors(left[keys == key]) if (keys == key).sum() > 1 else None,
                "scatter": float(scale[keys == key][0]),
                "factor": float(np.exp(moves[keys == key].mean())),
            }
            for key in dict.fromkeys(keys.tolist())
        ],
        "moved": [
            moved._asdict()
            for moved in calibration.moved_constants()
            if moved.largest_effect >= NOTEWORTHY
        ],
        "disagree": [
            {
                "run_id": calibration.run_ids[row],
                "measured_over_expected": float(np.exp(left[row])),
                "sd": float(score[row]),
            }
            for row in order
            if abs(score[row]) >= DISAGREES_FROM
        ],
        "memory": _memory_report(calibration.peaks),
    }


def _memory_report(peaks: MemoryFacts) -> dict[str, Any]:
    """Errors of peak memory before and after (each peak judged by the others of its stack), runs
    out of memory, and the constants that moved."""
    stacks = (*peaks.frameworks, *(run.framework for run in peaks.out_of_memory))
    moved = [
        {"framework": framework, "constants": group, "factor": factor}
        for framework in dict.fromkeys(stacks)
        for group, factor in peaks.factors(framework).items()
        if abs(factor - 1.0) >= NOTEWORTHY
    ]
    return {
        "peaks": len(peaks),
        "out_of_memory": len(peaks.out_of_memory),
        "before": _errors(peaks.errors) if len(peaks) else None,
        "after": _errors(peaks.leave_one_out()) if len(peaks) else None,
        "moved": moved,
    }


def _errors(log_errors: Floats) -> Mapping[str, float | int]:
    """Errors of projections from log(measured / projected)."""
    ratio = np.exp(-log_errors) - 1.0
    return {
        "n": len(ratio),
        "mape": float(np.abs(ratio).mean()),
        "median_ape": float(np.median(np.abs(ratio))),
        "bias": float(ratio.mean()),
    }
