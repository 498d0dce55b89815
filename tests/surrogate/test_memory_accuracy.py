"""The evaluation on what was left out: what it leaves out, and how it counts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from test_memory_fitting import priors, runs

from surrogate.memory import UNSTATED_WIDTH
from surrogate.memory_accuracy import memory_left_out, reliability_table
from surrogate.memory_fitting import left_out_readings, left_out_spreads


def test_a_group_does_not_teach_its_own_projection() -> None:
    told = runs({})
    wrong = np.where(told.fold == 0, 1.5, 1.0)
    odd = dataclasses.replace(told, measured_gib=told.measured_gib * wrong)
    reading = left_out_readings(odd, odd.fold.astype(str), priors())
    assert reading[0] == pytest.approx(told.measured_gib[0], rel=0.02)


def test_failures_and_runs_without_a_peak_are_counted_against_capacity() -> None:
    told = runs({})
    n = len(told.measured_gib)
    bound = np.array([1, -1] + [0] * (n - 2))
    counters = np.where(bound == 0, told.counters, "device").astype(object)
    table = dataclasses.replace(
        told,
        stated=np.arange(n) != n - 1,
        bound=bound,
        counters=counters,
        measured_gib=np.where(bound, 80.0, told.measured_gib),
    )
    found = memory_left_out(table, np.array([f"p{i % 4}" for i in range(n)]), priors())
    assert set(found) == {"fold", "source"}
    for line in found.values():
        assert line["n"] == n - 2
        assert line["nvidia"]["n"] == n - 2
        assert line["amd"]["n"] == 0
        assert line["stacks"]["Megatron-LM"]["n"] == n - 2
        assert line["out_of_memory"]["n"] == line["ran"]["n"] == 1
        assert line["out_of_memory"]["surely"] <= line["out_of_memory"]["called_fitting"]
        assert (line["stated"]["n"], line["unstated"]["n"]) == (n - 3, 1)
        assert sum(part["n"] for part in line["reliability"]) == 2


def test_rows_that_leave_something_unsaid_have_wider_intervals() -> None:
    told = runs({})
    n = len(told.measured_gib)
    found = []
    for stated in (True, False):
        table = dataclasses.replace(told, stated=np.full(n, stated))
        found.append(memory_left_out(table, np.arange(n).astype(str), priors())["fold"])
    narrow, wide = (np.arcsinh(line["half_width90"]) for line in found)
    assert found[0]["mape"] == found[1]["mape"]
    assert wide / narrow == pytest.approx(UNSTATED_WIDTH, rel=0.02)


def test_reliability_compares_probability_with_what_happened() -> None:
    probability = np.array([0.02, 0.05, 0.7, 0.95, 0.995, 0.999])
    fits = np.array([False, False, True, True, True, True])
    table = reliability_table(probability, fits)
    assert [part["n"] for part in table] == [2, 1, 1, 2]
    assert table[0] == {"above": 0.0, "n": 2, "projected": pytest.approx(0.035), "fits": 0.0}
    assert table[-1]["fits"] == 1.0


def test_a_group_does_not_teach_its_own_spread() -> None:
    told = runs({})
    n = len(told.measured_gib)
    reading = told.measured_gib * np.where(told.fold == 0, 2.0, 1.01)
    spread = left_out_spreads(told, told.fold.astype(str), reading, priors())
    assert spread.shape == (n,)
    assert spread[0] < 0.02
