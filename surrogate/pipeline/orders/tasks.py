"""What a pipeline rank runs: tasks of one microbatch through one model chunk."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from specs.choices import Schedule


class Kind(IntEnum):
    """What a task computes; BACKWARD is input and weight gradient in one piece."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    WEIGHT_GRADIENT = 2
    BACKWARD = 3


class Task(NamedTuple):
    """One microbatch through one chunk of a rank, in one direction."""

    kind: Kind
    microbatch: int
    chunk: int


Order = list[Task]


def virtual_stage(schedule: Schedule, rank: int, chunk: int, num_ranks: int) -> int:
    """Position of a chunk on the path of a microbatch, counted from the embedding.

    Chunk c of rank r is stage c*p + r. Under the V-shaped schedules chunk 0 is stage r and chunk 1
    stage 2p-1-r, so that rank 0 holds both the embedding and the head.
    """
    if schedule.is_v_shaped:
        return rank if chunk == 0 else 2 * num_ranks - 1 - rank
    return chunk * num_ranks + rank


def peak_in_flight(order: Sequence[Task]) -> int:
    """Most chunk activations held at once: from the forward to the weight gradient."""
    held = peak = 0
    for task in order:
        if task.kind is Kind.FORWARD:
            held += 1
            peak = max(peak, held)
        elif task.kind is not Kind.INPUT_GRADIENT:
            held -= 1
    return peak
