"""Damages samples of a reader many times and says what became of each input."""

from __future__ import annotations

import random
import resource
import signal
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from benchmarks.fuzz.readers import READERS, Reader
from specs.errors import InputError

HANG_S, HANG_WAITING_S = 10, 300
"""CPU seconds that an input may take, and seconds: a machine that others use makes it wait."""
LONGEST_SENTENCE = 1000
ADDRESS_SPACE_BYTES = 6 * 2**30
"""What a worker may reserve: an input that needs more is a bomb that went off."""
SHM = Path("/dev/shm")


class Hang(BaseException):
    """A reader took more than ``HANG_S`` or ``HANG_WAITING_S``."""


@dataclass
class Outcome:
    """What became of the inputs of one reader; ``faults`` are (seed, what happened), a few each."""

    reader: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    slowest_seed: int = -1
    peak_mib: float = 0.0
    cpu_s: float = 0.0
    faults: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Takes in what another worker found."""
        self.inputs += other.inputs
        self.accepted += other.accepted
        self.refused += other.refused
        self.cpu_s += other.cpu_s
        self.peak_mib = max(self.peak_mib, other.peak_mib)
        self.faults += other.faults
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest_seed = other.slowest_s, other.slowest_seed


def damaged(reader: Reader, seed: int, held: list[bytes]) -> bytes:
    """The input of a seed: a sample of the reader with one kind of damage."""
    dice = random.Random(zlib.crc32(reader.name.encode()) * 2**32 + seed)
    content = dice.choice(held)
    damage = dice.choice(list(reader.damages))
    try:
        return damage(content, dice)
    except (RecursionError, UnicodeDecodeError):
        return b"[" * 5000


def fuzz(
    name: str, first: int, count: int, until: float | None = None, limited: bool = False
) -> Outcome:
    """Reads the inputs of ``count`` seeds.

    Args:
        name: of the reader.
        first: seed to begin with.
        count: inputs.
        until: ``time.monotonic()`` at which to stop.
        limited: bound the address space of this process, for worker processes.
    """
    reader = next(r for r in READERS if r.name == name)
    if limited:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, hard))
    outcome = Outcome(name)
    held = reader.samples()
    started = time.process_time()
    with tempfile.TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as folder:
        path = Path(folder) / reader.file
        for seed in range(first, first + count):
            if until is not None and time.monotonic() > until:
                break
            path.write_bytes(damaged(reader, seed, held))
            _read(reader, path, seed, outcome)
    outcome.cpu_s = time.process_time() - started
    outcome.peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return outcome


def _read(reader: Reader, path: Path, seed: int, outcome: Outcome) -> None:
    """Reads one input."""
    outcome.inputs += 1
    before = time.process_time()
    try:
        with _deadline():
            reader.read(path)
        outcome.accepted += 1
    except InputError as error:
        outcome.refused += 1
        sentence = str(error)
        if "\n" in sentence or not 0 < len(sentence) <= LONGEST_SENTENCE:
            outcome.faults.append((seed, f"not one sentence: {sentence[:200]!r}"))
    except Hang:
        outcome.faults.append((seed, f"took more than {HANG_S} s"))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno} {last.name}"
        outcome.faults.append((seed, f"{type(error).__name__}: {str(error)[:120]} in {where}"))
    took = time.process_time() - before
    if took > outcome.slowest_s:
        outcome.slowest_s, outcome.slowest_seed = took, seed


@contextmanager
def _deadline() -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise Hang

    clocks = (
        (signal.ITIMER_PROF, signal.SIGPROF, HANG_S),
        (signal.ITIMER_REAL, signal.SIGALRM, HANG_WAITING_S),
    )
    old = {number: signal.signal(number, ring) for _, number, _ in clocks}
    for clock, _, seconds in clocks:
        signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        for clock, number, _ in clocks:
            signal.setitimer(clock, 0)
            signal.signal(number, old[number])
