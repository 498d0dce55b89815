"""V-half and V-min: schedules built from one repeated block (arXiv 2405.15362).

Each microbatch runs the same block of four tasks (forward and input gradient of both chunks), six
slots after the one before. Weight gradients take the slots in between. The block alone leaves idle
slots at both ends of a step; two passes then pull tasks towards the start without holding more
activations than before. The slots only fix the order: a slot is not a length of time.
"""

from __future__ import annotations

from collections.abc import Sequence

from surrogate.pipeline.orders.tasks import Kind, Order, Task

PERIOD_SLOTS = 6
"""Slots of a block: three tasks for each of two chunks."""

_BLOCK = ((Kind.FORWARD, 0), (Kind.FORWARD, 1), (Kind.INPUT_GRADIENT, 1), (Kind.INPUT_GRADIENT, 0))
_HELD = {Kind.FORWARD: 1, Kind.INPUT_GRADIENT: 0, Kind.WEIGHT_GRADIENT: -1}


def v_half(p: int, m: int) -> list[Order]:
    """V-half: about half the activations of 1F1B (arXiv 2405.15362, section 4)."""
    gap = 3 if p % 2 == 0 else 0
    starts = [
        (2 * rank, 3 * p - 2 - rank, 3 * p - 1 + gap + 2 * rank, 6 * p - 2 + gap - rank)
        for rank in range(p)
    ]
    return _Slots(starts, m).orders()


def v_min(p: int, m: int) -> list[Order]:
    """V-min: about a third of the activations of 1F1B (arXiv 2405.15362, section 4)."""
    gap = 2 if p % 3 == 0 else 0
    starts = [
        (rank, 2 * p - 1 - rank, 2 * p + gap + rank, 4 * p - 1 + gap - rank) for rank in range(p)
    ]
    return _Slots(starts, m).orders()


class _Slots:
    """The slots of every rank while a schedule is being built.

    Attributes:
        task_at: per rank, slot -> task.
        slot_of: (task, rank) -> slot.
        held: per rank and slot, chunk activations held after the slot.
        cooldown: per rank, tasks after the last forward of a step with a steady phase.
    """

    def __init__(self, starts: Sequence[tuple[int, int, int, int]], m: int) -> None:
        self.num_ranks, self.num_microbatches = len(starts), m
        self.task_at: list[dict[int, Task]] = [{} for _ in starts]
        self.slot_of: dict[tuple[Task, int], int] = {}
        self.held: list[list[int]] = []
        self.cooldown: list[set[Task]] = [set() for _ in starts]
        for rank, rank_starts in enumerate(starts):
            for k in range(m):
                for (kind, chunk), start in zip(_BLOCK, rank_starts, strict=True):
                    self._put(rank, Task(kind, k, chunk), start + PERIOD_SLOTS * k)
            self._add_weight_gradients(rank)
        self.last_slot = max(max(slots) for slots in self.task_at)
        self._pull_all()
        self._pull_cooldown()

    def orders(self) -> list[Order]:
        """The tasks of each rank in the order of their slots."""
        return [[slots[slot] for slot in sorted(slots)] for slots in self.task_at]

    def _put(self, rank: int, task: Task, slot: int) -> None:
        self.task_at[rank][slot] = task
        self.slot_of[task, rank] = slot

    def _move(self, rank: int, task: Task, slot: int) -> None:
        del self.task_at[rank][self.slot_of[task, rank]]
        self._put(rank, task, slot)

    def _add_weight_gradients(self, rank: int) -> None:
        """Fill free slots with the weight gradients that wait, oldest first."""
        slots, held = self.task_at[rank], 0
        waiting: list[Task] = []
        levels: list[int] = []
        last_forward = Task(Kind.FORWARD, self.num_microbatches - 1, 1)
        first_returned = Task(Kind.INPUT_GRADIENT, 0, 0)
        in_cooldown = False
        slot = 0
        last_slot = max(slots)
        while slot <= last_slot or waiting:
            if slot not in slots and waiting:
                ready = waiting.pop(0)
                self._put(rank, Task(Kind.WEIGHT_GRADIENT, ready.microbatch, ready.chunk), slot)
            task = slots.get(slot)
            if task is not None:
                held += _HELD[task.kind]
                if task.kind is Kind.INPUT_GRADIENT:
                    waiting.append(task)
                if in_cooldown:
                    self.cooldown[rank].add(task)
                # The first returned gradient opens the steady phase even where all forwards are
                # done by then, as in Primus: a step that short keeps its uncompressed end.
                in_cooldown = (in_cooldown or task == last_forward) and task != first_returned
            levels.append(held)
            slot += 1
        self.held.append(levels)

    def _earliest_slot(self, rank: int, task: Task) -> int:
        """First slot after what the task needs and after its own kind's microbatch before."""
        kind, k, chunk = task
        needs = [(task._replace(microbatch=k - 1), rank)] if k > 0 else []
        last_stage = 2 * self.num_ranks - 1
        stage = rank if chunk == 0 else last_stage - rank
        if kind is Kind.WEIGHT_GRADIENT:
            needs.append((task._replace(kind=Kind.INPUT_GRADIENT), rank))
        elif kind is Kind.FORWARD and stage > 0:
            needs.append(self._at_stage(kind, k, stage - 1))
        elif kind is Kind.INPUT_GRADIENT and stage < last_stage:
            needs.append(self._at_stage(kind, k, stage + 1))
        elif kind is Kind.INPUT_GRADIENT:
            needs.append((task._replace(kind=Kind.FORWARD), rank))
        return 1 + max((self.slot_of[need] for need in needs), default=-1)

    def _at_stage(self, kind: Kind, k: int, stage: int) -> tuple[Task, int]:
        if stage < self.num_ranks:
            return Task(kind, k, 0), stage
        return Task(kind, k, 1), 2 * self.num_ranks - 1 - stage

    def _pull_all(self) -> None:
        """Pull every task to its first free slot that keeps the peak of held activations."""
        limit = max(max(levels) for levels in self.held)
        for slot in range(self.last_slot + 1):
            for rank, slots in enumerate(self.task_at):
                if slot not in slots:
                    continue
                task, levels = slots[slot], self.held[rank]
                earliest, change = self._earliest_slot(rank, task), _HELD[task.kind]
                if change > 0:
                    earliest = max(earliest, _first_below(limit, levels, slot))
                free = self._first_free(rank, earliest, slot)
                if free < slot:
                    self._move(rank, task, free)
                    levels[free:slot] = [level + change for level in levels[free:slot]]

    def _pull_cooldown(self) -> None:
        """After the last forward: input gradients first, weight gradients in what is left."""
        postponed: list[tuple[int, Task]] = []
        for slot in range(self.last_slot + 1):
            for rank, slots in enumerate(self.task_at):
                task = slots.get(slot)
                if task is None or task not in self.cooldown[rank]:
                    continue
                if task.kind is Kind.WEIGHT_GRADIENT:
                    postponed.append((rank, slots.pop(slot)))
                    continue
                free = self._first_free(rank, self._earliest_slot(rank, task), slot)
                if free < slot:
                    self._move(rank, task, free)
        for rank, task in postponed:
            earliest = self._earliest_slot(rank, task)
            self._put(rank, task, self._first_free(rank, earliest, 2 * self.last_slot))

    def _first_free(self, rank: int, first: int, end: int) -> int:
        """First slot from ``first`` without a task; ``end`` or more if there is none before."""
        slots = self.task_at[rank]
        while first < end and first in slots:
            first += 1
        return first


def _first_below(limit: int, levels: Sequence[int], slot: int) -> int:
    """Start of the stretch before ``slot`` in which one more activation keeps to the limit."""
    while slot > 0 and levels[slot - 1] < limit:
        slot -= 1
    return slot
