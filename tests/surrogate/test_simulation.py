"""Event simulation of pipeline schedules against published numbers and conservation laws."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specs.choices import Schedule
from specs.errors import InputError
from surrogate.pipeline.orders import Kind, peak_in_flight, task_orders
from surrogate.pipeline.simulation import Timeline, simulate

CHUNKS = {schedule: 2 if schedule.is_v_shaped else 1 for schedule in Schedule}

# Replay of the schedule tables of the Primus pipeline (AMD-AGI/Primus fd1eeab,
# primus/core/pipeline_parallel) with t_f = t_b = t_w = 1: makespan, idle fraction, largest peak.
PRIMUS_REPLAY = {
    (4, 4): {
        "1f1b": (21, 0.4286, 4),
        "interleaved-2": (16.5, 0.2727, None),
        "interleaved-4": (14.25, 0.1579, None),
        "zb-h1": (15, 0.2000, 4),
        "zbv": (22.5, 0.4667, 4),
        "v-half": (14.5, 0.1724, 3),
        "v-min": (17.5, 0.3143, 2),
    },
    (4, 8): {
        "1f1b": (33, 0.2727, 4),
        "interleaved-2": (28.5, 0.1579, 5.5),
        "interleaved-4": (26.25, 0.0857, 4.75),
        "zb-h1": (27, 0.1111, 4),
        "zbv": (25.5, 0.0588, 4),
        "v-half": (26.5, 0.0943, 3),
        "v-min": (29.5, 0.1864, 2),
    },
    (4, 16): {
        "1f1b": (57, 0.1579, 4),
        "interleaved-2": (52.5, 0.0857, 5.5),
        "interleaved-4": (50.25, 0.0448, 4.75),
        "zb-h1": (51, 0.0588, 4),
        "zbv": (49.5, 0.0303, 4),
        "v-half": (50.5, 0.0495, 3),
        "v-min": (53.5, 0.1028, 2),
    },
    (8, 8): {
        "1f1b": (45, 0.4667, 8),
        "interleaved-2": (34.5, 0.3043, None),
        "interleaved-4": (29.25, 0.1795, None),
        "zb-h1": (31, 0.2258, 8),
        "zbv": (48.5, 0.5052, 8),
        "v-half": (32.5, 0.2615, 5),
        "v-min": (37, 0.3514, 4),
    },
    (8, 16): {
        "1f1b": (69, 0.3043, 8),
        "interleaved-2": (58.5, 0.1795, 11.5),
        "interleaved-4": (53.25, 0.0986, 9.75),
        "zb-h1": (55, 0.1273, 8),
        "zbv": (51.5, 0.0680, 8),
        "v-half": (56.5, 0.1504, 5),
        "v-min": (61, 0.2131, 4),
    },
    (8, 32): {
        "1f1b": (117, 0.1795, 8),
        "interleaved-2": (106.5, 0.0986, 11.5),
        "interleaved-4": (101.25, 0.0519, 9.75),
        "zb-h1": (103, 0.0680, 8),
        "zbv": (99.5, 0.0352, 8),
        "v-half": (104.5, 0.0813, 5),
        "v-min": (109, 0.1193, 4),
    },
}
REPLAY_ROWS = [
    (p, m, name, *expected)
    for (p, m), row in PRIMUS_REPLAY.items()
    for name, expected in row.items()
]


def parse(name: str) -> tuple[Schedule, int]:
    """Schedule and chunks of a name such as interleaved-4."""
    if name.startswith("interleaved"):
        return Schedule.INTERLEAVED, int(name[-1])
    schedule = Schedule.parse(name)
    return schedule, CHUNKS[schedule]


@pytest.mark.parametrize(("p", "m", "name", "makespan", "fraction", "peak"), REPLAY_ROWS)
def test_replay_of_primus_tables(
    p: int, m: int, name: str, makespan: float, fraction: float, peak: float | None
) -> None:
    schedule, v = parse(name)
    step = simulate(schedule, p, m, 1, 1, 1, num_chunks=v)
    assert step.makespan_s == makespan
    assert round(step.idle_fraction, 4) == fraction
    assert peak is None or step.peak_in_flight.max() == peak


@pytest.mark.parametrize(
    ("schedule", "makespan"),
    [("1f1b", 117.0), ("zb-h1", 105.8), ("zbv", 100.2), ("v-half", 112.8), ("v-min", 128.5)],
)
def test_replay_with_unequal_costs(schedule: str, makespan: float) -> None:
    code = Schedule.parse(schedule)
    step = simulate(code, 8, 32, 1, 1.2, 0.8, num_chunks=CHUNKS[code])
    assert step.makespan_s == pytest.approx(makespan, rel=1e-12)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 16), (8, 32)])
def test_heuristic_holds_everything_without_a_limit(p: int, m: int) -> None:
    free = simulate(Schedule.ZB_HEURISTIC, p, m, 1, 1, 1)
    assert free.makespan_s == simulate(Schedule.ZB_H1, p, m, 1, 1, 1).makespan_s
    assert free.peak_in_flight.max() == m
    limited = simulate(Schedule.ZB_HEURISTIC, p, m, 1, 1, 1, max_in_flight=p)
    assert limited.makespan_s == free.makespan_s
    assert limited.peak_in_flight.max() == p


@given(st.integers(1, 6), st.integers(1, 16), st.integers(1, 16))
@settings(max_examples=100, deadline=None)
def test_heuristic_keeps_its_limit(p: int, m: int, limit: int) -> None:
    orders = task_orders(Schedule.ZB_HEURISTIC, p, m, max_in_flight=limit)
    assert max(map(peak_in_flight, orders)) <= limit


@pytest.mark.parametrize(
    ("schedule", "peaks"),
    [
        (Schedule.V_HALF, {2: 2, 4: 3, 6: 4, 8: 5, 12: 7, 16: 9}),
        (Schedule.V_MIN, {2: 2, 4: 2, 6: 3, 8: 4, 12: 5, 16: 6}),
        (Schedule.ZBV, {2: 2, 4: 4, 6: 6, 8: 8, 12: 12, 16: 16}),
    ],
)
def test_peaks_of_v_shaped_schedules(schedule: Schedule, peaks: dict[int, float]) -> None:
    for p, peak in peaks.items():
        orders = task_orders(schedule, p, 3 * p, 2)
        assert max(map(peak_in_flight, orders)) / 2 == peak


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 32)])
def test_zb_h2_repeats_without_idle_time(p: int, m: int) -> None:
    """arXiv 2401.10241: no idle time at equal costs, 2p-1 microbatches, staggered steps."""
    step = simulate(Schedule.ZB_H2, p, m, 1, 1, 1)
    assert step.step_s == 3 * m
    assert step.idle_fraction == 0
    assert step.makespan_s == 3 * m + p - 1
    assert step.peak_in_flight.max() == 2 * p - 1


SIZES = st.tuples(
    st.sampled_from(list(Schedule)), st.integers(1, 6), st.integers(1, 20), st.integers(1, 4)
)
TIMES = st.floats(0.1, 3.0)


def run(size: tuple[Schedule, int, int, int], *times: float, p2p_s: float = 0.0) -> Timeline:
    schedule, p, m, v = size
    chunks = v if schedule is Schedule.INTERLEAVED else CHUNKS[schedule]
    if schedule is Schedule.INTERLEAVED and chunks > 1:
        assume(m % p == 0)
    return simulate(schedule, p, m, *times, num_chunks=chunks, p2p_s=p2p_s)


@given(SIZES, TIMES, TIMES, TIMES)
@settings(max_examples=150, deadline=None)
def test_work_is_conserved(
    size: tuple[Schedule, int, int, int], t_f: float, t_b: float, t_w: float
) -> None:
    schedule, p, m, _ = size
    step = run(size, t_f, t_b, t_w)
    work = m * (t_f + t_b + t_w)
    passes = p * (t_f + t_b) + (t_w if schedule.splits_weight_gradient else p * t_w)
    chunks = 1 + max(task.chunk for task in step.timetable)
    assert step.makespan_s >= work * (1 - 1e-12)
    assert step.makespan_s >= (passes - (1 - 1 / chunks) * t_w) * (1 - 1e-12)
    assert 0 <= step.idle_fraction + 1e-12 < 1
    busy = np.zeros(p)
    for task in step.timetable:
        busy[task.rank] += (task.end_s - task.start_s) * (task.microbatch < m)
    np.testing.assert_allclose(busy, work, rtol=1e-9)


@given(SIZES, TIMES, TIMES, TIMES, st.floats(0, 1))
@settings(max_examples=100, deadline=None)
def test_timetable_respects_ranks_and_microbatches(
    size: tuple[Schedule, int, int, int], t_f: float, t_b: float, t_w: float, p2p: float
) -> None:
    step = run(size, t_f, t_b, t_w, p2p_s=p2p)
    for before, after in itertools.pairwise(step.timetable):
        assert after.rank != before.rank or after.start_s >= before.end_s
    tasks = [(t.rank, t.microbatch, t.chunk, min(t.kind, Kind.BACKWARD)) for t in step.timetable]
    assert len(set(tasks)) == len(tasks)
    forward_end = {
        (t.rank, t.microbatch, t.chunk): t.end_s for t in step.timetable if t.kind is Kind.FORWARD
    }
    for task in step.timetable:
        if task.kind is not Kind.FORWARD:
            assert task.start_s >= forward_end[task.rank, task.microbatch, task.chunk]


@given(SIZES, TIMES, TIMES, TIMES)
@settings(max_examples=100, deadline=None)
def test_transfers_never_shorten_a_step(
    size: tuple[Schedule, int, int, int], t_f: float, t_b: float, t_w: float
) -> None:
    free = run(size, t_f, t_b, t_w)
    slow = run(size, t_f, t_b, t_w, p2p_s=0.3)
    assert slow.makespan_s >= free.makespan_s
    assert size[1] > 1 or slow.makespan_s == free.makespan_s


@pytest.mark.parametrize("schedule", list(Schedule))
def test_more_microbatches_never_shorten_a_step(schedule: Schedule) -> None:
    p, v = 4, CHUNKS[schedule]
    spans = [simulate(schedule, p, m, 1, 1.3, 0.7, num_chunks=v).makespan_s for m in range(1, 25)]
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(spans))


def test_times_per_rank_and_chunk() -> None:
    """The slowest rank sets the pace; a chunk takes its own time."""
    slow_last = simulate(Schedule.ONE_F_ONE_B, 4, 8, [1, 1, 1, 2], [1, 1, 1, 2], 0)
    assert slow_last.makespan_s == 6 + 8 * 4
    even = simulate(Schedule.ZBV, 2, 8, 1, 1, 1, num_chunks=2)
    halves = np.full((2, 2), 0.5)
    assert simulate(Schedule.ZBV, 2, 8, halves, halves, halves, num_chunks=2).makespan_s == (
        even.makespan_s
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_chunks": 2}, "vpp 1"),
        ({"num_microbatches": 0}, "at least one"),
        ({"forward_s": [1.0, 2.0, 3.0]}, "shape"),
        ({"forward_s": -1.0}, "less than 0"),
        ({"p2p_s": -1.0}, "p2p_s"),
        ({"max_in_flight": -1}, "0 or more"),
        ({"schedule": Schedule.ZBV}, "vpp 2"),
        ({"schedule": Schedule.INTERLEAVED, "num_chunks": 2, "microbatch_group": 2}, "group"),
        ({"schedule": Schedule.INTERLEAVED, "num_chunks": 2, "num_microbatches": 9}, "group"),
    ],
)
def test_input_errors(changes: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {
        "schedule": Schedule.ZB_H1,
        "num_ranks": 4,
        "num_microbatches": 8,
        "forward_s": 1.0,
        "input_gradient_s": 1.0,
        "weight_gradient_s": 1.0,
    }
    with pytest.raises(InputError, match=words):
        simulate(**(arguments | changes))  # type: ignore[arg-type]
