"""The search benchmark: fair problems, every method, and the promise on a few seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.search import methods
from benchmarks.search.landscape import difficulty, landscape
from benchmarks.search.replay import replays
from benchmarks.search.report import landscapes, until_within, verdicts

methods.quiet()


def test_landscapes_are_hard_and_their_physics_is_wrong() -> None:
    tasks = [difficulty(landscape(seed)) for seed in range(6)]
    rank = np.mean([task["spearman"] for task in tasks])
    assert 0.35 < rank < 0.65
    assert 0.5 < np.mean([task["oom_share"] for task in tasks]) < 0.7
    assert np.mean([task["within_2%"] for task in tasks]) < 6
    assert landscape(3).true_speed == pytest.approx(landscape(3).true_speed)
    assert not (landscape(3).true_speed == landscape(4).true_speed).all()


@pytest.mark.parametrize("memory_filter", [True, False])
@pytest.mark.parametrize("name", ["random", "TPE", "coordinate descent", "seed sweep"])
def test_methods_spend_their_budget_on_distinct_legal_candidates(
    name: str, memory_filter: bool
) -> None:
    problem = landscape(1)
    run = methods.PLAIN[name](problem, 12, memory_filter, 0)
    assert len(run.rows) == len(set(run.rows)) == 12
    allowed = set(methods.allowed(problem, memory_filter).tolist()) | {problem.start}
    assert set(run.rows) <= allowed
    assert (np.diff(run.regrets()) <= 0.05).all()


def test_pool_sampler_beats_the_analytic_ranking_and_avoids_ooms() -> None:
    ours, theirs = [], []
    for seed in (0, 1, 2):
        problem = landscape(seed)
        ours.append(methods.PLAIN["PoolSampler"](problem, 30, True, seed))
        theirs.append(methods.PLAIN["analytic top-k"](problem, 30, True, seed))
    regret = [np.mean([run.regrets()[-1] for run in runs]) for runs in (ours, theirs)]
    assert regret[0] < regret[1]
    assert sum(run.ooms for run in ours) <= 9 < sum(run.ooms for run in theirs)


def test_summary_and_verdicts() -> None:
    content = landscapes(range(2), lambda _: None, ("random", "analytic top-k"))
    summary = content["memory_filter"]["random"]
    assert summary["regret@30"]["n"] == 2
    assert summary["regret@10"]["mean"] >= summary["regret@30"]["mean"]
    assert verdicts({"landscape": content}) == {}


def test_replay_of_a_measured_table(shared: Path) -> None:
    measured = shared / "measured"
    problem = replays(measured / "runs.csv", measured / "models.json", most=1)[0]
    run = methods.PLAIN["PoolSampler"](problem, 8, False, 0)
    assert until_within(run, problem) <= 8
    assert not problem.reads_memory
