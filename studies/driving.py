"""The driver: queues the trials of a plan, watches the workers, ends when all are told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from search.proposals import Proposal
from specs.errors import InputError
from studies.ledger import Ledger
from studies.queue import LEASE, LEASE_S, OPEN, Leases, Queue
from studies.storage import Told
from studies.turns import Held
from studies.worker import PATIENCE_S, Worker

AHEAD = 16
"""Trials that wait beyond one for each running one: a claim reads all that wait."""
TICK_S = 0.5
ORPHAN_IDLE = "2m"
"""How long a worker that was started here outlives a driver that was killed."""
STORAGE_VARIABLE = "FORETUNE_STORAGE"
"""How a worker hears of its storage: arguments are shown to every user, the environment is not."""


def _unheard(_sentence: str) -> None:
    """What is told where nobody listens."""


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Who evaluates the trials of a study.

    Attributes:
        workers: how many to start on this machine; 0 leaves all trials to workers that are started
            elsewhere, None evaluates in this process.
        lease_s: how long a worker may give no sign of life before its trial is queued again.
        patience_s: how long to wait for a storage that does not answer.
        told: hears one sentence about each worker that is lost and the like.
    """

    workers: int | None = None
    lease_s: float = LEASE_S
    patience_s: float = PATIENCE_S
    told: Told = _unheard


@dataclass
class Driver:
    """Drives one study; everything it knows is read from the storage, so it may be restarted."""

    ledger: Ledger
    queue: Queue
    held: Held
    trials: int
    crew: Crew
    own: Worker | None = None
    local: LocalWorkers | None = None
    tick_s: float = TICK_S
    _next: Proposal | None = field(default=None, init=False)

    def drive(self, plan: Iterator[Proposal]) -> Iterator[int]:
        """Yields how many trials are told, whenever it looked, until all are."""
        leases, patience_s, told = Leases(self.crew.lease_s), self.crew.patience_s, self.crew.told
        while True:
            finished, left = self.queue.patiently(
                lambda: self._tick(plan, leases), patience_s, told
            )
            yield finished
            if not left:
                break
            if self.local is not None:
                self.local.check()
            if self.own is None or not self.own.step():
                time.sleep(self.tick_s)
        self.queue.patiently(lambda: self.queue.describe(OPEN, False), patience_s, told)

    def open(self) -> None:
        """Lets workers in; each ends by itself once the study is closed again."""
        self.queue.patiently(self._open, self.crew.patience_s, self.crew.told)

    def _open(self) -> None:
        self.queue.describe(LEASE, self.crew.lease_s)
        self.queue.describe(OPEN, True)

    def _tick(self, plan: Iterator[Proposal], leases: Leases) -> tuple[int, bool]:
        """(trials told, whether any is left); may be done twice."""
        from optuna.trial import TrialState

        self.held.check()
        trials = self.ledger.refresh()
        running = [trial for trial in trials if trial.state is TrialState.RUNNING]
        waiting = sum(trial.state is TrialState.WAITING for trial in trials)
        for trial in leases.expired(running):
            if sentence := self.queue.requeue(trial):
                self.crew.told(sentence)
        room = len(running) + AHEAD - waiting
        is_left = bool(running or waiting)
        while room > 0 and len(self.ledger) < self.trials:
            self._next = self._next or next(plan, None)
            if self._next is None:
                break
            room -= self.ledger.enqueue(self._next.config, self._next.proposer, self._next.reason)
            self._next, is_left = None, True
        return sum(trial.state.is_finished() for trial in trials), is_left


class LocalWorkers:
    """Workers that this driver starts on its own machine, and ends with itself."""

    def __init__(self, crew: Crew, queue: Queue, folder: Path) -> None:
        """Starts them; each prints into ``worker-N.log`` in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "foretune", "worker", queue.study]
        command += ["--idle", ORPHAN_IDLE]
        environment = os.environ | {STORAGE_VARIABLE: queue.address.url}
        self._logs = [folder / f"worker-{number}.log" for number in range(crew.workers or 0)]
        self._processes: list[subprocess.Popen[bytes]] = []
        for log in self._logs:
            with log.open("wb") as out:
                self._processes.append(
                    subprocess.Popen(
                        command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out
                    )
                )

    def check(self) -> None:
        """Makes sure that one is left.

        Raises:
            InputError: each has failed; says why the last one did.
        """
        codes = [process.poll() for process in self._processes]
        if codes and all(codes):
            lines = self._logs[-1].read_text(errors="replace").strip().splitlines()
            raise InputError(
                f"every worker failed, the last one with exit code {codes[-1]}: "
                f"{lines[-1] if lines else 'it said nothing'} (see {self._logs[-1]})"
            )

    def end(self) -> None:
        """Lets them finish what they evaluate and waits for them."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
