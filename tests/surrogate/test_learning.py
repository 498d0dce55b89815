"""Learning from measured runs, and learning again without some of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs.models_json import models_json
from specs.runs import RunTable, read_runs
from surrogate.learning import RunLearner, has_throughput, leave_each_out
from surrogate.uncertainty import Intervals
from surrogate.validation import Projected


@pytest.fixture(scope="module")
def runs(shared: Path) -> RunTable:
    """Every second public run of a paper on pipeline schedules: three Folds."""
    measured = shared / "measured"
    table = read_runs(measured / "runs.csv", models_json(measured / "models.json").find)
    table = table.take(has_throughput(table))
    paper = [publisher.startswith("Qi et al. 2024") for publisher in table.publisher]
    return table.take(np.flatnonzero(paper)[::2])


@pytest.fixture(scope="module")
def left_out(runs: RunTable) -> Projected:
    """The runs, each projected from the other Folds."""
    projected, predictors = leave_each_out(runs, runs.fold)
    assert len(predictors) == len(set(runs.fold.tolist())) > 2
    rows = np.concatenate([rows for rows, _ in predictors])
    assert np.sort(rows).tolist() == [*range(len(runs))]
    return projected


def test_solving_again_is_learning_again(runs: RunTable, left_out: Projected) -> None:
    group = runs.fold == runs.fold[0]
    learned = RunLearner(Intervals.gaussian()).fit(runs.take(~group))
    again = learned.predict(runs.take(group)).value
    assert left_out.value[group] == pytest.approx(again, rel=0.01)


def test_a_group_says_nothing_of_itself(runs: RunTable, left_out: Projected) -> None:
    group = runs.fold == runs.fold[0]
    speed = np.where(group, 1.2, 1.0) * runs.tokens_per_s_per_gpu
    told, _ = leave_each_out(replace(runs, tokens_per_s_per_gpu=speed), runs.fold)
    assert told.value[group] == pytest.approx(left_out.value[group], rel=0.01)
    assert np.abs(np.log(told.value / left_out.value))[~group].max() > 0.02
