"""Closed forms and tables of idle time and activations in flight against the simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specs.choices import Schedule
from surrogate.pipeline.critical_paths import CriticalPaths
from surrogate.pipeline.schedule_tables import (
    EXACT_TIMES,
    TABULATED,
    TOLERANCE,
    idle_forms,
    read_table,
)
from surrogate.pipeline.schedules import bubble_fraction, in_flight, pipeline_idle_s
from surrogate.pipeline.simulation import simulate

CHUNKS = {schedule: 2 if schedule.is_v_shaped else 1 for schedule in Schedule}
TIMES = st.floats(0.0, 4.0)


def cone_times(rows: int) -> np.ndarray:
    """Times (rows, 3) inside schedule_tables.TIMES_CONE, the same in every call."""
    drawn = np.random.default_rng(0)
    backward = np.exp(drawn.uniform(np.log(0.5), np.log(4), rows))
    weight = np.exp(drawn.uniform(np.log(0.1), np.log(2), rows))
    return np.stack([np.ones(rows), backward, weight], axis=1)


def relative_error(schedule: Schedule, p: int, m: int, times: np.ndarray) -> np.ndarray:
    """Error of the idle time as a fraction of the step, (rows,)."""
    v = CHUNKS[schedule]
    work = m * times.sum(axis=1)
    exact = CriticalPaths(schedule, p, m, v).makespan(times / v)
    return (work + pipeline_idle_s(schedule, p, m, v, *times.T)) / exact - 1


@given(
    st.sampled_from(
        [Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZBV]
    ),
    st.integers(1, 9),
    st.integers(1, 40),
    TIMES,
    TIMES,
    TIMES,
)
@settings(max_examples=150, deadline=None)
def test_closed_forms_are_exact(
    schedule: Schedule, p: int, m: int, t_f: float, t_b: float, t_w: float
) -> None:
    assume(t_f + t_b + t_w > 0.01)
    v = CHUNKS[schedule]
    step = simulate(schedule, p, m, t_f, t_b, t_w, num_chunks=v)
    idle = float(pipeline_idle_s(schedule, p, m, v, t_f, t_b, t_w))
    assert m * (t_f + t_b + t_w) + idle == pytest.approx(step.step_s, rel=1e-9)
    fraction = float(bubble_fraction(schedule, p, m, v, t_f, t_b, t_w))
    assert fraction == pytest.approx(step.idle_fraction, abs=1e-9)


@given(st.data(), st.integers(2, 6), st.integers(2, 4), TIMES, TIMES, TIMES)
@settings(max_examples=150, deadline=None)
def test_interleaved_is_exact_for_any_group(
    data: st.DataObject, p: int, v: int, t_f: float, t_b: float, t_w: float
) -> None:
    m = data.draw(st.integers(p, 5 * p))
    group = data.draw(st.integers(p, m))
    assume(m % group == 0 or m % group >= p)
    step = simulate(Schedule.INTERLEAVED, p, m, t_f, t_b, t_w, num_chunks=v, microbatch_group=group)
    idle = float(pipeline_idle_s(Schedule.INTERLEAVED, p, m, v, t_f, t_b, t_w))
    assert m * (t_f + t_b + t_w) + idle == pytest.approx(step.step_s, rel=1e-9, abs=1e-12)


@given(st.integers(1, 9), st.integers(1, 40), TIMES, TIMES, TIMES)
@settings(max_examples=100, deadline=None)
def test_zb_heuristic(p: int, m: int, t_f: float, t_b: float, t_w: float) -> None:
    assume(t_f + t_b + t_w > 0.01)
    step = simulate(Schedule.ZB_HEURISTIC, p, m, t_f, t_b, t_w)
    ours = m * (t_f + t_b + t_w) + float(
        pipeline_idle_s(Schedule.ZB_HEURISTIC, p, m, 1, t_f, t_b, t_w)
    )
    assert ours == pytest.approx(step.step_s, rel=0.025 if m == 3 * (p - 1) else 1e-9)


@pytest.mark.parametrize("schedule", TABULATED)
@pytest.mark.parametrize("p", [2, 3, 4, 6, 8, 13, 16])
def test_table_follows_the_simulation(schedule: Schedule, p: int) -> None:
    times = cone_times(100)
    for m in {1, p // 2 + 1, p - 1, p, p + 1, 2 * p}:
        assert np.abs(relative_error(schedule, p, m, times)).max() <= TOLERANCE
    for m in {2 * p + 1, 5 * p // 2, 3 * p, 5 * p, 7 * p + 1, 20 * p}:
        assert np.abs(relative_error(schedule, p, m, times)).max() < 0.01


@pytest.mark.parametrize("schedule", TABULATED)
def test_table_is_exact_at_common_times(schedule: Schedule) -> None:
    for p, m in [(4, 3), (4, 4), (4, 8), (4, 16), (8, 5), (8, 32), (16, 64), (32, 40)]:
        assert np.abs(relative_error(schedule, p, m, EXACT_TIMES)).max() < 1e-12


@pytest.mark.parametrize("schedule", TABULATED)
@pytest.mark.parametrize(("p", "m"), [(40, 40), (40, 80), (63, 63)])
def test_pipelines_longer_than_the_table_are_scaled(schedule: Schedule, p: int, m: int) -> None:
    assert np.abs(relative_error(schedule, p, m, cone_times(20))).max() < 0.04
    assert np.abs(relative_error(schedule, p, m, EXACT_TIMES)).max() < 0.02


def test_shipped_table_is_what_the_generator_builds() -> None:
    for schedule in TABULATED:
        table = read_table(schedule)
        for p, m in [(1, 1), (2, 3), (5, 10), (8, 6), (12, 24)]:
            row = table.first_row[p] + m - 1
            shipped = {tuple(form) for form in table.forms[:, :, row]}
            assert shipped == {tuple(form / 2) for form in idle_forms(schedule, p, m)}


@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 12])
def test_in_flight_equals_the_simulated_peak(schedule: Schedule, p: int) -> None:
    ranks = np.arange(p)[None, :]
    for m in {1, 2, p, p + 1, 2 * p, 3 * p}:
        step = simulate(schedule, p, m, 1, 1, 1, num_chunks=CHUNKS[schedule])
        held = in_flight([schedule], [p], [m], [CHUNKS[schedule]], ranks)
        np.testing.assert_array_equal(held[0], step.peak_in_flight)


@given(st.data(), st.integers(2, 8), st.integers(2, 4), st.integers(0, 1))
@settings(max_examples=100, deadline=None)
def test_interleaved_in_flight(data: st.DataObject, p: int, v: int, extra: int) -> None:
    m = data.draw(st.integers(p, 4 * p))
    group = data.draw(st.integers(p, m))
    assume(m % group == 0 or m % group >= p)
    step = simulate(
        Schedule.INTERLEAVED,
        p,
        m,
        1,
        1,
        1,
        num_chunks=v,
        microbatch_group=group,
        extra_warmup=extra,
    )
    held = in_flight(Schedule.INTERLEAVED, p, m, v, np.arange(p), group, extra)
    np.testing.assert_allclose(held, step.peak_in_flight)


def test_published_in_flight_of_interleaving() -> None:
    """arXiv 2205.05198: rank 0 holds p(1 + (p-1)/(pv)) microbatches."""
    for p, v in [(4, 2), (4, 4), (8, 2), (8, 4), (16, 3)]:
        held = float(in_flight(Schedule.INTERLEAVED, p, 4 * p, v, 0))
        assert held == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_microbatches_equal_to_ranks_with_interleaving() -> None:
    for p, v in [(2, 2), (4, 2), (4, 4), (8, 4)]:
        step = simulate(Schedule.INTERLEAVED, p, p, 1, 1, 1, num_chunks=v)
        idle = float(pipeline_idle_s(Schedule.INTERLEAVED, p, p, v, 1, 1, 1))
        assert idle == 3 * (p - 1) / v == step.makespan_s - 3 * p
        assert np.isfinite(in_flight(Schedule.INTERLEAVED, p, p, v, np.arange(p))).all()


def test_stock_schedule_is_never_a_zero_bubble_schedule() -> None:
    for p, m in [(4, 8), (8, 16), (16, 32)]:
        stock = float(pipeline_idle_s(Schedule.ONE_F_ONE_B, p, m, 1, 1, 1, 1))
        assert stock == 3 * (p - 1)
        for schedule in (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_HEURISTIC, Schedule.ZBV):
            assert stock > float(pipeline_idle_s(schedule, p, m, CHUNKS[schedule], 1, 1, 1))


def test_v_min_may_be_slower_than_1f1b() -> None:
    idle = pipeline_idle_s([Schedule.ONE_F_ONE_B, Schedule.V_MIN], 8, 32, [1, 2], 1, 1.2, 0.8)
    np.testing.assert_allclose(96 + idle, [117.0, 128.5], rtol=1e-12)


def test_no_pipeline_no_idle_time() -> None:
    codes = np.array([int(schedule) for schedule in Schedule])
    chunks = np.array([CHUNKS[schedule] for schedule in Schedule])
    idle = pipeline_idle_s(codes[:, None], 1, np.arange(1, 20)[None, :], chunks[:, None], 1, 2, 0.5)
    assert not idle.any()


def test_mixed_columns_equal_single_rows() -> None:
    n = 400
    drawn = np.random.default_rng(0)
    codes = drawn.integers(0, len(Schedule), n)
    p, m = drawn.integers(1, 50, n), drawn.integers(1, 300, n)
    v = np.array([CHUNKS[Schedule(code)] for code in codes])
    times = drawn.uniform(0.5, 2, (3, n))
    together = pipeline_idle_s(codes, p, m, v, *times)
    apart = [float(pipeline_idle_s(*row)) for row in zip(codes, p, m, v, *times, strict=True)]
    np.testing.assert_array_equal(together, apart)
    rank = np.stack([np.zeros(n, dtype=int), p - 1], axis=1)
    held = in_flight(codes, p, m, v, rank)
    assert held.shape == (n, 2)
    for column in (0, 1):
        np.testing.assert_array_equal(held[:, column], in_flight(codes, p, m, v, rank[:, column]))


@given(
    st.sampled_from(list(Schedule)), st.integers(1, 40), st.integers(1, 200), TIMES, TIMES, TIMES
)
@settings(max_examples=100, deadline=None)
def test_idle_time_is_finite_and_not_negative(
    schedule: Schedule, p: int, m: int, t_f: float, t_b: float, t_w: float
) -> None:
    idle = float(pipeline_idle_s(schedule, p, m, CHUNKS[schedule], t_f, t_b, t_w))
    assert np.isfinite(idle)
    assert idle >= 0
