"""The measured loop: ask for the run that promises most, make it, tell it, until nothing promises
more than the noise of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from search.config_pool import ConfigPool
from search.pool_sampler import Judged
from search.space import Space
from specs.errors import InputError
from studies.measured_oracle import MeasuredOracle
from studies.real_runs import AskedRun, Outcome, RealRuns
from studies.run_ranking import write_calibrated
from studies.wording import describe

MOST_RUNS = 12
"""Runs at most, where no number is given: nobody waits for a loop that finds no end."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Loop:
    """A finished loop: every run of the measured study, why it stopped, and its files."""

    study_name: str
    runs: tuple[AskedRun, ...]
    why_stopped: str
    files: tuple[Path, ...]

    @property
    def best(self) -> AskedRun | None:
        """The fastest run; None where none ended well."""
        known = [run for run in self.runs if run.tokens_per_s_per_gpu]
        return max(known, key=lambda run: run.tokens_per_s_per_gpu or 0.0) if known else None

    def as_json(self) -> dict[str, Any]:
        """The loop as JSON."""
        best = self.best
        return {
            "study_name": self.study_name,
            "best": best.as_json() if best else None,
            "runs": [run.as_json() for run in self.runs],
            "why_stopped": self.why_stopped,
            "files": [str(path) for path in self.files],
        }


def run_loop(
    runs: RealRuns, oracle: MeasuredOracle, say: Say, most: int | None = None, seed: int = 0
) -> Loop:
    """Runs until no config promises more than noise, or ``most`` runs were made in all.

    A loop that was killed goes on: told runs are kept, a run that was out is made again.

    Raises:
        InputError: the job cannot run on this node.
    """
    oracle.check()
    limit = most or MOST_RUNS
    job = runs.job
    space = Space.of(job.experiment, job.cluster, full=True)
    pool = runs.pool(space, seed)
    for run in runs.runs():
        if run.state == "running":  # its process is gone
            _make(runs, oracle, run, say)
    why = f"{limit} runs were made"
    while len(runs.runs()) < limit:
        judged = runs.judged(pool, seed)
        if runs.needs_baseline() and pool.row_of(job.baseline) is not None:
            row, reason = pool.row_of(job.baseline), "the baseline: everything is judged by it"
        elif judged.is_done:
            why = "no config promises more than the noise of a run"
            break
        else:
            row, reason = judged.best_row, "highest expected gain"
        assert row is not None
        number = runs.ask(pool.config(row), reason, _expected(pool, judged, row))
        _make(runs, oracle, runs.runs()[number], say)
    files = write_calibrated(runs, oracle.folder)
    return Loop(runs.name, tuple(runs.runs()), why, tuple(files))


def _make(runs: RealRuns, oracle: MeasuredOracle, run: AskedRun, say: Say) -> None:
    """Makes an asked run and tells what came of it."""
    try:
        outcome = oracle.measure(run.config, oracle.folder / f"run_{run.number}")
    except InputError as error:
        outcome = Outcome(crash=str(error))
    told = runs.tell(run.number, outcome)
    expected = run.expected.get("tokens_per_s_per_gpu")
    before = f" (expected {expected:,.0f})" if expected else ""
    say(f"{told}{before}  {describe(run.config)}: {run.reason}")


def _expected(pool: ConfigPool, judged: Judged, row: int) -> dict[str, Any]:
    """What is thought of a config before it runs."""
    assert pool.belief is not None
    assert pool.belief.memory_gib is not None
    centre = float(np.log(pool.belief.values[:, 0]).max())
    mean, sd = float(judged.scores.mean[row]) + centre, float(judged.scores.sd[row])
    gain = float(judged.scores.gain[row]) if judged.models.incumbent is not None else None
    return {
        "tokens_per_s_per_gpu": float(np.exp(mean)),
        "interval90": [float(np.exp(mean - 1.645 * sd)), float(np.exp(mean + 1.645 * sd))],
        "projected_tokens_per_s_per_gpu": float(pool.belief.values[row, 0]),
        "peak_gib": float(pool.belief.memory_gib[row]),
        "fit_probability": float(judged.scores.fit_probability[row]),
        "expected_gain": gain,
    }
