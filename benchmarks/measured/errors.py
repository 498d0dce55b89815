"""How far projections are from what was measured: from profiles alone, and after a few runs."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured.truth import DATA, Truth
from search.config_pool import ConfigPool, config_pool
from search.gaussian_process import Points
from search.memory_residual import MEMORY_PRIOR, MemoryResidual, with_sd
from search.ranking import rank
from search.shortlist import shortlist
from search.space import Space
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.profile_rows import Profile, read_profile
from studies.job import Job
from studies.profiled import learned_from
from surrogate.learned import Learned
from surrogate.memory import memory_log_sd
from surrogate.validation import Projected

Floats = NDArray[np.float64]

SEEDS = 20
RUNS = (0, 1, 2, 3, 5, 8, 13, 21)
SHORTLIST = 5


def profile_file(study: str) -> Path:
    """The rows of a study's profile."""
    return DATA / f"profile_{study}.jsonl"


def shortlisted(job: Job) -> list[TrainingConfig]:
    """What ``tune --profile`` would measure the shards of."""
    space = Space.of(job.experiment, job.cluster, full=True)
    ranking = rank(space, job, job.cluster.gpu.hbm_gib.value, 256)
    return [ranking.table.config(row) for row in shortlist(ranking, SHORTLIST)]


def after_profile(truth: Truth, profile: Profile) -> Learned:
    """What is believed once the node was profiled."""
    return learned_from(truth.job, shortlisted(truth.job), profile)[0]


def speed_errors(projected: Projected, measured: Floats) -> dict[str, float]:
    """Errors of throughput, fractions; ``rank`` is Kendall's tau-b."""
    from scipy.stats import kendalltau

    speed, low, high = projected.value, projected.lo90, projected.hi90
    ratio = speed / measured
    return {
        "mape": float(np.mean(np.abs(ratio - 1))),
        "median_ape": float(np.median(np.abs(ratio - 1))),
        "bias": float(np.mean(ratio - 1)),
        "coverage90": float(np.mean((low <= measured) & (measured <= high))),
        "half_width90": float(np.mean((high - low) / 2 / speed)),
        "kendall_tau": float(kendalltau(speed, measured).statistic),
    }


def memory_errors(projected_gib: Floats, measured_gib: Floats) -> dict[str, float]:
    """Errors of a peak, fractions."""
    ratio = projected_gib / measured_gib
    return {
        "mape": float(np.mean(np.abs(ratio - 1))),
        "median_ape": float(np.median(np.abs(ratio - 1))),
        "bias": float(np.mean(ratio - 1)),
    }


def zero_shot(truth: Truth, learned: Learned) -> dict[str, Any]:
    """Errors without any run of the job."""
    projected = learned_job(truth.job, learned).project(truth.table)
    runtime = truth.job.experiment.stack.runtime_gib or 0.0
    return {
        "speed": speed_errors(
            Projected(projected.tokens_per_s_per_gpu, projected.lo90, projected.hi90), truth.mean
        ),
        "allocated": memory_errors(np.asarray(projected.allocated_gib), truth.allocated_gib),
        "device": memory_errors(np.asarray(projected.device_gib), truth.reserved_gib + runtime),
    }


def learned_job(job: Job, learned: Learned) -> Job:
    """The job as it is projected with what was learned."""
    from dataclasses import replace

    return replace(job, learned=learned)


def draws(truth: Truth, runs: int) -> Iterator[NDArray[np.int64]]:
    """Rows that were run: the baseline first, then random ones; one draw a seed."""
    others = np.setdiff1d(np.arange(len(truth)), [truth.baseline])
    for seed in range(SEEDS):
        generator = np.random.default_rng([seed, runs])
        more = generator.choice(others, max(runs - 1, 0), replace=False)
        yield np.concatenate([[truth.baseline], more]) if runs else np.empty(0, dtype=np.int64)


def after_runs(truth: Truth, learned: Learned, runs: int) -> dict[str, float]:
    """Errors of throughput on the other configs once some were run, mean over draws."""
    rehearse = learned.rehearse(truth.runs())
    found = []
    for known in draws(truth, runs):
        rest = np.setdiff1d(np.arange(len(truth)), known)
        found.append(speed_errors(rehearse(known, rest), truth.mean[rest]))
        if not runs:
            break
    return _mean(found)


def memory_after_runs(truth: Truth, learned: Learned, runs: int) -> dict[str, float]:
    """Errors of allocated memory on the other configs once the peaks of some are known."""
    job = learned_job(truth.job, learned)
    pool = whole_pool(job)
    rows = np.array([pool.row_of(config) for config in truth.configs])
    everywhere = Points(pool.located(pool.codes[rows]), np.zeros((len(rows), 0)))
    projected = np.asarray(job.project(truth.table).allocated_gib)
    log_sd = float(np.max(memory_log_sd(job.cases(truth.table))))
    prior = with_sd(MEMORY_PRIOR, log_sd, everywhere.coordinates.axes)
    found = []
    for known in draws(truth, runs):
        rest = np.setdiff1d(np.arange(len(truth)), known)
        factor = np.ones(len(rest))
        if runs:
            residual = np.log(truth.allocated_gib[known] / projected[known])
            side = np.zeros(len(known), dtype=np.int64)
            fitted = MemoryResidual.fit(everywhere.take(known), residual, side, prior)
            factor = fitted.factor(everywhere.take(rest))
        found.append(memory_errors(projected[rest] * factor, truth.allocated_gib[rest]))
        if not runs:
            break
    return _mean(found)


def whole_pool(job: Job) -> ConfigPool:
    """The legal space of a job."""
    space = Space.of(job.experiment, job.cluster, full=True)
    return config_pool(space, job, job.cluster.gpu.hbm_gib.value, cases=job.cases)


def _mean(found: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([entry[name] for entry in found])) for name in found[0]}


def by_minutes(truth: Truth, path: Path) -> list[tuple[float, dict[str, float]]]:
    """(seconds of measuring, errors of throughput) as a profile grows line by line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    costs = [float(json.loads(line).get("took_s", 0.0)) for line in lines]
    total = np.cumsum(costs)
    curve = [(0.0, zero_shot(truth, truth.job.belief)["speed"])]
    for seconds in (2, 4, 8, 15, 30, 60, 90, 120, 180, 240):
        kept = int(np.searchsorted(total, seconds, side="right"))
        if kept < 2:
            continue
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "rows.jsonl"
            part.write_text("\n".join(lines[:kept]) + "\n", encoding="utf-8")
            try:
                learned = after_profile(truth, read_profile(part))
            except InputError:
                continue  # nothing in it teaches a constant yet
        curve.append((float(total[kept - 1]), zero_shot(truth, learned)["speed"]))
        if kept == len(lines):
            break
    return curve
