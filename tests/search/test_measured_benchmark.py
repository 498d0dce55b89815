"""The ground truth and what is judged on it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.measured import errors
from benchmarks.measured.measure import machine_busy_s, wanted
from benchmarks.measured.picture import learning_curves
from benchmarks.measured.replay import problem, runs_needed
from benchmarks.measured.space import STUDIES, ground_truth
from benchmarks.measured.truth import ENVIRONMENT, truths, write_truth
from benchmarks.search.methods import analytic_top_k, random
from specs.choices import Sharding
from surrogate.validation import Projected


@pytest.mark.parametrize("name", STUDIES)
def test_every_config_was_measured_in_rounds(name):
    truth = truths()[name]
    assert set(truth.configs) == set(ground_truth(truth.job))
    assert truth.speed.shape[1] >= 2
    assert np.isfinite(truth.speed).all()
    assert (truth.allocated_gib > 0).all()
    # More than the allocator gave out is resident, fragments and libraries' buffers besides.
    assert (truth.reserved_gib > 0.5 * truth.allocated_gib).all()
    assert np.median(truth.spread) < 0.15
    assert truth.job.baseline in truth.configs


def test_there_are_at_least_sixty_configs_with_an_environment():
    assert sum(len(truth) for truth in truths().values()) >= 60
    assert json.loads(ENVIRONMENT.read_text())["torch"]


def test_one_replica_has_nothing_to_shard():
    for truth in truths().values():
        for config in truth.configs:
            assert config.tp * config.pp == 1 or config.sharding is Sharding.NONE


def test_lines_become_rows(tmp_path):
    pytest.importorskip("torch", reason="measuring needs PyTorch")
    study, _, labels, _, _ = next(wanted(1))
    line = {
        **{"study": study, "round": 0, "config": labels, "limit_gib": 0.0, "started": 1.79e9},
        **{"exit_codes": [0, 0], "wall_s": 3.0},
        "log": [
            *(f" iteration {n} | elapsed time per iteration (ms): {t} |" for n, t in _TIMES),
            "[Rank 0] memory (MB) | max allocated: 512.00 | max reserved: 768.00 |",
            "[Rank 1] memory (MB) | max allocated: 256.00 | max reserved: 1024.00 |",
        ],
    }
    failed = line | {"exit_codes": [1, -9], "log": []}
    oom = failed | {"limit_gib": 0.5, "exit_codes": [3, -9], "log": ["can't allocate memory"]}
    path = tmp_path / "lines.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (line, failed, oom)))
    assert write_truth(path, tmp_path / "runs.csv") == 2  # a crash is no row
    with (tmp_path / "runs.csv").open() as file:
        measured, out_of_memory = csv.DictReader(file)
    assert float(measured["step_time_s"]) == 0.5  # the first step is warm-up
    assert float(measured["peak_mem_gb"]) == 0.5
    assert float(measured["reserved_gib"]) == 1.0
    assert out_of_memory["run_id"].endswith("-oom")
    assert not out_of_memory["step_time_s"]


_TIMES = [(1, 900.0), (2, 500.0), (3, 510.0), (4, 490.0)]


def test_machine_is_watched():
    before = machine_busy_s()
    assert machine_busy_s() >= before > 0


def test_a_problem_answers_with_measured_rounds():
    truth = truths()["cpu_two_process"]
    found = problem(truth, truth.job.belief, seed=3)
    row = int(np.flatnonzero(found.fits)[0])
    seen = {found._measured(row, count)[0] for count in range(truth.speed.shape[1])}
    assert seen == set(truth.speed[row].tolist())
    assert found.best == pytest.approx(float(truth.mean[found.fits].max()))


def test_methods_find_the_best_of_the_ground_truth():
    truth = truths()["cpu_two_process"]
    first = problem(truth, truth.job.belief, seed=0)
    for method in (random, analytic_top_k):
        one = replace(first, seen=[])
        count = runs_needed(method, one, 0)
        assert 1 <= count == len(one.seen) <= len(one)
        assert one.regret(one.seen[-1]) <= 0.02
        assert all(one.regret(row) > 0.02 or not one.fits[row] for row in one.seen[:-1])


def test_errors_of_what_was_measured_are_none():
    truth = truths()["cpu_two_process"]
    exact = Projected(truth.mean, truth.mean * 0.9, truth.mean * 1.1)
    found = errors.speed_errors(exact, truth.mean)
    assert found["mape"] == 0
    assert found["coverage90"] == 1
    assert found["half_width90"] == pytest.approx(0.1)
    assert found["kendall_tau"] == pytest.approx(1.0)


def test_draws_begin_with_the_baseline_and_repeat_nothing():
    truth = truths()["cpu_two_process"]
    for known in errors.draws(truth, 5):
        assert known[0] == truth.baseline
        assert len(set(known.tolist())) == 5


def test_curves_are_drawn():
    curves = {"a": [(0.0, 0.5), (60.0, 0.1)], "b": [(0.0, 0.4), (120.0, 0.05)]}
    root = ElementTree.fromstring(learning_curves(curves, {"a": [(0, 0.5)], "b": [(3, 0.1)]}, "t"))
    lines = [e for e in root.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 4
