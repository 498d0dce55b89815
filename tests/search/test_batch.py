"""Runs that go out together: no near-duplicates, and more from the best of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from search.batch import next_of_batch, shared_errors
from search.config_pool import ConfigPool
from search.ranking import FIT_PROBABILITY
from search.shortlist import characters
from search.space import Space
from studies.inputs import resolve
from studies.job import Job
from studies.real_runs import RealRuns
from studies.run_requests import Slot, ask_runs
from studies.storage import storage_address

Floats = NDArray[np.float64]

MOST_ALIKE = 0.995
"""Correlation of what the projections of two configs are unsure of, for all that they share; runs
that were asked before this was looked at reached 0.9999."""


def alike(pool: ConfigPool, rows: list[int]) -> Floats:
    """Largest correlation of the errors of each config with those of another, shape (n,)."""
    assert pool.belief is not None
    assert pool.belief.loadings is not None
    loadings = pool.belief.loadings[rows]
    unit = loadings / np.linalg.norm(loadings, axis=1, keepdims=True)
    correlation = unit @ unit.T - 2.0 * np.eye(len(rows))
    return np.asarray(correlation.max(axis=1))


def expected_best(pool: ConfigPool, rows: list[int]) -> float:
    """Tokens/s/GPU to expect of the best of some configs whose errors are drawn together."""
    assert pool.belief is not None
    assert pool.belief.loadings is not None
    loadings = pool.belief.loadings[rows]
    drawn = np.random.default_rng(7).standard_normal((4000, loadings.shape[1])) @ loadings.T
    return float((pool.belief.values[rows, 0] * np.exp(drawn)).max(axis=1).mean())


def test_two_asks_in_a_row_ask_for_eight_different_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A sixth of the configs that a search weighs, of 20 million instead of 80: as unlike.
    monkeypatch.setattr("search.config_pool.BEST_ROWS", 4000)
    monkeypatch.setattr("search.config_pool.TAIL_ROWS", 2000)
    job = narrowed(cp=[1])
    space = Space.of(job.experiment, job.cluster, full=True)
    runs = RealRuns.open(job, storage_address(None, tmp_path / "runs.db"), "mixtral")
    pool = runs.pool(space)
    monkeypatch.setattr(RealRuns, "pool", lambda *_: pool)  # projected once, for the time it takes
    by_score = RealRuns.open(job, storage_address(None, tmp_path / "by_score.db"), "mixtral")
    for _ in range(2):
        ask_runs(runs, space, Slot(4 * 3600.0), tmp_path, most=4)
    asked = [pool.row_of(run.config) or 0 for run in runs.runs()]
    assert len(set(asked)) == 8
    assert len(np.unique(characters(pool.table.take(asked)), axis=0)) == 8
    assert alike(pool, asked).max() < MOST_ALIKE

    by_score.ask(runs.runs()[0].config, "the same first run", {})
    alone = [asked[0]]
    while len(alone) < 8:
        judged = by_score.judged(pool)
        alone.append(judged.best_row)
        by_score.ask(pool.config(judged.best_row), "highest expected gain", {})
    assert alike(pool, alone).max() > MOST_ALIKE
    assert expected_best(pool, asked[:4]) > expected_best(pool, alone[:4])
    assert expected_best(pool, asked) > expected_best(pool, alone)
    assert runs.judged(pool).scores.fit_probability[asked].min() > FIT_PROBABILITY


def test_what_was_measured_takes_its_uncertainty_away() -> None:
    generator = np.random.default_rng(0)
    loadings = generator.standard_normal((3, 6))
    left = shared_errors(loadings[:1], 0.01, generator) @ loadings.T
    assert left[:, 0].std() == pytest.approx(0.01, rel=0.1)
    assert left[:, 1].std() > 0.1
    assert abs(left.mean()) < 0.1


def test_without_runs_the_score_alone_decides(small_pool: tuple[RealRuns, ConfigPool]) -> None:
    runs, pool = small_pool
    judged = runs.judged(pool)
    row, _ = next_of_batch(pool, judged, [], [], judged.open_rows)
    assert row == judged.best_row


@pytest.fixture
def small_pool(tmp_path: Path) -> tuple[RealRuns, ConfigPool]:
    """A small job without runs and its configs."""
    job = narrowed(tp=[1], pp=[2, 4], cp=[1], precision=["fp8-cs"], schedule=["1f1b"])
    runs = RealRuns.open(job, storage_address(None, tmp_path / "small.db"), "small")
    return runs, runs.pool(Space.of(job.experiment, job.cluster))


def narrowed(**axes: list[Any]) -> Job:
    """The Mixtral study with these values of some axes alone."""
    job = resolve("mixtral_8x22b_mi355x", None, None, {})
    settings = replace(job.experiment.settings, axes=axes)
    return replace(job, experiment=replace(job.experiment, settings=settings))
