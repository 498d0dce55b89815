"""Which job a run was of, and which runs out of memory another run of the same job refutes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specs.choices import TrainingKind
from surrogate.cases import Cases, Column
from surrogate.memory import memory

ROUNDING = 1e-5
"""Relative difference of the memory of two runs that need the same: files keep five digits."""

JOB = ("model", "gpu", "framework", "num_gpus", "hbm_gib", "seq_len", "global_batch_size", "kind")
"""What a run out of memory was of: of another of these its config may fit."""


def jobs_of(cases: Cases) -> list[dict[str, str]]:
    """JOB of every row as text; one of all rows where they are of one study."""
    count = 1 if is_study(cases) else len(cases)

    def each(column: Column) -> list[Any]:
        return list(np.broadcast_to(column, (count,)).tolist())

    table = {
        "model": [cases.models[index].name for index in each(cases.model_index)],
        "gpu": [cases.gpus[index].name for index in each(cases.cluster.gpu)],
        "framework": [cases.stacks[index].framework_name for index in each(cases.stack_index)],
        "num_gpus": each(cases.cluster.num_gpus),
        "hbm_gib": [f"{value:g}" for value in each(cases.cluster.hbm_gib)],
        "seq_len": each(cases.workload.seq_len),
        "global_batch_size": each(cases.workload.global_batch_size),
        "kind": [TrainingKind.labels()[int(value)] for value in each(cases.workload.kind)],
    }
    return [
        {name: str(value) for name, value in zip(table, row, strict=True)}
        for row in zip(*table.values(), strict=True)
    ]


def job_key(job: Mapping[str, str]) -> tuple[str, ...]:
    """A job as something to look up."""
    return tuple(job[name] for name in JOB)


def is_study(cases: Cases) -> bool:
    """Whether all rows are configs of one job."""
    return np.ndim(cases.model_index) == np.ndim(cases.stack_index) == 0


@dataclass(frozen=True)
class Finished:
    """A run on ``job`` that did not run out; ``log_bound`` is log(capacity / projected peak)."""

    run_id: str
    job: Mapping[str, str]
    log_bound: float


def largest(runs: Iterable[Finished]) -> tuple[Finished, ...]:
    """Of each job the run that needs most; of several the first."""
    found: dict[tuple[str, ...], Finished] = {}
    for run in runs:
        held = found.setdefault(job_key(run.job), run)
        if run.log_bound < held.log_bound:
            found[job_key(run.job)] = run
    return tuple(found.values())


def contradicts(finished_gib: Any, failed_gib: Any) -> Any:
    """Whether a run that finished needs no less than one of its job that ran out of memory."""
    return finished_gib >= failed_gib * (1.0 - ROUNDING)


def refuted_by(cases: Cases, failed: Column, finished: Column) -> dict[int, int]:
    """Runs out of memory that a run of the same job contradicts: it finished, and is projected to
    need no less.

    Args:
        cases: runs.
        failed: rows that went out of memory.
        finished: rows that did not.

    Returns:
        By row that is contradicted, the row of its job that finished and needs most.
    """
    needed, jobs = memory(cases).device_gib, [job_key(job) for job in jobs_of(cases)]
    neediest: dict[tuple[str, ...], int] = {}
    for row in sorted(finished.tolist(), key=lambda row: needed[row]):
        neediest[jobs[row % len(jobs)]] = row
    found = {row: neediest.get(jobs[row % len(jobs)]) for row in failed.tolist()}
    return {
        row: other
        for row, other in found.items()
        if other is not None and contradicts(needed[other], needed[row])
    }
