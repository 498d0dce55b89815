"""The queue of a study: trials that wait for a worker, are with one, or were told by one.

A waiting trial is claimed by changing its state from WAITING to RUNNING, which only one worker can
do. A worker gives signs of life while it evaluates; the driver, and only the driver, queues a trial
again whose worker gave none for a lease. So a worker that was taken for dead may still answer: the
first result of a trial is kept, a later one becomes a note on the study. Optuna's own heartbeat is
not used: it fails live trials whose next tell then raises (optuna#4234, optuna#5470).

No clock is compared with that of another machine, nor with itself across a change of its time: the
driver counts by its monotonic clock how long a sign of life has not changed.
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specs.config import TrainingConfig
from specs.errors import InputError
from studies.file_lock import FileLock
from studies.ledger import BEAT, REQUEUED, WORKER, evaluated
from studies.oracles import Crash, Evaluation
from studies.storage import Result, StorageAddress, Told, open_storage, patiently
from studies.turns import lock_key

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

MOST_REQUEUES = 3
"""How many workers may die on a trial before it is taken for what kills them."""
LATE = "late "
"""Prefix of the notes on a study about results that came after another one."""
OPEN, LEASE = "queue_open", "lease_s"
"""Attributes of a study: whether its driver still adds trials, and the lease of a claimed one."""
LEASE_S = 60.0


def worker_name() -> str:
    """A name for this process that no other has: host, process and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"


@dataclass(frozen=True)
class Task:
    """A claimed trial."""

    trial_id: int
    number: int
    config: TrainingConfig
    proposer: str
    reason: str


class Queue:
    """The trials of a study as drivers and workers see them. One for each thread."""

    def __init__(self, address: StorageAddress, study: str) -> None:
        """Opens the queue of a study.

        Raises:
            InputError: the storage cannot be opened, is of a kind that cannot be shared, or does
                not hold the study.
        """
        if address.kind == "server" and not address.url.startswith("postgresql"):
            raise InputError(
                "workers need PostgreSQL, or a file (SQLite, journal) on one machine; "
                f"{address.shown} is neither."
            )
        self.address, self.study = address, study
        self._storage: BaseStorage = open_storage(address)
        try:
            self._id = self._storage.get_study_id_from_name(study)
        except KeyError:
            raise InputError(f"there is no study {study!r} in {address.shown}.") from None

    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the study."""
        return self._storage.get_study_user_attrs(self._id)

    def lease_s(self) -> float:
        """How long a claimed trial may give no sign of life."""
        return float(self.attributes().get(LEASE, LEASE_S))

    def is_open(self) -> bool:
        """Whether the driver still has trials to queue or to wait for."""
        return bool(self.attributes().get(OPEN))

    def describe(self, key: str, value: Any) -> None:
        """Writes an attribute of the study."""
        self._storage.set_study_user_attr(self._id, key, value)

    def disconnect(self) -> None:
        """Closes connections to a server until they are needed again: an idle client holds none.

        A transaction that was cut off goes with them.
        """
        engine = getattr(self._storage, "engine", None)
        if self.address.kind == "server" and engine is not None:
            self._storage.remove_session()
            engine.dispose()

    def patiently(
        self, action: Callable[[], Result], patience_s: float, told: Told = lambda _: None
    ) -> Result:
        """``action`` on this queue, tried again while the storage does not answer.

        No connection is held meanwhile: a server that has no second one to give to any of its
        clients would answer none of them.

        Raises:
            InputError: the storage did not answer for ``patience_s``.
        """
        return patiently(action, patience_s, told, self.disconnect)

    def claim(self, worker: str) -> Task | None:
        """A waiting trial that is this worker's from now on; None where none waits."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        waiting = self._waiting()
        # Workers that look at the same moment would all reach for the first one.
        for trial_id in random.sample(waiting, len(waiting)):
            with self._turn_on_file():
                try:
                    if not self._storage.set_trial_state_values(trial_id, state=TrialState.RUNNING):
                        continue
                except UpdateFinishedTrialError:
                    continue
                self._storage.set_trial_user_attr(trial_id, WORKER, worker)
            return _task(self._storage.get_trial(trial_id))
        return None

    def beat(self, task: Task, sign: str) -> bool:
        """Gives a sign of life, other than the last one; False where the trial has ended."""
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            with self._turn_on_file():
                self._storage.set_trial_user_attr(task.trial_id, BEAT, sign)
        except UpdateFinishedTrialError:
            return False
        return True

    def finish(self, task: Task, outcome: Evaluation | Crash, worker: str) -> bool:
        """Tells a result; False where another one came first and this one became a note.

        May be tried again where the storage did not answer.
        """
        told = evaluated(task.config, outcome, task.proposer, task.reason)
        with self._turn(task.number):
            held = self._storage.get_trial(task.trial_id)
            if held.state.is_finished():
                if held.user_attrs.get(WORKER) == worker:
                    return True  # told before; only the answer was lost
                note = {"value": told.value if told.values else None, **told.user_attrs}
                self.describe(f"{LATE}{task.number} {worker}", note)
                return False
            for key, value in {**told.user_attrs, WORKER: worker}.items():
                if held.user_attrs.get(key) != value:
                    self._storage.set_trial_user_attr(task.trial_id, key, value)
            for key, value in told.system_attrs.items():
                self._storage.set_trial_system_attr(task.trial_id, key, value)
            self._storage.set_trial_state_values(task.trial_id, told.state, told.values)
        return True

    def release(self, task: Task, worker: str) -> None:
        """Gives back a claimed trial that is not told; nothing where another worker has it now."""
        from optuna.trial import TrialState

        with self._turn(task.number):
            held = self._storage.get_trial(task.trial_id)
            if held.state is TrialState.RUNNING and held.user_attrs.get(WORKER) == worker:
                self._storage.set_trial_state_values(task.trial_id, state=TrialState.WAITING)

    def requeue(self, trial: FrozenTrial) -> str:
        """Queues a trial again whose worker is gone; one that killed several is given up.

        Returns:
            One sentence of what was done; empty where it had ended meanwhile.
        """
        from optuna.trial import TrialState

        with self._turn(trial.number):
            held = self._storage.get_trial(trial._trial_id)
            if held.state is not TrialState.RUNNING:
                return ""
            times = int(held.user_attrs.get(REQUEUED, 0)) + 1
            who = held.user_attrs.get(WORKER, "a worker")
            if times > MOST_REQUEUES:
                reason = f"{times} workers were lost while they evaluated it, the last one {who}"
                self._storage.set_trial_user_attr(trial._trial_id, "crash", reason)
                self._storage.set_trial_state_values(trial._trial_id, state=TrialState.FAIL)
                return f"trial {trial.number} is given up: {reason}."
            self._storage.set_trial_user_attr(trial._trial_id, REQUEUED, times)
            self._storage.set_trial_state_values(trial._trial_id, state=TrialState.WAITING)
        return f"trial {trial.number} is queued again: nothing was heard of {who}."

    def late(self) -> list[str]:
        """The numbers and workers of results that came after another one."""
        return sorted(k.removeprefix(LATE) for k in self.attributes() if k.startswith(LATE))

    def _waiting(self) -> list[int]:
        """The ids of the trials that wait.

        Of a database only these are read: Optuna would read every parameter and attribute of every
        waiting trial, at every claim.
        """
        from optuna.trial import TrialState
        from sqlalchemy import text

        engine = getattr(self._storage, "engine", None)
        if engine is None:
            found = self._storage.get_all_trials(self._id, False, (TrialState.WAITING,))
            return [trial._trial_id for trial in found]
        query = text("select trial_id from trials where study_id = :study and state = 'WAITING'")
        with engine.connect() as connection:
            return list(connection.scalars(query, {"study": self._id}))

    def _turn(self, number: int) -> AbstractContextManager[object]:
        """The right to change one trial, over all clients of the storage."""
        if self.address.kind == "server":
            return self._turn_on_server(number)
        return self._turn_on_file()

    @contextmanager
    def _turn_on_server(self, number: int) -> Iterator[None]:
        from sqlalchemy import text

        engine = self._storage.engine  # type: ignore[attr-defined]
        with engine.begin() as connection:
            wanted = {"key": lock_key(f"trial {self.study} {number}")}
            connection.execute(text("select pg_advisory_xact_lock(:key)"), wanted)
            yield

    def _turn_on_file(self) -> AbstractContextManager[object]:
        """The right to write beside a file: SQLite locks no rows, a claim would not be atomic."""
        if self.address.path is None:
            return nullcontext()
        return FileLock(self.address.path.parent / f".{self.study}.queue")


def _task(trial: FrozenTrial) -> Task:
    attributes = trial.user_attrs
    return Task(
        trial_id=trial._trial_id,
        number=trial.number,
        config=TrainingConfig.from_labels(attributes["config"]),
        proposer=attributes["proposer"],
        reason=attributes["reason"],
    )


@dataclass
class Leases:
    """When the driver last saw a change of each running trial, by its own monotonic clock."""

    lease_s: float
    _seen: dict[int, tuple[object, float]] = field(default_factory=dict)

    def expired(self, running: list[FrozenTrial]) -> list[FrozenTrial]:
        """The running trials whose sign of life has not changed for a lease."""
        now = time.monotonic()
        before, self._seen = self._seen, {}
        for trial in running:
            sign = (trial.user_attrs.get(WORKER), trial.user_attrs.get(BEAT))
            known = before.get(trial.number)
            changed = known is None or known[0] != sign
            self._seen[trial.number] = (sign, now if changed or known is None else known[1])
        return [t for t in running if now - self._seen[t.number][1] > self.lease_s]
