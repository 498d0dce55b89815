"""The greedy zero-bubble schedule that Primus calls ``zero-bubble-heuristic``.

Microbatch by microbatch, all ranks first decide whether to run one more forward, then run one input
gradient each; weight gradients fill the waits. Three switches change the decisions; all eight
settings are tried and the shortest result is kept (arXiv 2401.10241, appendix on the heuristic).
Every task has the same nominal length: Primus does not measure before it orders.
"""

from __future__ import annotations

from itertools import product

from surrogate.pipeline.orders.tasks import Kind, Order, Task

_LENGTH = 1000
"""Nominal length of a task (Primus ``cost_f``, ``cost_b``, ``cost_w``)."""
_TRANSFER = 1
"""Nominal length of a transfer between ranks (Primus ``cost_comm``)."""


def zb_heuristic(p: int, m: int, max_in_flight: int = 0) -> list[Order]:
    """The shortest of the eight greedy orders; the first of equals.

    ``max_in_flight`` bounds the microbatches a rank holds (Primus ``pp_max_mem``); 0 is no bound,
    and a rank may then hold all m.
    """
    best: _Greedy | None = None
    for allow_bubble, prefer_backward, fill_waits in product((True, False), repeat=3):
        tried = _Greedy(p, m, max_in_flight or m, prefer_backward, fill_waits)
        tried.run(allow_bubble)
        if best is None or tried.longest_span() < best.longest_span():
            best = tried
    assert best is not None
    return best.orders


class _Greedy:
    """The state of all ranks while one greedy order is being built."""

    def __init__(
        self, p: int, m: int, max_in_flight: int, prefer_backward: bool, fill_waits: bool
    ) -> None:
        self.num_ranks, self.num_microbatches = p, m
        self.max_in_flight = max_in_flight
        self.prefer_backward, self.fill_waits = prefer_backward, fill_waits
        self.orders: list[Order] = [[] for _ in range(p)]
        self.count = [[0] * p for _ in range(3)]
        self.clock = [0] * p
        self.waited = [0] * p
        self.end: dict[tuple[Kind, int, int], int] = {}

    def run(self, allow_bubble: bool) -> None:
        """Order all tasks; ``allow_bubble`` as in ``_extra_forwards``."""
        self._first_microbatch(allow_bubble)
        for k in range(1, self.num_microbatches):
            self._forward_round()
            self._backward_round(k)
        for rank in range(self.num_ranks):
            while self._weight_gradient_waits(rank):
                self._place(rank, Kind.WEIGHT_GRADIENT)

    def longest_span(self) -> int:
        """Longest time from the first to the last task of a rank."""
        last = self.num_microbatches - 1
        starts = [self.end[Kind.FORWARD, rank, 0] - _LENGTH for rank in range(self.num_ranks)]
        ends = [self.end[Kind.WEIGHT_GRADIENT, rank, last] for rank in range(self.num_ranks)]
        return max(end - start for start, end in zip(starts, ends, strict=True))

    def _place(self, rank: int, kind: Kind) -> None:
        """Run the next task of a kind on a rank as early as it can."""
        k = self.count[kind][rank]
        unhindered = self.clock[rank] + _LENGTH
        end = max(unhindered, self._arrival(rank, kind, k) + _LENGTH)
        if self.count[Kind.FORWARD][rank] > 0:
            self.waited[rank] += end - unhindered
        self.clock[rank] = self.end[kind, rank, k] = end
        self.count[kind][rank] += 1
        self.orders[rank].append(Task(kind, k, 0))

    def _arrival(self, rank: int, kind: Kind, k: int) -> int:
        """When the input of a task is there from the neighbour; 0 if it needs none."""
        if kind is Kind.FORWARD and rank > 0:
            return self.end[kind, rank - 1, k] + _TRANSFER
        if kind is Kind.INPUT_GRADIENT and rank + 1 < self.num_ranks:
            return self.end[kind, rank + 1, k] + _TRANSFER
        return 0

    def _held(self, rank: int) -> int:
        return self.count[Kind.FORWARD][rank] - self.count[Kind.WEIGHT_GRADIENT][rank]

    def _weight_gradient_waits(self, rank: int) -> bool:
        return self.count[Kind.WEIGHT_GRADIENT][rank] < self.count[Kind.INPUT_GRADIENT][rank]

    def _make_room(self, rank: int) -> None:
        """Run weight gradients until one more activation may be held.

        One always waits where there is no room: before a round of forwards a rank has run at most
        ``max_in_flight`` - 1 more forwards than input gradients.
        """
        while self._held(rank) >= self.max_in_flight:
            self._place(rank, Kind.WEIGHT_GRADIENT)

    def _fill_wait(self, rank: int, kind: Kind) -> None:
        """Run weight gradients while the input of the next task of ``kind`` is on its way.

        The last one may delay the task: always where the rank has waited as long as any, otherwise
        as ``fill_waits`` says.
        """
        arrival = self._arrival(rank, kind, self.count[kind][rank])
        while self._weight_gradient_waits(rank) and self.clock[rank] + _LENGTH <= arrival:
            self._place(rank, Kind.WEIGHT_GRADIENT)
        wait = arrival - self.clock[rank]
        affordable = wait <= max(self.waited) - self.waited[rank]
        if self._weight_gradient_waits(rank) and wait > 0 and (self.fill_waits or not affordable):
            self._place(rank, Kind.WEIGHT_GRADIENT)

    def _first_microbatch(self, allow_bubble: bool) -> None:
        """Forward everywhere, more forwards until the first gradient comes back, then backward."""
        for rank in range(self.num_ranks):
            self._place(rank, Kind.FORWARD)
        extra = self._extra_forwards(allow_bubble)
        for rank in range(self.num_ranks):
            for _ in range(extra[rank]):
                self._place(rank, Kind.FORWARD)
        for rank in reversed(range(self.num_ranks)):
            self._place(rank, Kind.INPUT_GRADIENT)

    def _extra_forwards(self, allow_bubble: bool) -> list[int]:
        """Forwards that each rank fits in before its first gradient; fewer on every later rank.

        With ``allow_bubble`` they end before the gradient arrives, otherwise the last one may delay
        it.
        """
        p, m = self.num_ranks, self.num_microbatches
        extra = [0] * p
        gradient_end = self.end[Kind.FORWARD, p - 1, 0] + _LENGTH
        for rank in reversed(range(p - 1)):
            arrival, clock, held = gradient_end + _TRANSFER, self.clock[rank], 1
            while held < min(m, self.max_in_flight):
                if (clock + _LENGTH > arrival) if allow_bubble else (clock >= arrival):
                    break
                clock += _LENGTH
                held += 1
                extra[rank] += 1
            gradient_end = max(clock, arrival) + _LENGTH
        for rank in range(1, p):
            while 0 < extra[rank] < m - 1 and extra[rank] >= extra[rank - 1]:
                extra[rank] -= 1
        return extra

    def _forward_round(self) -> None:
        """One more forward on the ranks that want one and whose later ranks all do."""
        wanted = [self._wants_forward(rank) for rank in range(self.num_ranks)]
        for rank in reversed(range(self.num_ranks - 1)):
            wanted[rank] &= wanted[rank + 1]
        for rank in range(self.num_ranks):
            if wanted[rank]:
                self._make_room(rank)
                if rank > 0:
                    self._fill_wait(rank, Kind.FORWARD)
                self._place(rank, Kind.FORWARD)

    def _wants_forward(self, rank: int) -> bool:
        """Whether a rank has a forward left that does not hold up the gradients it waits for."""
        forwards = self.count[Kind.FORWARD]
        if forwards[rank] >= self.num_microbatches:
            return False
        ahead = rank + 1 < self.num_ranks and forwards[rank] >= forwards[rank + 1] + 2
        if not (self.prefer_backward and ahead):
            return True
        gradient = self.clock[rank + 1] + 2 * _LENGTH + _TRANSFER
        if self.clock[rank] >= gradient:
            return False
        waiting = self.count[Kind.INPUT_GRADIENT][rank] - self.count[Kind.WEIGHT_GRADIENT][rank]
        freed = min(waiting, max(0, self._held(rank) + 1 - self.max_in_flight))
        if self.clock[rank] + (1 + freed) * _LENGTH <= gradient:
            return True
        return gradient - self.clock[rank] > max(self.waited) - self.waited[rank]

    def _backward_round(self, k: int) -> None:
        """Input gradient of microbatch k, from the last rank to the first."""
        for rank in reversed(range(self.num_ranks)):
            if rank + 1 < self.num_ranks:
                self._fill_wait(rank, Kind.INPUT_GRADIENT)
            if rank == 0 and self.count[Kind.FORWARD][0] == self.num_microbatches:
                while self._weight_gradient_waits(rank):
                    self._place(rank, Kind.WEIGHT_GRADIENT)
            assert self.count[Kind.INPUT_GRADIENT][rank] == k
            self._place(rank, Kind.INPUT_GRADIENT)
