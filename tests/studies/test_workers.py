"""Many workers on one study: killed, cut off, without their database, and told twice."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from search.space import Space
from specs.errors import InputError
from studies.client_bench import measure_clients
from studies.inputs import resolve
from studies.queue import LATE, Leases, Queue
from studies.real_runs import Outcome, RealRuns
from studies.storage import open_storage, storage_address
from studies.training import StudyOptions, run_study
from studies.turns import TELLING_S, only_driver
from tests.nursery import Nursery, Process
from tests.studies.conftest import SMALL_STUDY, Ran
from tests.studies.postgres import PASSWORD, Postgres, Wire
from tests.studies.slow_worker import BEGUN

DEADLINE_S = 90
TRIALS = 8
STUDY = SMALL_STUDY.replace("trials: 16", f"trials: {TRIALS}")
Command = Callable[..., Ran]


def _study(storage: str) -> optuna.Study:
    opened = open_storage(storage_address(storage, Path("foretune.db")))
    return optuna.load_study(study_name="small", storage=opened)


def _values(storage: str) -> list[tuple[dict[str, Any], float | None]]:
    """What a study holds: config and value of each trial, in order."""
    return [(trial.params, trial.value) for trial in _study(storage).trials]


def _same(found: list[Any], wanted: list[Any]) -> bool:
    """Whether two studies hold the same configs with the same values."""
    values = pytest.approx([value for _, value in wanted], rel=1e-9)
    return [config for config, _ in found] == [config for config, _ in wanted] and [
        value for _, value in found
    ] == values


@pytest.fixture
def small_study(tmp_path: Path) -> Path:
    """A study of few trials: every test starts several processes."""
    path = tmp_path / "small.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the study holds when nothing disturbs it and one process evaluates it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(STUDY)
    storage = str(folder / "whole.db")
    options = StudyOptions(out=folder, storage=storage)
    run_study(resolve(str(folder / "small.yaml")), options)
    return _values(storage)


def _driver(nursery: Nursery, study: Path, out: Path, storage: str, lease: str) -> Process:
    options = ("--out", str(out), "--storage", storage, "--workers", "0", "--lease", lease)
    return nursery.start("-m", "foretune", "tune", str(study), *options, "--json")


def _worker(nursery: Nursery, storage: str, seconds: float) -> Process:
    command = ("tests/studies/slow_worker.py", "small", str(seconds))
    return nursery.start(*command, FORETUNE_STORAGE=storage)


def _said(process: Process) -> str:
    """What a process wrote, once it has ended."""
    return "".join(process.communicate(timeout=DEADLINE_S))


@contextmanager
def _ended(*processes: Process) -> Iterator[None]:
    """Makes sure that no process outlives the test."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _wait(condition: Callable[[], Any]) -> Any:
    """What the condition gives as soon as it gives something."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if found := condition():
                return found
        except (InputError, KeyError):
            pass  # the study, or its database, is not there yet
        time.sleep(0.05)
    raise AssertionError("nothing happened in time")


def _with(storage: str, process: Process) -> list[FrozenTrial]:
    """The trials that a worker has now."""
    running = [t for t in _study(storage).trials if t.state is TrialState.RUNNING]
    return [t for t in running if f":{process.pid}:" in t.user_attrs.get("worker", "")]


def _check(driver: Process, storage: str, whole: list[Any]) -> str:
    """The driver ends well and the study is what an undisturbed one is; gives what it printed."""
    printed = _said(driver)
    assert driver.returncode == 0, printed
    assert PASSWORD not in printed
    assert _same(_values(storage), whole)
    assert all(trial.state is TrialState.COMPLETE for trial in _study(storage).trials)
    return printed


@pytest.mark.parametrize("kind", ["postgres", "trials.db", "trials.journal"])
def test_workers_do_what_one_process_does(
    kind: str,
    small_study: Path,
    tmp_path: Path,
    foretune: Command,
    whole: list[Any],
    request: pytest.FixtureRequest,
    nursery: Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", nursery.python())  # workers import nothing
    storage, out = str(tmp_path / kind), tmp_path / "out"
    if kind == "postgres":
        storage = request.getfixturevalue("postgres").database("shared")
    options = ("--out", out, "--storage", storage, "--workers", "2", "--json")
    ran = foretune("tune", small_study, *options)
    assert ran.code == 0, ran.err
    assert ran.json["trials"] == TRIALS
    assert _same(_values(storage), whole)
    trials = _study(storage).trials
    assert all(trial.state is TrialState.COMPLETE for trial in trials)
    assert all(set(trial.constraints) == {"memory_gib"} for trial in trials)
    assert all(trial.user_attrs["worker"] for trial in trials)
    again = foretune("tune", small_study, *options)
    assert again.code == 0
    assert _same(_values(storage), whole)
    texts = [path.read_text(errors="replace") for path in out.rglob("*") if path.is_file()]
    texts += [ran.out, ran.err, json.dumps(_study(storage).user_attrs)]
    assert not any(PASSWORD in text for text in texts)


def test_a_killed_worker_loses_nothing(
    postgres: Postgres, small_study: Path, tmp_path: Path, whole: list[Any], nursery: Nursery
) -> None:
    storage = postgres.database("killed")
    driver = _driver(nursery, small_study, tmp_path / "out", storage, "2s")
    doomed = _worker(nursery, storage, 600)
    with _ended(driver, doomed):
        (held,) = _wait(lambda: _with(storage, doomed))
        doomed.send_signal(signal.SIGKILL)
        heir = _worker(nursery, storage, 0.05)
        with _ended(heir):
            printed = _check(driver, storage, whole)
    assert f"trial {held.number} is queued again" in printed
    assert _study(storage).trials[held.number].user_attrs["requeued"] == 1


def test_a_worker_that_is_asked_to_stop_gives_its_trial_back(
    postgres: Postgres, small_study: Path, tmp_path: Path, whole: list[Any], nursery: Nursery
) -> None:
    storage = postgres.database("stopped")
    driver = _driver(nursery, small_study, tmp_path / "out", storage, "10m")
    doomed = _worker(nursery, storage, 600)
    with _ended(driver, doomed):
        # Not before: what is stopped between claiming and evaluating leaves its trial to the lease.
        _wait(lambda: BEGUN in doomed.written()[0])
        doomed.send_signal(signal.SIGINT)
        heir = _worker(nursery, storage, 0)
        with _ended(heir):
            _check(driver, storage, whole)  # long before the lease ends


def test_a_restarted_database_is_waited_for(
    postgres: Postgres, small_study: Path, tmp_path: Path, whole: list[Any], nursery: Nursery
) -> None:
    storage = postgres.database("restarted")
    # The answer to a claim may be lost with the database: that trial waits for its lease to end.
    driver = _driver(nursery, small_study, tmp_path / "out", storage, "10s")
    # Slow enough that the study is not complete when the database goes for the second time.
    workers = [_worker(nursery, storage, 0.6) for _ in range(2)]
    with _ended(driver, *workers):
        for told in (1, 3):
            _wait(lambda told=told: len(_complete(storage)) >= told)
            postgres.stop()
            time.sleep(0.5)
            postgres.start()
        _check(driver, storage, whole)
        said = [_said(worker) for worker in workers]
    assert all("the study is complete" in words for words in said), said


def _complete(storage: str) -> list[FrozenTrial]:
    return [t for t in _study(storage).trials if t.state is TrialState.COMPLETE]


def test_a_worker_that_was_cut_off_and_taken_for_dead_may_still_tell(
    postgres: Postgres, small_study: Path, tmp_path: Path, whole: list[Any], nursery: Nursery
) -> None:
    storage = postgres.database("cut")
    wire = Wire(postgres.port)
    wire.mend()
    driver = _driver(nursery, small_study, tmp_path / "out", storage, "2s")
    far = _worker(nursery, postgres.url("cut", wire.port), 2)
    with _ended(driver, far):
        # Not before: the answer to its claim may be cut off, and then it knows of no trial.
        _wait(lambda: BEGUN in far.written()[0])
        (held,) = _with(storage, far)
        wire.cut()
        near = _worker(nursery, storage, 0.4)
        with _ended(near):
            _wait(lambda: _study(storage).trials[held.number].state is TrialState.COMPLETE)
            wire.mend()
            _check(driver, storage, whole)
            said = _said(far)
    wire.cut()
    winner = _study(storage).trials[held.number].user_attrs["worker"]
    assert f":{far.pid}:" not in winner
    late = [key for key in _study(storage).user_attrs if key.startswith(LATE)]
    assert any(key.startswith(f"{LATE}{held.number} ") and f":{far.pid}:" in key for key in late)
    assert "late=1" in said


def test_one_driver_at_a_time_on_all_machines(
    postgres: Postgres,
    small_study: Path,
    tmp_path: Path,
    foretune: Command,
    whole: list[Any],
    nursery: Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("studies.training.JUST_KILLED_S", 0.2)  # the other driver lives on
    storage = postgres.database("drivers")
    driver = _driver(nursery, small_study, tmp_path / "one", storage, "60s")
    with _ended(driver):
        _wait(lambda: _study(storage).trials)
        # Another folder of results: what another machine has.
        ran = foretune("tune", small_study, "--out", tmp_path / "two", "--storage", storage)
        assert ran.code == 2
        assert "another foretune is working on the study 'small'" in ran.err
        worker = _worker(nursery, storage, 0)
        with _ended(worker):
            _check(driver, storage, whole)


def test_what_a_killed_driver_queued_is_evaluated_by_the_next_one(
    postgres: Postgres,
    small_study: Path,
    tmp_path: Path,
    foretune: Command,
    whole: list[Any],
    nursery: Nursery,
) -> None:
    storage = postgres.database("driverless")
    driver = _driver(nursery, small_study, tmp_path / "out", storage, "60s")
    with _ended(driver):
        _wait(lambda: len(_study(storage).trials) >= 2)
        driver.send_signal(signal.SIGKILL)
    ran = foretune("tune", small_study, "--out", tmp_path / "out", "--storage", storage, "--json")
    assert ran.code == 0, ran.err
    assert _same(_values(storage), whole)


def test_a_trial_that_kills_its_workers_is_given_up(
    postgres: Postgres, small_study: Path, tmp_path: Path, nursery: Nursery
) -> None:
    storage = postgres.database("poison")
    driver = _driver(nursery, small_study, tmp_path / "out", storage, "10m")
    with _ended(driver):
        _wait(lambda: _study(storage).trials)
        queue = Queue(storage_address(storage, tmp_path / "x.db"), "small")
        sentences = []
        for _ in range(4):
            task = queue.claim("host:1:abc")
            assert task is not None
            first = _study(storage).trials[task.number]
            for _ in range(4):
                sentences.append(queue.requeue(first))
                if "given up" in sentences[-1]:
                    break
                again = None
                while again is None or again.number != task.number:
                    again = queue.claim("host:1:abc")
                    assert again is not None
            break
    assert "given up" in sentences[-1]
    assert len(sentences) == 4
    trial = _study(storage).trials[task.number]
    assert trial.state is TrialState.FAIL
    assert "workers were lost" in trial.user_attrs["crash"]


def test_a_worker_of_another_release_is_refused(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    storage = tmp_path / "a.db"
    assert foretune("tune", small_study, "--out", tmp_path, "--storage", storage).code == 0
    study = _study(str(storage))
    study.set_user_attr("queue_open", True)
    study.set_user_attr("inputs", study.user_attrs["inputs"] | {"surrogate": "of-another-release"})
    ran = foretune("worker", "small", "--storage", storage)
    assert ran.code == 2
    assert "install the same release" in ran.err


def test_a_worker_without_a_study_says_so(tmp_path: Path, foretune: Command) -> None:
    storage = tmp_path / "a.db"
    ran = foretune("worker", "small", "--storage", storage)
    assert ran.code == 2
    assert "there is no storage" in ran.err
    assert not list(tmp_path.iterdir())
    open_storage(storage_address(str(storage), storage))
    ran = foretune("worker", "small", "--storage", storage, "--idle", "1s")
    assert ran.code == 2
    assert "there is no study 'small'" in ran.err
    ran = foretune("worker", "small", "--storage", "mysql://me:pw@host/x", "--idle", "1s")
    assert ran.code == 2
    assert "PostgreSQL" in ran.err
    assert "pw" not in ran.err


@pytest.mark.parametrize("oracle", ["measure", "primus"])
def test_workers_evaluate_with_the_surrogate_alone(
    oracle: str, small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    out = tmp_path / "out"
    ran = foretune("tune", small_study, "--oracle", oracle, "--workers", 2, "--out", out)
    assert (ran.code, ran.out) == (2, "")
    assert f"--oracle {oracle} evaluates with" in ran.err
    assert "leave out --workers" in ran.err
    assert not out.exists()


def test_leases_ask_no_clock_that_can_be_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("studies.queue.time.monotonic", lambda: now)
    monkeypatch.setattr("studies.queue.time.time", lambda: 0.0)

    def running(number: int, beat: str) -> FrozenTrial:
        trial = optuna.create_trial(state=TrialState.WAITING, user_attrs={"beat": beat})
        trial.number = number
        return trial

    leases = Leases(10.0)
    assert not leases.expired([running(0, "a"), running(1, "a")])
    now += 9
    assert not leases.expired([running(0, "b"), running(1, "a")])
    now += 2
    assert [trial.number for trial in leases.expired([running(0, "b"), running(1, "a")])] == [1]
    assert not leases.expired([running(0, "c"), running(1, "b")]), "it lives after all"


def test_sixteen_tells_at_once(postgres: Postgres, small_study: Path, tmp_path: Path) -> None:
    address = storage_address(postgres.database("tells"), tmp_path / "x.db")
    job = resolve(str(small_study))
    configs = Space.of(job.experiment, job.cluster).core
    runs = RealRuns.open(job, address, "small")
    numbers = [runs.ask(configs.config(row), "a test", {}) for row in range(16)]

    def tell(number: int) -> str:
        # What foretune tell does, from 16 machines; each result comes twice.
        with only_driver(address, tmp_path, "small/measured", TELLING_S):
            own = RealRuns.open(job, address, "small", create=False)
            return own.tell(number, Outcome(tokens_per_s_per_gpu=1000.0 + number))

    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(tell, [*numbers, *numbers]))
    assert len(said) == 32
    assert sum("nothing changed" in words for words in said) == 16
    told = RealRuns.open(job, address, "small", create=False).runs()
    assert [run.tokens_per_s_per_gpu for run in told] == [1000.0 + number for number in numbers]


def test_sixteen_clients_claim_and_tell_each_trial_once(postgres: Postgres, tmp_path: Path) -> None:
    address = storage_address(postgres.database("clients"), tmp_path / "x.db")
    found = measure_clients(address, clients=16, trials=32)
    assert (found.trials, found.lost, found.doubled, found.late) == (32, 0, 0, 0)
    assert found.gave_up == 0
