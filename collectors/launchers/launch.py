"""What is launched, how it ended, and what every launcher can do.

A launcher is one class with the six methods of ``Launcher``. It runs one command on every node,
with ``NODE_RANK``, ``NNODES``, ``MASTER_ADDR`` and ``MASTER_PORT`` set, which is what torchrun and
Megatron's and Primus' scripts expect. It never schedules: queues are the scheduler's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from specs.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MASTER_PORT = 29500
"""torchrun's default (--master-port)."""


class Ending(StrEnum):
    """How a launched run ended."""

    FINISHED = "finished"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"
    LOST = "lost"
    """Nobody knows: the job, its node or its record is gone. It may be launched again."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A command to run once on every node of a job.

    Attributes:
        name: of the job, up to 100 letters, digits, ``.``, ``_`` or ``-``.
        folder: of everything that is written: files to review, logs, what the command leaves.
        command: program and arguments; GPUs of a node are the command's to use (``torchrun``).
        nodes: how many.
        gpus_per_node: GPUs of each node; 0 where the command needs none.
        time_limit_s: seconds that the run may take once it has begun.
        workdir: where the command runs; the folder without it.
        environment: variables to set besides those of the rendezvous. They are written into files
            that a person reviews, so no secret belongs here.
    """

    name: str
    folder: Path
    command: tuple[str, ...]
    nodes: int = 1
    gpus_per_node: int = 0
    time_limit_s: float = 3600.0
    workdir: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses what no launcher could run.

        Raises:
            InputError: a part is empty, out of range, or no name.
        """
        if not _NAME.fullmatch(self.name):
            raise InputError(f"the job name {self.name!r} cannot be used; take letters and digits.")
        if not self.command:
            raise InputError(f"the job {self.name} has no command.")
        if self.nodes < 1 or self.gpus_per_node < 0 or not 0 < self.time_limit_s < 366 * 86400:
            raise InputError(
                f"the job {self.name} asks for {self.nodes} nodes, {self.gpus_per_node} GPUs a "
                f"node and {self.time_limit_s:g} s; all must be positive."
            )
        # A line end in a directive of a batch script begins a line that the shell runs.
        for path in (self.folder, self.runs_in):
            if not str(path.absolute()).isprintable():
                raise InputError(
                    f"the folder {str(path)!r} holds a line end or another control character; "
                    "name another."
                )
        for variable in self.environment:
            if not _VARIABLE.fullmatch(variable):
                raise InputError(f"{variable!r} is no name of an environment variable.")

    @property
    def runs_in(self) -> Path:
        """Where the command runs, absolute."""
        return (self.workdir or self.folder).absolute()


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        ending: the kind.
        exit_code: of the command; negative for a signal; None where nobody knows it.
        wall_s: seconds that it ran, as far as known.
        log: what it printed; may not exist where it never began.
        reason: one sentence for a person.
    """

    ending: Ending
    exit_code: int | None
    wall_s: float
    log: Path
    reason: str


class Launcher(Protocol):
    """Runs a Launch somewhere. A job is named by text that ``start`` gives, such as a job id."""

    name: str

    def why_not(self, launch: Launch) -> str:
        """Why it cannot be started from here, in one sentence; empty where it can."""
        ...

    def write(self, launch: Launch) -> tuple[Path, ...]:
        """Writes the files that ``start`` uses, for a person to review."""
        ...

    def start(self, launch: Launch) -> str:
        """Starts the written files and gives the job; one that is not forgotten is taken up again.

        Raises:
            InputError: it cannot be started; says why.
        """
        ...

    def poll(self, launch: Launch, job: str) -> Ended | None:
        """How the job ended; None while it waits or runs. Enforces the time limit."""
        ...

    def stop(self, launch: Launch, job: str) -> None:
        """Ends the job and every process of it; nothing where it has ended."""
        ...

    def forget(self, launch: Launch) -> None:
        """Forgets the job, whose end is told: the next start is a new one."""
        ...


def torchrun(launch: Launch, *program: str) -> tuple[str, ...]:
    """The command that starts a torch program on every GPU of every node of ``launch``.

    To be given as ``command``: ranks come from the rendezvous variables that launchers set.
    """
    line = (
        f'exec torchrun --nnodes "$NNODES" --nproc-per-node {max(launch.gpus_per_node, 1)} '
        '--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"'
    )
    return ("bash", "-c", line, "torchrun", *program)
