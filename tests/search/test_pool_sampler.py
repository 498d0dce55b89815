"""PoolSampler on pools: legality, no repeats, agreement of processes, memory, cost, objectives."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from search.evidence import PEAK_KNOWN
from search.pareto import pareto_front
from search.pool import BEST_ROWS, EXACT_ROWS, TAIL_ROWS, Belief, Pool, enumerated, pool_of
from search.pool_sampler import PoolSampler
from specs.errors import InputError

optuna.logging.set_verbosity(optuna.logging.ERROR)

SPACE = {
    "tp": IntDistribution(1, 8, log=True),
    "mbs": IntDistribution(1, 4),
    "backend": CategoricalDistribution(("plain", "fast", "faster")),
}


def legal() -> list[dict[str, Any]]:
    return [
        {"tp": tp, "mbs": mbs, "backend": backend}
        for tp, mbs, backend in product((1, 2, 4, 8), (1, 2, 3, 4), ("plain", "fast", "faster"))
        if tp * mbs <= 16 and not (backend == "faster" and tp == 1)
    ]


def speed(candidate: dict[str, Any]) -> float:
    gain = {"plain": 1.0, "fast": 1.1, "faster": 1.15}[candidate["backend"]]
    return 100.0 * gain * candidate["mbs"] ** 0.3 / candidate["tp"] ** 0.2


def peak_gib(candidate: dict[str, Any]) -> float:
    return 40.0 * candidate["mbs"] / candidate["tp"] ** 0.5 + 10.0


def project(candidates: Sequence[dict[str, Any]]) -> Belief:
    values = np.array([[speed(c)] for c in candidates])
    return Belief(values, np.array([peak_gib(c) for c in candidates]))


def doubtful(candidates: Sequence[dict[str, Any]]) -> Belief:
    believed = project(candidates)
    return Belief(believed.values, believed.memory_gib, None, 0.1)


def the_pool() -> Pool:
    return pool_of(SPACE, legal(), project, capacity_gib=100.0)


def run(study: optuna.Study, sampler: PoolSampler, pool: Pool, count: int) -> list[int]:
    rows = []
    for _ in range(count):
        trial = study.ask(pool.space)
        rows.append(sampler.row_of(trial))
        over = peak_gib(trial.params) - 100.0
        trial.set_constraint("memory_gib", over if over <= 0 else 1.0)
        study.tell(trial, speed(trial.params) if over <= 0 else 0.0)
    return rows


def test_the_front_door_offers_it() -> None:
    code = "import foretune, sys; assert 'optuna' not in sys.modules; foretune.PoolSampler()"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_every_candidate_once_then_one_clear_sentence() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    rows = run(study, sampler, pool, len(pool))
    assert sorted(rows) == list(range(len(pool)))
    asked = [trial.params for trial in study.trials]
    assert all(params in legal() for params in asked)
    with pytest.raises(InputError, match="nothing left"):
        study.ask(pool.space)


def test_it_begins_with_what_is_projected_best_and_avoids_ooms() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    rows = run(study, sampler, pool, 8)
    fitting = [row for row in range(len(pool)) if peak_gib(pool.parameters(row)) <= 100]
    best = max(fitting, key=lambda row: speed(pool.parameters(row)))
    assert best in rows
    assert sum(row not in fitting for row in rows) <= 1


def test_two_processes_and_a_resumed_one_agree(tmp_path: Path) -> None:
    pool = the_pool()
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = optuna.create_study(
        study_name="s", storage=url, direction="maximize", sampler=PoolSampler(pool)
    )
    run(study, PoolSampler(pool), pool, 5)
    first = PoolSampler(the_pool()).judged(study)
    again = optuna.load_study(study_name="s", storage=url)
    second = PoolSampler(the_pool()).judged(again)
    assert first.best_row == second.best_row
    assert first.scores.score == pytest.approx(second.scores.score)


def test_parallel_workers_get_different_candidates() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    rows = [sampler.row_of(study.ask(pool.space)) for _ in range(12)]
    assert len(set(rows)) == 12
    first = [pool.parameters(row) for row in rows[:4]]
    assert len({c["tp"] for c in first}) > 1 or len({c["mbs"] for c in first}) > 1


def test_a_partial_enqueue_is_completed_to_a_legal_candidate() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial({"tp": 1})
    assert study.ask(pool.space).params in [c for c in legal() if c["tp"] == 1]
    study.enqueue_trial({"tp": 1, "backend": "faster"})
    with pytest.raises(InputError, match="no candidate"):
        study.ask(pool.space)


def test_a_waiting_candidate_is_left_to_its_queue() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    best = sampler.judged(study).best_row
    study.enqueue_trial(pool.parameters(best))
    assert best not in sampler.judged(study).open_rows


def test_failed_and_lost_trials() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    crashed, lost = study.ask(pool.space), study.ask(pool.space)
    lost.set_user_attr("lost", True)
    study.tell(crashed, state=TrialState.FAIL)
    study.tell(lost, state=TrialState.FAIL)
    open_rows = sampler.judged(study).open_rows
    assert sampler.row_of(crashed) not in open_rows
    assert sampler.row_of(lost) in open_rows


def test_an_unread_peak_says_only_that_it_fits() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.enqueue_trial(next(c for c in legal() if 100 < peak_gib(c) < 125))
    before = sampler.judged(study).scores.fit_probability
    trial = study.ask(pool.space)
    trial.set_user_attr(PEAK_KNOWN, False)
    trial.set_constraint("memory_gib", 0.0)
    study.tell(trial, 90.0)
    after = sampler.judged(study).scores.fit_probability
    row = sampler.row_of(trial)
    assert after[row] > before[row]


def test_an_oom_that_a_finished_run_refutes_says_nothing_of_memory() -> None:
    pool = the_pool()
    sampler = PoolSampler(pool)
    lean, full = sorted((c for c in legal() if peak_gib(c) < 90), key=peak_gib)[-2:]

    def judged(**ended: bool) -> Any:
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for candidate, finished in ((lean, ended["lean"]), (full, ended["full"])):
            study.enqueue_trial(candidate)
            trial = study.ask(pool.space)
            trial.set_user_attr(PEAK_KNOWN, False)
            trial.set_constraint("memory_gib", 0.0 if finished else 1.0)
            study.tell(trial, 90.0 if finished else 0.0)
        return sampler.judged(study).scores.fit_probability

    both, refuted = judged(lean=True, full=True), judged(lean=False, full=True)
    assert refuted.min() > 0.9 * both.min(), "the finished run counts, the refuted one does not"
    assert judged(lean=False, full=False).min() < refuted.min()


def test_cost_counts() -> None:
    candidates = [{"x": x, "y": y} for x in range(4) for y in range(4)]
    space = {"x": IntDistribution(0, 3), "y": IntDistribution(0, 3)}
    flat = lambda listed: Belief(np.ones((len(listed), 1)))  # noqa: E731
    cost = np.array([1.0 if c["x"] == 2 else 50.0 for c in candidates])
    pool = pool_of(space, candidates, flat, cost=cost)
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.tell(study.ask(pool.space), 1.0)
    assert study.ask(pool.space).params["x"] == 2


def test_it_stops_when_nothing_is_left_to_gain() -> None:
    pool = the_pool()
    study = optuna.create_study(direction="maximize", sampler=PoolSampler(pool, stop=True))

    def objective(trial: optuna.Trial) -> float:
        params = {name: trial._suggest(name, d) for name, d in pool.space.items()}
        over = peak_gib(params) - 100.0
        trial.set_constraint("memory_gib", over)
        return speed(params)

    study.optimize(objective, n_trials=len(pool))
    assert len(study.trials) < len(pool)
    assert study.best_value == max(speed(c) for c in legal() if peak_gib(c) <= 100)


def test_an_expert_who_is_right_helps_and_one_who_is_wrong_loses_the_word() -> None:
    space = {"x": IntDistribution(0, 19), "y": IntDistribution(0, 19)}
    candidates = [{"x": x, "y": y} for x in range(20) for y in range(20)]
    pool = pool_of(space, candidates, lambda listed: Belief(np.ones((len(listed), 1))))
    truth = np.array([np.exp(-((c["x"] - 15) ** 2 + (c["y"] - 4) ** 2) / 60) for c in candidates])

    def found(opinion: np.ndarray) -> float:
        sampler = PoolSampler(pool, expert=lambda _: opinion)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for _ in range(12):
            trial = study.ask(pool.space)
            study.tell(trial, float(1 + truth[sampler.row_of(trial)]))
        return study.best_value

    assert found(truth) == pytest.approx(2.0, abs=0.02)
    assert found(-truth) > 1.8


def test_several_objectives_give_a_front() -> None:
    pool = pool_of(
        SPACE,
        legal(),
        lambda listed: Belief(np.array([[speed(c), 100.0 - peak_gib(c)] for c in listed])),
    )
    sampler = PoolSampler(pool)
    study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
    for _ in range(15):
        trial = study.ask(pool.space)
        study.tell(trial, (speed(trial.params), 100.0 - peak_gib(trial.params)))
    assert len(study.best_trials) >= 4
    values = np.array([t.values for t in study.trials])
    rows = pareto_front(values, ("maximize", "maximize"))
    front = {tuple(values[row]) for row in rows}
    assert front == {tuple(t.values) for t in study.best_trials}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30))
@settings(max_examples=50, deadline=None)
def test_no_row_of_a_front_is_dominated(points: list[tuple[int, int]]) -> None:
    values = np.array(points, dtype=float)
    front = values[pareto_front(values, ("maximize", "minimize"))] * [1, -1]
    signed = values * [1, -1]
    for row in front:
        beats = (signed >= row).all(axis=1) & (signed > row).any(axis=1)
        assert not beats.any()
    assert len(np.unique(front, axis=0)) == len(front)
    for row in signed:
        assert (front >= row).all(axis=1).any()


def test_a_large_pool_keeps_the_best_and_a_tail_and_says_so() -> None:
    size = 150_000
    space = {"x": IntDistribution(0, size - 1)}
    codes = np.arange(size)[:, None]
    value = np.random.default_rng(0).permutation(size).astype(float) + 1.0
    pool = Pool(space, (tuple(range(size)),), codes, Belief(value[:, None]), total=size)
    small = pool.narrowed(value)
    assert len(small) == BEST_ROWS + TAIL_ROWS < EXACT_ROWS < size
    assert set(np.argsort(-value)[:BEST_ROWS]) <= set(small.codes[:, 0].tolist())
    assert "too many" in small.note
    assert not pool.take(slice(0, EXACT_ROWS)).narrowed(value[:EXACT_ROWS]).note


def test_pools_refuse_what_cannot_be_sampled() -> None:
    with pytest.raises(InputError, match="no candidates"):
        pool_of(SPACE, [])
    with pytest.raises(InputError, match="twice"):
        pool_of(SPACE, [legal()[0], legal()[0]])
    with pytest.raises(InputError, match="outside"):
        pool_of(SPACE, [{"tp": 16, "mbs": 1, "backend": "plain"}])
    with pytest.raises(InputError, match="no combination"):
        enumerated(SPACE, lambda _: False)
    with pytest.raises(InputError, match="either"):
        PoolSampler(the_pool(), legal=lambda _: True)


def test_the_first_proposal_is_the_best_as_projected_of_those_that_fit() -> None:
    pool = pool_of(SPACE, legal(), doubtful, capacity_gib=100.0)
    study = optuna.create_study(direction="maximize", sampler=PoolSampler(pool))
    trial = study.ask(pool.space)
    fitting = [candidate for candidate in legal() if peak_gib(candidate) <= 100.0]
    assert speed(trial.params) == max(map(speed, fitting))


def test_unseen_memory_is_as_unsure_as_the_projection_says() -> None:
    from scipy.stats import norm

    pool = pool_of(SPACE, legal(), doubtful, capacity_gib=100.0)
    sampler = PoolSampler(pool)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    assert pool.belief is not None
    assert pool.belief.memory_gib is not None
    expected = norm.cdf(np.log(100.0 / pool.belief.memory_gib) / 0.1)
    assert sampler.judged(study).scores.fit_probability == pytest.approx(expected, abs=1e-3)
