"""A worker: takes waiting trials of a study, evaluates them and tells the results."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from specs.errors import InputError
from studies.job import Job
from studies.oracles import Oracle, SurrogateOracle
from studies.queue import OPEN, Queue, Task, worker_name
from studies.report.facts import job_of
from studies.storage import StorageAddress, Told, first_line, is_transient
from studies.taught import TAUGHT

POLL_S = 1.0
BEATS_PER_LEASE = 4
IDLE_S, PATIENCE_S = 600.0, 600.0

OracleOf = Callable[[str, Job], Oracle]


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """How a worker works.

    Attributes:
        trials: how many to evaluate at most; None: until the study ends.
        idle_s: how long to wait for a study, and for a trial of it while it has no driver.
        patience_s: how long to wait for a storage that does not answer.
        poll_s: pause between two looks at an empty queue.
    """

    trials: int | None = None
    idle_s: float = IDLE_S
    patience_s: float = PATIENCE_S
    poll_s: float = POLL_S


@dataclass
class Worked:
    """What a worker did: trials told first, and results that came after another one."""

    worker: str
    told: int = 0
    late: int = 0
    why_stopped: str = ""


class Worker:
    """Evaluates trials of one study, one at a time."""

    def __init__(
        self, queue: Queue, oracle: Oracle, options: WorkerOptions, told: Told = lambda _: None
    ) -> None:
        self._queue, self._oracle, self._options, self._told = queue, oracle, options, told
        self.done = Worked(worker_name())

    def step(self) -> bool:
        """Evaluates one waiting trial; False where none waits.

        Raises:
            InputError: the storage did not answer for ``patience_s``.
        """
        queue, name, patience_s = self._queue, self.done.worker, self._options.patience_s
        task = queue.patiently(lambda: queue.claim(name), patience_s, self._told)
        if task is None:
            queue.disconnect()
            return False
        try:
            lease_s = queue.patiently(queue.lease_s, patience_s, self._told)
            queue.disconnect()
            with _beating(queue, task, name, lease_s):
                outcome = self._oracle.evaluate(task.config)
        except BaseException:
            self._give_back(task)
            raise
        if queue.patiently(lambda: queue.finish(task, outcome, name), patience_s, self._told):
            self.done.told += 1
        else:
            self.done.late += 1
            self._told(f"trial {task.number} was told by another worker first: kept as a note.")
        queue.disconnect()
        return True

    def run(self) -> Worked:
        """Evaluates trials until the study is closed, or ``trials`` or ``idle_s`` are spent."""
        options, since = self._options, time.monotonic()
        while True:
            if options.trials is not None and self.done.told + self.done.late >= options.trials:
                self.done.why_stopped = "it evaluated what --trials allows"
                return self.done
            if self.step():
                since = time.monotonic()
                continue
            if not self._queue.patiently(self._queue.is_open, options.patience_s, self._told):
                self.done.why_stopped = "the study is complete"
                return self.done
            if time.monotonic() - since > options.idle_s:
                self.done.why_stopped = f"nothing waited for {options.idle_s:.0f} s"
                return self.done
            time.sleep(options.poll_s)

    def _give_back(self, task: Task) -> None:
        """Lets another worker have the trial at once; where that fails, the driver's lease does."""
        try:
            self._queue.release(task, self.done.worker)
        except Exception as error:
            if not is_transient(error):
                raise
            self._told(f"trial {task.number} is not given back ({first_line(error)}).")


@contextmanager
def _beating(queue: Queue, task: Task, worker: str, lease_s: float) -> Iterator[None]:
    """Gives signs of life from a thread with a connection of its own while the block runs."""
    ended = threading.Event()

    def beat() -> None:
        own: Queue | None = None
        count = 0
        while not ended.wait(lease_s / BEATS_PER_LEASE):
            count += 1
            try:
                own = own or Queue(queue.address, queue.study)
                if not own.beat(task, f"{worker} {count}"):
                    return
            except InputError:
                continue  # not to be opened now; the next beat tries again
            except Exception as error:
                if not is_transient(error):
                    raise
            finally:
                if own is not None:
                    own.disconnect()

    thread = threading.Thread(target=beat, daemon=True, name=f"beat {task.number}")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=lease_s)


def oracle_for(name: str, job: Job) -> Oracle:
    """The oracle of this name for a job.

    Raises:
        InputError: there is none that a worker can build from the study alone.
    """
    if name == SurrogateOracle.name:
        return SurrogateOracle(job)
    raise InputError(
        f"the trials of this study are evaluated by {name!r}, which no worker can do; its driver "
        "does where it is run without --workers."
    )


def join(
    address: StorageAddress,
    study: str,
    options: WorkerOptions,
    told: Told = lambda _: None,
    oracle_of: OracleOf = oracle_for,
) -> Worker:
    """A worker of a study, which is waited for.

    Args:
        address: the storage.
        study: its name.
        options: how to work.
        told: hears notes.
        oracle_of: makes the oracle that the study names.

    Raises:
        InputError: there is no such storage or study, or this installation would give other
            values.
    """
    if address.path is not None and not address.path.is_file():
        raise InputError(f"there is no storage {address.shown}; start the driver first.")
    queue = _waited_for(address, study, options, told)
    attributes = queue.patiently(queue.attributes, options.patience_s, told)
    inputs = attributes["inputs"]
    oracle = oracle_of(str(inputs["oracle"]), job_of(study, inputs, attributes.get(TAUGHT)))
    if oracle.fingerprint != inputs["surrogate"]:
        raise InputError(
            f"the study {study!r} is evaluated by {inputs['oracle']} {inputs['surrogate']}, and "
            f"this is {oracle.fingerprint}: its values would differ; install the same release."
        )
    return Worker(queue, oracle, options, told)


def _waited_for(address: StorageAddress, study: str, options: WorkerOptions, told: Told) -> Queue:
    deadline, said = time.monotonic() + options.idle_s, False
    while True:
        try:
            queue = Queue(address, study)
            if OPEN in queue.attributes():
                return queue
            reason = f"the study {study!r} has no driver yet"
        except InputError as error:
            reason = str(error)
        except Exception as error:
            if not is_transient(error):
                raise
            reason = first_line(error)
        if time.monotonic() > deadline:
            raise InputError(f"waited {options.idle_s:.0f} s: {reason}")
        if not said:
            told(f"waiting for the study: {reason}")
            said = True
        time.sleep(options.poll_s)
