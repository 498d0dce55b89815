"""Warm-up, shifts and outliers are set apart, whatever the level and the noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.logs.steady_state import steady_state


@given(
    level=st.floats(1e-3, 1e4),
    warm_up=st.integers(0, 4),
    count=st.integers(12, 300),
    noise=st.floats(0, 0.004),
    seed=st.integers(0, 2**32 - 1),
)
def test_finds_level_behind_warm_up_and_outliers(level, warm_up, count, noise, seed):
    random = np.random.default_rng(seed)
    values = level * np.exp(noise * random.standard_normal(count))
    values[:warm_up] *= 1.5 + random.random(warm_up)
    slow = random.choice(np.arange(warm_up, count), size=max(count // 20, 1), replace=False)
    values[slow] *= 1.4
    state = steady_state(values)
    assert state.level == pytest.approx(level, rel=0.01)
    assert not state.keep[:warm_up].any()
    assert not state.keep[slow].any()
    assert state.keep.sum() >= 0.8 * (count - warm_up)


def test_longest_level_counts_and_others_are_reported():
    values = np.concatenate([np.full(10, 1.0), np.full(30, 1.3), np.full(8, 1.1)])
    state = steady_state(values)
    assert (state.start, state.stop, state.level) == (10, 40, 1.3)
    assert state.segments == ((0, 10), (10, 40), (40, 48))


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40))
def test_any_series_has_a_level_within_its_range(values):
    state = steady_state(np.array(values))
    assert min(values) <= state.level <= max(values)
    assert state.keep.any()
    assert state.spread >= 0


def test_long_series_stay_fast_and_right():
    values = np.tile([1.0, 1.001, 0.999], 100_000)
    values[:500] = 2.0
    state = steady_state(values)
    assert state.level == pytest.approx(1.0, rel=1e-3)
    assert state.start >= 500
