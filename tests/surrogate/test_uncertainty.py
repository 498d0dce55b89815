"""Conformal widths cover what they promise; joint draws and shrinkage behave as probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import InputError
from surrogate.uncertainty import (
    GAUSSIAN_90,
    TRUST,
    Intervals,
    best_probability,
    conformal_width,
    correlated_draws,
    shrunk_winner,
    trust_grades,
)


def test_conformal_width_covers_folds_never_seen() -> None:
    generator = np.random.default_rng(0)
    covered = []
    for _ in range(200):
        offsets = generator.normal(0, 0.1, 60)
        folds = np.repeat(np.arange(60), 3)
        spread = generator.uniform(0.5, 2.0, folds.size)
        errors = spread * (offsets[folds] + generator.normal(0, 0.05, folds.size))
        known = folds < 40
        width = conformal_width(errors[known], spread[known])
        covered.append((np.abs(errors[~known]) <= width * spread[~known]).mean())
    assert 0.88 <= np.mean(covered) <= 0.94


def test_widths_by_family_and_knowledge() -> None:
    intervals = Intervals(
        {"dense": {"zero_shot": 1.0, "calibrated": 0.5}, "moe": {"zero_shot": 3.0, "calibrated": 2}}
    )
    moe, calibrated = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    assert intervals.half_width(np.full(4, 0.1), moe, calibrated) == pytest.approx(
        [0.1, 0.05, 0.3, 0.2]
    )
    assert Intervals.from_json(intervals.as_json()) == Intervals(
        {f: dict(w) for f, w in intervals.as_json().items()}
    )


@pytest.mark.parametrize("content", [None, {}, {"dense": {}}, {"dense": 1, "moe": 2}])
def test_unusable_widths_are_bad_input(content: object) -> None:
    with pytest.raises(InputError):
        Intervals.from_json(content)
    assert Intervals.gaussian().widths["moe"]["zero_shot"] == GAUSSIAN_90


def test_trust_grades_from_weak_to_strong() -> None:
    explained = np.array([0.1, 0.9, 0.1, 0.1])
    calibrated, measured = np.array([0, 0, 1, 1], bool), np.array([0, 0, 0, 1], bool)
    assert list(trust_grades(explained, 10, calibrated, measured)) == list(TRUST[1:])
    nothing = np.zeros(4, dtype=bool)
    assert set(trust_grades(explained, 0, nothing, nothing)) == {"physics only"}


def test_draws_have_the_covariance_that_was_asked_for() -> None:
    root = np.array([[1.0, 0.0], [0.9, 0.1]])
    covariance = root @ root.T
    drawn = correlated_draws(covariance, 20_000, np.random.default_rng(1))
    assert np.cov(drawn.T) == pytest.approx(covariance, abs=0.05)
    singular = correlated_draws(np.ones((2, 2)), 100, np.random.default_rng(1))
    assert singular[:, 0] == pytest.approx(singular[:, 1])


@given(st.integers(1, 6), st.integers(0, 1000))
def test_probabilities_of_the_best_sum_to_the_share_that_fits(count: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    log_speed = generator.normal(size=(64, count))
    fits = generator.random((64, count)) < 0.5
    wins = best_probability(log_speed, fits)
    assert wins.sum() == pytest.approx(fits.any(axis=1).mean())
    assert ((wins >= 0) & (wins <= 1)).all()


def test_a_winner_by_luck_is_shrunk_and_a_winner_by_merit_is_not() -> None:
    generator = np.random.default_rng(2)
    centre = np.array([1.0, 0.99, 0.98, 0.97])
    sure = centre + generator.normal(0, 1e-4, (2000, 4))
    assert shrunk_winner(sure, 0) == pytest.approx(1.0, abs=1e-3)
    vague = centre + generator.normal(0, 0.3, (2000, 4))
    value = shrunk_winner(vague, 0)
    assert value < vague.mean(axis=0)[0]
    assert value > vague.mean()
    shared = centre + generator.normal(0, 0.3, (2000, 1)) + generator.normal(0, 1e-4, (2000, 4))
    assert shrunk_winner(shared, 0) == pytest.approx(shared.mean(axis=0)[0], abs=1e-3)
