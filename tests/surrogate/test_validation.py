"""Metrics against hand-computed values, and leave-out that never sees what it projects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from specs import catalog
from specs.runs import RunTable, table_of
from surrogate.validation import (
    Projected,
    batches_of,
    calibration_draws,
    calibration_metrics,
    error_metrics,
    leave_out,
    ranking_metrics,
    unsafe_share,
    worst_folds,
)


def table(rows: int, models: tuple[str, ...] = ("llama3-8b",)) -> RunTable:
    """Runs whose throughput is 100, 101, ... of one source, dealt over models."""
    text = [
        {
            "run_id": str(i), "source": "owner/repo x", "gpu": "H100-SXM", "num_gpus": "8",
            "model": models[i % len(models)], "seq_len": "8192", "gbs": "128", "mbs": "1",
            "tp": "1", "pp": "1", "recompute": "none", "tokens_per_s_per_gpu": str(100 + i),
        }
        for i in range(rows)
    ]  # fmt: skip
    return table_of(text, catalog.model, catalog.gpu)


def exactly(values: Any) -> Projected:
    """A projection with an interval of 10% around it."""
    value = np.asarray(values, dtype=np.float64)
    return Projected(value, value * 0.9, value * 1.1)


def test_errors_by_hand() -> None:
    measured = np.array([100.0, 200.0, 400.0])
    found = error_metrics(measured, exactly([110.0, 180.0, 400.0]))
    assert found["n"] == 3
    assert found["mape"] == pytest.approx(0.2 / 3)
    assert found["median_ape"] == pytest.approx(0.1)
    assert found["bias"] == pytest.approx(0.0, abs=1e-12)
    assert found["coverage90"] == pytest.approx(2 / 3)
    assert found["half_width90"] == pytest.approx(0.1)


def test_no_rows_are_no_numbers() -> None:
    found = error_metrics(np.empty(0), Projected.empty(0))
    assert found["n"] == 0
    assert found["mape"] is None
    assert unsafe_share(np.empty(0), np.empty(0)) is None


def test_unsafe_is_more_than_ten_percent_too_low() -> None:
    assert unsafe_share(np.array([100.0, 100.0]), np.array([89.0, 91.0])) == 0.5


def test_ranking_of_a_perfect_and_a_reversed_projection() -> None:
    runs = table(4)
    truth = runs.tokens_per_s_per_gpu
    perfect = ranking_metrics(runs, truth, truth)
    assert perfect == {"n": 1, "kendall_tau": pytest.approx(1.0), "top1_regret": 0.0}
    reverse = ranking_metrics(runs, truth, -truth)
    assert reverse["kendall_tau"] == pytest.approx(-1.0)
    assert reverse["top1_regret"] == pytest.approx(1 - 100 / 103)
    assert ranking_metrics(table(3), truth[:3], truth[:3])["n"] == 0
    # Rounding is no preference: with all but one tied, tau-b is that of the one.
    tied = np.ones(len(runs))
    tied[int(np.argmax(truth))] = 2.0
    noise = np.random.default_rng(0).normal(0.0, 1e-12, len(runs))
    assert ranking_metrics(runs, truth, tied + noise) == ranking_metrics(runs, truth, tied)
    assert ranking_metrics(runs, truth, 1.0 + noise)["n"] == 0


def test_batches_keep_groups_whole() -> None:
    labels = np.array(list("aaabbcdddde"), dtype=object)
    batches = batches_of(labels, 3)
    assert sorted(np.concatenate(batches)) == list(range(len(labels)))
    for batch in batches:
        others = np.setdiff1d(np.arange(len(labels)), batch)
        assert not set(labels[batch]) & set(labels[others])


class Mean:
    """Projects the mean of what it has seen; calibration replaces it by the mean of the known."""

    def __init__(self, value: float, seen: frozenset[str]) -> None:
        self.value, self.seen = value, seen

    def predict(self, runs: RunTable) -> Projected:
        assert not self.seen & set(runs.fold), "projects what it was fitted to"
        return exactly(np.full(len(runs), self.value))

    def rehearse(self, runs: RunTable) -> Callable[[Any, Any], Projected]:
        speeds = runs.tokens_per_s_per_gpu

        def after(known: Any, rest: Any) -> Projected:
            assert not set(known) & set(rest)
            return exactly(np.full(len(rest), speeds[known].mean()))

        return after


class MeanLearner:
    """Learns a mean."""

    def fit(self, train: RunTable) -> Mean:
        return Mean(float(train.tokens_per_s_per_gpu.mean()), frozenset(train.fold))


MODELS = ("llama3-8b", "llama3-70b", "mixtral-8x7b")


def test_leave_out_never_fits_what_it_projects() -> None:
    runs = table(30, MODELS)
    projected, predictors = leave_out(runs, runs.fold, MeanLearner(), batches=3)
    assert np.isfinite(projected.value).all()
    assert sum(len(rows) for rows, _ in predictors) == len(runs)


def test_calibration_reveals_runs_and_judges_the_others() -> None:
    runs = table(30, MODELS)
    _, predictors = leave_out(runs, runs.fold, MeanLearner(), batches=3)
    drawn = calibration_draws(runs, predictors, runs=9, draws=4)
    assert drawn.folds == 3
    assert len(drawn.rows) == 3 * 4
    again = calibration_draws(runs, predictors, runs=9, draws=4)
    assert (drawn.rows == again.rows).all()
    metrics = calibration_metrics(runs.tokens_per_s_per_gpu, drawn)
    assert metrics["folds"] == 3
    none_left = calibration_draws(runs, predictors, runs=10, draws=4)
    assert none_left.folds == 0
    assert len(none_left.smaller_folds) == 3


def test_folds_weigh_the_same_after_calibration() -> None:
    runs = table(12, ("llama3-8b", "llama3-8b", "llama3-70b"))
    _, predictors = leave_out(runs, runs.fold, MeanLearner(), batches=2)
    drawn = calibration_draws(runs, predictors, runs=1, draws=3)
    for model in ("llama3-8b", "llama3-70b"):
        here = runs.model[drawn.rows] == model
        assert drawn.weight[here].sum() == pytest.approx(3.0)


def test_worst_folds_come_first() -> None:
    runs = table(6, ("llama3-8b", "llama3-70b"))
    projected = runs.tokens_per_s_per_gpu * np.where(runs.model == "llama3-70b", 2.0, 1.1)
    first, second = worst_folds(runs, runs.tokens_per_s_per_gpu, projected)
    assert "llama3-70b" in first["fold"]
    assert first["mape"] == pytest.approx(1.0)
    assert second["mape"] == pytest.approx(0.1)
