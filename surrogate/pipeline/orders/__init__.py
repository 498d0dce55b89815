"""In which order each rank runs its tasks under every pipeline schedule.

An order depends on the number of ranks, microbatches and chunks, never on how long a task takes:
that is how Megatron-LM, the Primus pipeline and Sea AI zero bubble run them. What an order costs is
the subject of ``surrogate.pipeline.simulation``.
"""

from __future__ import annotations

from collections.abc import Callable

from specs.choices import Schedule
from specs.errors import InputError
from surrogate.pipeline.orders.controlled_memory import v_half, v_min
from surrogate.pipeline.orders.plain import gpipe, interleaved, zb_h1, zb_h2, zbv
from surrogate.pipeline.orders.tasks import Kind, Order, Task, peak_in_flight, virtual_stage
from surrogate.pipeline.orders.zb_heuristic import zb_heuristic

__all__ = ["Kind", "Order", "Task", "peak_in_flight", "task_orders", "virtual_stage"]

_ORDERS: dict[Schedule, Callable[[int, int], list[Order]]] = {
    Schedule.GPIPE: gpipe,
    Schedule.ZB_H1: zb_h1,
    Schedule.ZB_H2: zb_h2,
    Schedule.ZBV: zbv,
    Schedule.V_HALF: v_half,
    Schedule.V_MIN: v_min,
}


def task_orders(
    schedule: Schedule,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int = 1,
    microbatch_group: int = 0,
    extra_warmup: int = 0,
    max_in_flight: int = 0,
) -> list[Order]:
    """The order of tasks on every rank.

    Args:
        schedule: the pipeline schedule.
        num_ranks: p, pipeline ranks.
        num_microbatches: m, microbatches of a step.
        num_chunks: v, model chunks on a rank: 2 for the V-shaped schedules, any number for 1F1B and
            interleaved, which Megatron-LM tells apart by v alone, 1 for the others.
        microbatch_group: N of interleaved; 0 is Megatron's default, p.
        extra_warmup: forwards that interleaved adds to its warm-up (1 with Megatron's
            ``--overlap-moe-expert-parallel-comm``).
        max_in_flight: microbatches that zb-heuristic may hold (Primus ``pp_max_mem``); 0 is no
            limit.

    Raises:
        InputError: sizes that the schedule does not run.
    """
    p, m, v = num_ranks, num_microbatches, num_chunks
    if min(p, m, v) < 1:
        raise InputError(
            f"a pipeline has at least one rank, microbatch and chunk, got {p}, {m} and {v}."
        )
    if min(microbatch_group, extra_warmup, max_in_flight) < 0:
        raise InputError(
            "microbatch_group, extra_warmup and max_in_flight are 0 or more, got "
            f"{microbatch_group}, {extra_warmup} and {max_in_flight}."
        )
    if schedule in (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED):
        return interleaved(p, m, v, microbatch_group or p, extra_warmup)
    needed = 2 if schedule.is_v_shaped else 1
    if v != needed:
        raise InputError(f"schedule {schedule.label} runs vpp {needed}, got {v}; change vpp.")
    if schedule is Schedule.ZB_HEURISTIC:
        return zb_heuristic(p, m, max_in_flight)
    return _ORDERS[schedule](p, m)
