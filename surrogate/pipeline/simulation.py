"""Exact event simulation of a pipeline step: when every task of every rank starts and ends.

A task starts as soon as its rank has finished the task before it in the rank's order and its input
has arrived. The closed forms and tables of ``schedules`` are tested against this simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specs.choices import Schedule
from specs.errors import InputError
from surrogate.pipeline.orders import Kind, Order, Task, peak_in_flight, task_orders, virtual_stage


class TimedTask(NamedTuple):
    """A task with its place and time; ``start_s`` and ``end_s`` count from the first task."""

    rank: int
    kind: Kind
    microbatch: int
    chunk: int
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Timeline:
    """One pipeline step.

    Attributes:
        makespan_s: from the first start to the last end.
        step_s: time between two steps that follow each other. It is the makespan, except under
            ZB-H2, whose ranks start the next step before the others have ended this one
            (optimizer post-validation, arXiv 2401.10241, section 4): there the longest span of a
            rank.
        idle_fraction: mean over ranks of the part of ``step_s`` without work.
        peak_in_flight: (p,) most microbatches held on each rank, in full-rank microbatches: a chunk
            counts 1/v, from its forward to its weight gradient.
        timetable: all tasks, rank by rank in order of time. Under ZBV with fewer than 2p-1
            microbatches, tasks of microbatch m and above are slots that Primus walks for nothing.
    """

    makespan_s: float
    step_s: float
    idle_fraction: float
    peak_in_flight: NDArray[np.float64]
    timetable: list[TimedTask]


class Event(NamedTuple):
    """A task with its rank and the tasks it waits for, as indices into a list of events."""

    rank: int
    task: Task
    before: int
    """The task before it on its rank; -1 if it is the first."""
    source: int
    """The task whose result it needs; -1 for the first forward of a microbatch."""


def events_in_causal_order(schedule: Schedule, orders: Sequence[Order]) -> list[Event]:
    """All tasks such that each comes after the tasks it waits for.

    Raises:
        ValueError: the orders wait for one another in a circle.
    """
    p = len(orders)
    last_stage = p * (1 + max(task.chunk for task in orders[0])) - 1
    events: list[Event] = []
    index_of: dict[tuple[int, int, int], int] = {}
    position, latest = [0] * p, [-1] * p
    total = sum(map(len, orders))
    while len(events) < total:
        known = len(events)
        for rank, order in enumerate(orders):
            while position[rank] < len(order):
                task = order[position[rank]]
                stage = virtual_stage(schedule, rank, task.chunk, p)
                needed = _source(task, stage, last_stage)
                if needed is not None and needed not in index_of:
                    break
                source = -1 if needed is None else index_of[needed]
                index_of[_phase(task.kind), stage, task.microbatch] = len(events)
                events.append(Event(rank, task, latest[rank], source))
                latest[rank] = len(events) - 1
                position[rank] += 1
        if len(events) == known:
            raise ValueError(f"the orders of {schedule.label} wait for one another in a circle")
    return events


def simulate(
    schedule: Schedule,
    num_ranks: int,
    num_microbatches: int,
    forward_s: ArrayLike,
    input_gradient_s: ArrayLike,
    weight_gradient_s: ArrayLike,
    *,
    num_chunks: int = 1,
    p2p_s: float = 0.0,
    microbatch_group: int = 0,
    extra_warmup: int = 0,
    max_in_flight: int = 0,
) -> Timeline:
    """Run one step.

    Args:
        schedule: the pipeline schedule.
        num_ranks: p, pipeline ranks.
        num_microbatches: m, microbatches of a step.
        forward_s: seconds of one microbatch: a scalar or (p,) for all chunks of a rank, split
            evenly over its chunks, or (p, v) for each chunk.
        input_gradient_s: as ``forward_s``, gradient of the input.
        weight_gradient_s: as ``forward_s``, gradient of the weights.
        num_chunks: v, model chunks on a rank.
        p2p_s: seconds from the end of a task until its result is on another rank; it delays the
            receiver and occupies nobody.
        microbatch_group: N of interleaved; 0 is p.
        extra_warmup: see ``orders.task_orders``.
        max_in_flight: see ``orders.task_orders``.

    Raises:
        InputError: sizes that the schedule does not run, negative times or times of another shape.
    """
    p, m, v = num_ranks, num_microbatches, num_chunks
    orders = task_orders(schedule, p, m, v, microbatch_group, extra_warmup, max_in_flight)
    forward = _per_chunk(forward_s, p, v)
    input_gradient = _per_chunk(input_gradient_s, p, v)
    weight_gradient = _per_chunk(weight_gradient_s, p, v)
    if not p2p_s >= 0:
        raise InputError(f"p2p_s is {p2p_s}; a transfer takes 0 or more seconds.")
    duration = np.stack(
        [forward, input_gradient, weight_gradient, input_gradient + weight_gradient]
    )
    timed = _run(events_in_causal_order(schedule, orders), duration, p2p_s)
    tracks = [[task for task in timed if task.rank == rank] for rank in range(p)]

    makespan = max(task.end_s for task in timed)
    longest_span = max(track[-1].end_s - track[0].start_s for track in tracks)
    step = longest_span if schedule is Schedule.ZB_H2 else makespan
    busy = m * float(duration[: Kind.BACKWARD].sum())
    return Timeline(
        makespan_s=makespan,
        step_s=step,
        idle_fraction=1 - busy / (p * step) if step > 0 else 0.0,
        peak_in_flight=np.array([peak_in_flight(order) / v for order in orders]),
        timetable=[task for track in tracks for task in track],
    )


def _run(events: Sequence[Event], duration: NDArray[np.float64], p2p_s: float) -> list[TimedTask]:
    """Start and end of every event; ``duration`` has shape (kind, p, v)."""
    seconds = duration.tolist()
    timed: list[TimedTask] = []
    for rank, (kind, microbatch, chunk), before, source in events:
        start = 0.0 if before < 0 else timed[before].end_s
        if source >= 0:
            arrival = timed[source].end_s
            if timed[source].rank != rank:
                arrival += p2p_s
            start = max(start, arrival)
        end = start + seconds[kind][rank][chunk]
        timed.append(TimedTask(rank, kind, microbatch, chunk, start, end))
    return timed


def _phase(kind: Kind) -> int:
    """Key under which the result of a task is found: BACKWARD yields the input gradient."""
    return Kind.INPUT_GRADIENT if kind is Kind.BACKWARD else kind


def _source(task: Task, stage: int, last_stage: int) -> tuple[int, int, int] | None:
    """(phase, stage, microbatch) whose result a task needs."""
    kind, k, _ = task
    if kind is Kind.WEIGHT_GRADIENT:
        return Kind.INPUT_GRADIENT, stage, k
    if kind is Kind.FORWARD:
        return (Kind.FORWARD, stage - 1, k) if stage > 0 else None
    if stage < last_stage:
        return Kind.INPUT_GRADIENT, stage + 1, k
    return Kind.FORWARD, stage, k


def _per_chunk(seconds: ArrayLike, p: int, v: int) -> NDArray[np.float64]:
    """Seconds of one microbatch in each chunk, shape (p, v)."""
    values = np.asarray(seconds, dtype=np.float64)
    if values.shape not in ((), (p,), (p, v)):
        raise InputError(f"times have shape {values.shape}; use a scalar, ({p},) or ({p}, {v}).")
    if not (values >= 0).all():
        raise InputError("a task of the pipeline takes less than 0 seconds; correct the times.")
    if values.ndim == 2:
        return values
    return np.broadcast_to(values.reshape(-1, 1) / v, (p, v))
