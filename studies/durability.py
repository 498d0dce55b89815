"""Durability: what kill -9 at random moments does to a study, measured.

A study is run in a process of its own, which is killed at a random moment, again and again until it
is complete; then the next study begins, until there were as many kills as wanted. After every kill
the storage must open and hold what it held before and what an undisturbed study holds; at the end
it must hold the same trials in the same order.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from specs.errors import InputError
from studies.job import Job
from studies.storage import StorageAddress, open_storage, storage_address

TRIALS = 24
ALLOWED_S = 300.0
"""For one process: far more than any takes."""
AXES = {
    "tp": [1, 2, 4],
    "pp": [1, 2, 4],
    "mbs": [1, 2, 4],
    "cp": [1],
    "vpp": [1],
    "schedule": ["1f1b"],
    "recompute": ["none", "full"],
    "recompute_layers": [0, 1],
    "precision": ["bf16"],
    "sharding": ["zero1"],
    "overlap": ["none", "dp"],
}
"""A space that ranks in a blink, so that a process mostly writes."""
NOT_BEGUN, OPENING = -2, -1
"""What a process says before it has told a trial."""
PRELOADED = (
    *("studies.durability", "studies.training", "studies.api", "optuna.storages"),
    *("alembic.command", "sqlalchemy.orm", "sqlalchemy.dialects.sqlite"),
    *("sqlalchemy.dialects.postgresql", "psycopg2"),
)
"""Imported once and not by every process: more of its time goes to what kills are to hit."""
POLL_S, SHORTEST_S = 0.0005, 0.3
"""Pause between two looks; the shortest stretch within which a kill falls."""
Held = list[tuple[str, str, float | None]]
"""(config key, state, value) of every trial in order."""


@dataclass
class Durability:
    """What was found. All but ``kills``, ``studies`` and the moments should be 0.

    Attributes:
        storage: kind of it.
        kills: processes that were killed while they worked.
        studies: that were run to their end.
        while_writing: kills by which the storage had got more trials, but not all.
        would_not_open: kills after which the storage could not be opened.
        lost: trials that a storage held before a kill and not after it.
        doubled: configs that two trials have.
        changed: trials that differ from those of the undisturbed study.
        differing_ends: studies that ended with other trials than the undisturbed one.
        open_s: longest time to open the storage after a kill.
        problems: one sentence each.
    """

    storage: str
    kills: int = 0
    studies: int = 0
    while_writing: int = 0
    would_not_open: int = 0
    lost: int = 0
    doubled: int = 0
    changed: int = 0
    differing_ends: int = 0
    open_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was lost, doubled or changed."""
        found = (self.would_not_open, self.lost, self.doubled, self.changed, self.differing_ends)
        return not any(found) and not self.problems

    def as_json(self) -> dict[str, Any]:
        """The findings as JSON."""
        return asdict(self) | {"clean": self.is_clean}


def measure_durability(
    storage: str,
    folder: Path,
    kills: int,
    seed: int = 0,
    trials: int = TRIALS,
    advance: Callable[[int], None] = lambda _steps: None,
) -> Durability:
    """Kills studies on a storage ``kills`` times.

    Args:
        storage: ``sqlite``, ``journal``, or the URL of a database that may be written to; studies
            made there are deleted at the end.
        folder: where files go.
        kills: how many.
        seed: of the moments.
        trials: of each study.
        advance: hears of each kill.

    Raises:
        InputError: the storage cannot be used.
    """
    moments = np.random.default_rng(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    tag = f"durability-{time.time_ns():x}"
    reference = storage_address(str(folder / "reference.db"), folder / "reference.db")
    _end(context, reference, folder, "reference", trials)
    wanted = held(reference, "reference")
    found = Durability(storage_address(_place(storage, folder, 0), folder).kind)
    number = 0
    while found.kills < kills:
        address = storage_address(_place(storage, folder, number), folder)
        name, before = f"{tag}-{number}", Held()
        while len(before) < trials and found.kills < kills:
            if not _killed(context, moments, address, folder, name, len(before), trials):
                break
            found.kills += 1
            advance(1)
            before = _judge(found, address, name, before, wanted)
        _end(context, address, folder, name, trials)
        found.studies += 1
        if held(address, name) != wanted:
            found.differing_ends += 1
        _forget(address, name)
        number += 1
    return found


def _killed(
    context: Any,
    moments: np.random.Generator,
    address: StorageAddress,
    folder: Path,
    name: str,
    held_now: int,
    trials: int,
) -> bool:
    """Kills a process at a random moment; False where it ended before.

    The moment is within the evaluation or the writing of a random one of the trials that are left,
    or, one time in four, while the storage is opened or made. Progress is counted, not time: how
    fast this machine is at the moment does not matter.
    """
    told = context.Value("i", NOT_BEGUN)
    process = context.Process(target=_work, args=(address, folder, name, trials, told))
    target = OPENING if moments.random() < 0.25 else int(moments.integers(held_now, trials))
    process.start()
    changed, interval_s, seen = time.monotonic(), 0.0, told.value
    while process.exitcode is None and told.value < target:
        if told.value != seen:
            seen, now = told.value, time.monotonic()
            changed, interval_s = now, max(interval_s, now - changed) if seen > held_now else 0.0
        time.sleep(POLL_S)
    process.join(timeout=float(moments.uniform(0.0, max(interval_s, SHORTEST_S))))
    if process.exitcode is not None:
        return False
    process.kill()
    process.join()
    return True


def _place(storage: str, folder: Path, number: int) -> str:
    """The storage of a study: a file of its own, or the database."""
    suffix = {"sqlite": "db", "journal": "journal"}.get(storage)
    return str(folder / f"{number}.{suffix}") if suffix else storage


def durability_job(name: str, axes: Mapping[str, Any] = AXES) -> Job:
    """A small job of a study of this name, with these values of its axes."""
    from studies import api
    from studies.api import job_of_workload

    workload = api.workload("llama3.1-8b", seq_len=4096, global_batch_size=64)
    job = job_of_workload(workload, "2x8xMI300X", {"tp": "2", "pp": "2", "mbs": "1"}, axes)
    return replace(job, experiment=replace(job.experiment, name=name))


def _work(address: StorageAddress, folder: Path, name: str, trials: int, told: Any = None) -> None:
    """The process that is killed; ``told`` is what it says of where it is."""
    from studies.training import StudyOptions, run_study

    @contextmanager
    def progress(text: str, _total: int | None) -> Iterator[Callable[[int], None]]:
        def advance(steps: int) -> None:
            if text == "trials" and told is not None:
                told.value = max(told.value, 0) + steps

        yield advance
        if told is not None and told.value == NOT_BEGUN:
            told.value = OPENING  # the space is ranked; the storage comes next

    options = StudyOptions(out=folder / "out", storage=address.url, trials=trials)
    run_study(durability_job(name), options, progress)


def _end(context: Any, address: StorageAddress, folder: Path, name: str, trials: int) -> float:
    """Runs or resumes a study to its end; gives the seconds that took.

    Raises:
        InputError: it does not end, or not well.
    """
    started = time.monotonic()
    process = context.Process(target=_work, args=(address, folder, name, trials))
    process.start()
    process.join(timeout=ALLOWED_S)
    if process.exitcode != 0:
        process.kill()
        raise InputError(
            f"the study {name} on {address.shown} cannot be run to its end "
            f"(exit code {process.exitcode})."
        )
    return time.monotonic() - started


def held(address: StorageAddress, name: str) -> Held:
    """What the storage holds of a study; nothing where it has not been made yet."""
    import optuna

    storage = open_storage(address)
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return []
    trials = study.get_trials(deepcopy=False)
    return [(t.user_attrs["config_key"], t.state.name, t.value) for t in trials]


def _judge(
    found: Durability, address: StorageAddress, name: str, before: Held, wanted: Held
) -> Held:
    """Notes what a kill did; gives what the storage holds now."""
    started = time.monotonic()
    try:
        now = held(address, name)
    except InputError as error:
        found.would_not_open += 1
        found.problems.append(str(error))
        return before
    found.open_s = max(found.open_s, time.monotonic() - started)
    found.while_writing += len(before) < len(now) < len(wanted)
    found.lost += len(set(before) - set(now))
    found.doubled += len(now) - len({key for key, _, _ in now})
    found.changed += sum(a != b for a, b in zip(now, wanted, strict=False))
    return now


def _forget(address: StorageAddress, name: str) -> None:
    """Deletes a study from a database; files stay for whoever wants to look."""
    import optuna

    if address.kind == "server":
        optuna.delete_study(study_name=name, storage=open_storage(address))
