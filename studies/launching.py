"""Carries asked runs to a launcher, watches them and tells the study what came back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from collectors.launchers.endings import CANNOT_START
from collectors.launchers.launch import Ended, Ending, Launch, Launcher
from collectors.launchers.local import Local
from collectors.launchers.watching import POLL_S, run, watch
from specs.errors import InputError
from studies.file_lock import FileLock
from studies.files import name_from
from studies.real_runs import AskedRun, Outcome, RealRuns
from studies.run_requests import write_run_files
from studies.run_results import read_result
from studies.storage import StorageAddress
from studies.turns import TELLING_S, only_driver

SLACK = 2.0
"""A run may take this many times what is expected of it before it is stopped (assumed)."""
SHORTEST_LIMIT_S = 600.0
"""Loading a container and compiling kernels may take minutes, whatever the steps take (assumed)."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How runs are launched.

    Attributes:
        folder: of the runs' folders.
        command: what ``measure.sh`` runs in place of ``launch.sh``; empty for that.
        workdir: where it runs; the run's folder without it.
        time_limit_s: of each run; twice what is expected without it.
        poll_s: pause between two looks.
    """

    folder: Path
    command: tuple[str, ...] = ()
    workdir: Path | None = None
    time_limit_s: float | None = None
    poll_s: float = POLL_S


@dataclass(frozen=True)
class Launched:
    """What became of a run; ``told`` says what the study made of it."""

    run: int
    ending: str
    reason: str
    told: str
    log: Path

    def as_json(self) -> dict[str, Any]:
        """The run as JSON."""
        return {
            "run": self.run,
            "ending": self.ending,
            "reason": self.reason,
            "told": self.told,
            "log": str(self.log),
        }


def outstanding(runs: RealRuns, numbers: Sequence[int]) -> list[AskedRun]:
    """The asked runs of which nothing was told; only those with these numbers, if any are given.

    Raises:
        InputError: there is none, or one of the numbers is none of them.
    """
    waiting = {asked.number: asked for asked in runs.runs() if asked.state == "running"}
    for number in numbers:
        if number not in waiting:
            raise InputError(f"run {number} is not waiting to be run; these are: {list(waiting)}.")
    if not waiting:
        raise InputError("no run waits to be run; begin with foretune ask.")
    return [waiting[number] for number in numbers] if numbers else list(waiting.values())


def launch_of(runs: RealRuns, asked: AskedRun, options: LaunchOptions) -> Launch:
    """What is to be launched for a run; writes its files where they are missing."""
    folder = (options.folder / f"run_{asked.number}").absolute()
    measure = folder / "measure.sh"
    if not measure.is_file():
        write_run_files(runs, asked.number, asked.config, folder)
    expected_s = float(asked.expected.get("run_s", 0.0))
    limit_s = options.time_limit_s or max(SLACK * expected_s, SHORTEST_LIMIT_S)
    return Launch(
        name=name_from(f"{runs.name}-{asked.number}"),
        folder=folder,
        command=("bash", str(measure), *options.command),
        nodes=runs.job.cluster.num_nodes,
        gpus_per_node=runs.job.cluster.gpus_per_node,
        time_limit_s=limit_s,
        workdir=options.workdir,
    )


def launch_runs(
    runs: RealRuns,
    asked: Sequence[AskedRun],
    launcher: Launcher,
    options: LaunchOptions,
    address: StorageAddress,
) -> Iterator[Launched]:
    """Launches runs, tells the study of each as it ends, and yields what came of it.

    This machine takes one run at a time; a scheduler is given all of them at once. A run whose
    result file is there already is told without being run again.

    Raises:
        InputError: another process launches these runs now, one cannot be started, or the storage
            cannot be written.
    """
    with _alone(options.folder):
        launches = {launch.name: launch for launch in (launch_of(runs, a, options) for a in asked)}
        numbers = {name: run.number for name, run in zip(launches, asked, strict=True)}
        done = [
            (
                launch,
                Ended(Ending.FINISHED, 0, 0.0, launch.folder / "run.0.log", "it was run before."),
            )
            for launch in launches.values()
            if result_file(launch.folder)
        ]
        ready = {launch.name for launch, _ in done}
        left = [launch for name, launch in launches.items() if name not in ready]
        for launch, end in chain(done, _ends(launcher, left, options.poll_s)):
            told = tell(runs, numbers[launch.name], launch, end, address)
            launcher.forget(launch)
            yield told


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lets one process at a time launch runs of a folder.

    Raises:
        InputError: another one does.
    """
    lock = FileLock(folder / ".launch")
    if not lock.acquire(wait=False):
        raise InputError(f"another foretune launch works on {folder}; wait for it or stop it.")
    try:
        yield
    finally:
        lock.release()


def _ends(
    launcher: Launcher, launches: Sequence[Launch], poll_s: float
) -> Iterator[tuple[Launch, Ended]]:
    if isinstance(launcher, Local):
        for launch in launches:
            yield launch, run(launcher, launch, poll_s)
        return
    for launch in launches:
        launcher.write(launch)
    yield from watch(launcher, [(launch, launcher.start(launch)) for launch in launches], poll_s)


def tell(
    runs: RealRuns, number: int, launch: Launch, end: Ended, address: StorageAddress
) -> Launched:
    """Tells the study how a run ended, as far as that says something of its config."""
    try:
        outcome, why_not = outcome_of(runs, number, launch, end)
    except InputError as error:
        outcome, why_not = None, str(error)
    if outcome is None:
        for path in launch.folder.glob("result*.json"):
            path.unlink()  # it says nothing, and a result that is there is never run again
        words = f"nothing is told of run {number}: {why_not}"
        return Launched(number, end.ending.value, end.reason, words, end.log)
    with only_driver(address, launch.folder, runs.name, TELLING_S):
        words = runs.tell(number, outcome)
    return Launched(number, end.ending.value, end.reason, words, end.log)


def outcome_of(
    runs: RealRuns, number: int, launch: Launch, end: Ended
) -> tuple[Outcome | None, str]:
    """What a run says of its config; None and why where it says nothing.

    Raises:
        InputError: its result file cannot be used.
    """
    if end.ending is Ending.OUT_OF_MEMORY:
        return Outcome(out_of_memory=True, source=end.log.name), ""
    if end.ending is Ending.LOST:
        return Outcome(lost=True, source=end.log.name), ""
    if end.ending is Ending.TIMED_OUT:
        return Outcome(crash=f"timed out after {launch.time_limit_s:.0f} s"), ""
    if end.exit_code in CANNOT_START:
        return None, f"{CANNOT_START[end.exit_code]}, see {end.log}; mend it and launch it again."
    result = result_file(launch.folder)
    if result is not None:
        configs = {asked.number: asked.config for asked in runs.runs()}
        return read_result(runs.job, runs.name, result, number, configs)[1], ""
    if end.ending is Ending.CRASHED:
        return Outcome(crash=end.reason, source=end.log.name), ""
    return None, f"it ended well but left no result, see {end.log}."


def result_file(folder: Path) -> Path | None:
    """The result of the node that printed the iterations; else of node 0; None without any."""
    found = sorted(folder.glob("result*.json"))
    for path in found:
        try:
            content = json.loads(path.read_bytes())
        except ValueError:
            continue  # read_result says what is wrong with it
        if isinstance(content, dict) and content.get("tokens_per_s_per_gpu") is not None:
            return path
    return found[0] if found else None
