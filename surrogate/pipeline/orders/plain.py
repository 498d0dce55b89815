"""Orders of the schedules that a few loops describe: GPipe, 1F1B, interleaved, ZB-H1, H2, ZBV."""

from __future__ import annotations

from collections.abc import Sequence

from specs.errors import InputError
from surrogate.pipeline.orders.tasks import Kind, Order, Task


def gpipe(p: int, m: int) -> list[Order]:
    """All forwards, then all backwards (arXiv 1811.06965)."""
    return [_column(Kind.FORWARD, m) + _column(Kind.BACKWARD, m) for _ in range(p)]


def one_f_one_b(p: int, m: int) -> list[Order]:
    """Megatron-LM ``forward_backward_pipelining_without_interleaving`` (arXiv 2104.04473)."""
    forwards, backwards = _column(Kind.FORWARD, m), _column(Kind.BACKWARD, m)
    return [_alternate(forwards, backwards, p - 1 - rank) for rank in range(p)]


def interleaved(p: int, m: int, v: int, group: int, extra_warmup: int = 0) -> list[Order]:
    """Megatron-LM ``forward_backward_pipelining_with_interleaving`` (arXiv 2104.04473).

    Microbatches pass in groups: all of a group through chunk 0, then through chunk 1 and so on; the
    last group is what is left over. Rank r warms up with 2(p-r-1) + (v-1)*group forwards.

    Raises:
        InputError: a group outside [p, m], or one that leaves 1 to p-1 microbatches over.
    """
    if v == 1:
        return one_f_one_b(p, m)
    if not (p <= group <= m and (m % group == 0 or m % group >= p)):
        raise InputError(
            f"interleaved with pp {p} needs a microbatch group in [{p}, {m}] that leaves 0 or at "
            f"least {p} of {m} microbatches over, got {group}; change microbatch_group or mbs."
        )
    forwards, backwards = [], []
    for first in range(0, m, group):
        for chunk in range(v):
            for k in range(first, min(first + group, m)):
                forwards.append(Task(Kind.FORWARD, k, chunk))
                backwards.append(Task(Kind.BACKWARD, k, v - 1 - chunk))
    warmups = [2 * (p - 1 - rank) + (v - 1) * group + extra_warmup for rank in range(p)]
    return [_alternate(forwards, backwards, warmup) for warmup in warmups]


def zb_h1(p: int, m: int) -> list[Order]:
    """ZB-H1 (arXiv 2401.10241): every rank holds p microbatches, as rank 0 of 1F1B does."""
    return [_delayed_weight_gradients(m, p - 1 - rank, rank) for rank in range(p)]


def zb_h2(p: int, m: int) -> list[Order]:
    """ZB-H2 (arXiv 2401.10241): every rank holds 2p-1 microbatches and never waits in between."""
    return [_delayed_weight_gradients(m, 2 * (p - 1 - rank), 2 * rank) for rank in range(p)]


def zbv(p: int, m: int) -> list[Order]:
    """ZBV in the fixed form of Primus ``zbv-formatted`` (arXiv 2401.10241, section 6).

    Below 2p-1 microbatches Primus still walks the timetable of 2p-1: the surplus is lost time.
    """
    return [_zbv_rank(p, max(m, 2 * p - 1), rank) for rank in range(p)]


def _column(kind: Kind, m: int) -> Order:
    """One task a microbatch."""
    return [Task(kind, k, 0) for k in range(m)]


def _alternate(forwards: Sequence[Task], backwards: Sequence[Task], warmup: int) -> Order:
    """``warmup`` forwards, then one forward one backward, then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    steady = len(forwards) - warmup
    order = list(forwards[:warmup])
    for forward, backward in zip(forwards[warmup:], backwards[:steady], strict=True):
        order += [forward, backward]
    return order + list(backwards[steady:])


def _delayed_weight_gradients(m: int, warmup: int, lag: int) -> Order:
    """One forward one backward whose weight gradient runs ``lag`` microbatches later."""
    order: Order = []
    for task in _alternate(_column(Kind.FORWARD, m), _column(Kind.INPUT_GRADIENT, m), warmup):
        order.append(task)
        if task.kind is Kind.INPUT_GRADIENT and task.microbatch >= lag:
            order.append(Task(Kind.WEIGHT_GRADIENT, task.microbatch - lag, 0))
    return order + [Task(Kind.WEIGHT_GRADIENT, k, 0) for k in range(max(0, m - lag), m)]


def _zbv_rank(p: int, m: int, rank: int) -> Order:
    """The order of one rank: warm-up, steady state, then backwards with delayed weights."""
    order: Order = []
    done = {(kind, chunk): 0 for kind in Kind for chunk in (0, 1)}

    def run(kind: Kind, chunk: int) -> None:
        order.append(Task(kind, done[kind, chunk], chunk))
        done[kind, chunk] += 1

    def backward(chunk: int) -> None:
        run(Kind.INPUT_GRADIENT, chunk)
        run(Kind.WEIGHT_GRADIENT, chunk)

    for _ in range(2 * (p - rank) - 1):
        run(Kind.FORWARD, 0)
    for _ in range(rank):
        run(Kind.FORWARD, 1)
        run(Kind.FORWARD, 0)
    for _ in range(p - rank):
        run(Kind.FORWARD, 1)
        backward(1)
    while done[Kind.FORWARD, 1] < m:
        if done[Kind.FORWARD, 0] < m:
            run(Kind.FORWARD, 0)
        backward(0)
        run(Kind.FORWARD, 1)
        backward(1)
    for _ in range(rank):
        run(Kind.INPUT_GRADIENT, 0)
        run(Kind.INPUT_GRADIENT, 1)
    for _ in range(p - rank):
        run(Kind.INPUT_GRADIENT, 0)
        run(Kind.WEIGHT_GRADIENT, 0)
    for chunk in (1, 0):
        while done[Kind.WEIGHT_GRADIENT, chunk] < m:
            run(Kind.WEIGHT_GRADIENT, chunk)
    return order
