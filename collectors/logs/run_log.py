"""RunLog: what the lines of one training run said, before any framework's meaning is applied."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

MAX_ITERATIONS = 2_000_000
MAX_ARGUMENTS = 5_000
MAX_RANKS = 200_000
MAX_NOTES = 50
GIB = 2**30


@dataclass
class Iterations:
    """One entry a logged iteration, in the order of the log; NaN where a line did not say."""

    number: array[float] = field(default_factory=lambda: array("d"))
    step_time_s: array[float] = field(default_factory=lambda: array("d"))
    tflops: array[float] = field(default_factory=lambda: array("d"))
    tokens_per_s_per_gpu: array[float] = field(default_factory=lambda: array("d"))
    samples_per_s: array[float] = field(default_factory=lambda: array("d"))
    global_batch_size: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.number)

    def add(self, number: float, values: dict[str, float]) -> bool:
        """Keeps an iteration; False when the log has more than are kept."""
        if len(self.number) >= MAX_ITERATIONS:
            return False
        self.number.append(number)
        for name in _MEASURED:
            value = values.get(name, float("nan"))
            # What is not positive was not measured: a damaged line, or a rate of an empty step.
            getattr(self, name).append(value if value > 0 else float("nan"))
        return True


_MEASURED = ("step_time_s", "tflops", "tokens_per_s_per_gpu", "samples_per_s", "global_batch_size")


@dataclass
class Peak:
    """The highest reading of one memory counter, by rank."""

    by_rank: dict[int, float] = field(default_factory=dict)
    """Rank (-1 where the line does not say) -> highest reading in GiB."""

    def see(self, rank: int, gib: float) -> None:
        """Keeps a reading if it is the highest of its rank."""
        if 0 <= gib < 2**20 and (rank in self.by_rank or len(self.by_rank) < MAX_RANKS):
            self.by_rank[rank] = max(gib, self.by_rank.get(rank, 0.0))

    @property
    def highest(self) -> tuple[int, float]:
        """(rank, GiB) of the highest reading."""
        rank = max(self.by_rank, key=lambda r: self.by_rank[r])
        return rank, self.by_rank[rank]


@dataclass(frozen=True)
class OutOfMemory:
    """What an out-of-memory error said, in GiB; None where it did not."""

    line: int
    rank: int
    tried_gib: float
    capacity_gib: float | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None

    @property
    def needed_gib(self) -> float | None:
        """A lower bound of what the run needs allocated: what it held and what it asked for."""
        return None if self.allocated_gib is None else self.allocated_gib + self.tried_gib


@dataclass
class RunLog:
    """Everything that a run printed and that any row of measured runs may need.

    ``arguments`` is the argument dump as text, ``facts`` are single values by name (padded
    vocabulary, versions, sizes), ``memory`` the peaks by counter (allocated, reserved, device).
    """

    arguments: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    iterations: Iterations = field(default_factory=Iterations)
    memory: dict[str, Peak] = field(default_factory=dict)
    capacity_gib: float = 0.0
    devices_per_node: int = 0
    out_of_memory: list[OutOfMemory] = field(default_factory=list)
    events: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    first_line: int = 1
    in_arguments: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a run was found."""
        return not (
            self.arguments or self.iterations or self.memory or self.out_of_memory or self.events
        )

    def note(self, sentence: str) -> None:
        """Keeps a sentence about the log, once."""
        if sentence not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(sentence)

    def fact(self, name: str, value: str) -> None:
        """Keeps the first value of a fact."""
        self.facts.setdefault(name, value)

    def see_memory(self, counter: str, rank: int, gib: float) -> None:
        """Keeps a reading of a memory counter."""
        self.memory.setdefault(counter, Peak()).see(rank, gib)

    def argument(self, name: str, value: str) -> None:
        """Keeps an argument of the dump."""
        if len(self.arguments) < MAX_ARGUMENTS:
            self.arguments[name] = value[:4096]
