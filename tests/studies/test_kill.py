"""A study that is killed with SIGKILL, again and again, ends with every trial once."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import optuna
import pytest

from studies.storage import open_storage, storage_address
from tests.nursery import Nursery, Process
from tests.studies.conftest import Tuned

KILLS = 5
DEADLINE_S = 120


def _start(nursery: Nursery, study: Path, out: Path, storage: Path) -> Process:
    where = ("--out", str(out), "--storage", str(storage))
    return nursery.start("-m", "foretune", "tune", str(study), "--json", *where)


def _grown(storage: Path) -> int:
    """Bytes of the storage and what SQLite keeps beside it."""
    beside = storage.parent.glob(f"{storage.name}*")
    return sum(path.stat().st_size for path in beside if path.exists())


def _wait_for_growth(process: Process, storage: Path, steps: int) -> None:
    """Waits until the storage has been written ``steps`` times, or the process has ended."""
    deadline, seen = time.monotonic() + DEADLINE_S, _grown(storage)
    while steps and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
        now = _grown(storage)
        steps -= now != seen
        seen = now


@pytest.mark.parametrize("name", ["trials.db", "trials.journal"])
def test_killed_studies_resume_with_nothing_lost_or_doubled(
    name: str, small_study: Path, tmp_path: Path, nursery: Nursery, tuned: Tuned
) -> None:
    storage, out = tmp_path / name, tmp_path / "out"
    counts: list[int] = []
    for kill in range(KILLS):
        process = _start(nursery, small_study, out, storage)
        # The first kill lands while the storage is being created, later ones between trials.
        _wait_for_growth(process, storage, 1 + 6 * kill)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        counts.append(_trials(storage))
    assert counts == sorted(counts), "no trial is lost"
    assert counts[0] < 16, "the first kill came before the end"
    print("trials after each kill:", counts)

    process = _start(nursery, small_study, out, storage)
    printed, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, errors
    result = json.loads(printed)
    assert result["trials"] == 16
    study = optuna.load_study(study_name="small", storage=_storage(storage))
    keys = [trial.user_attrs["config_key"] for trial in study.trials]
    assert len(keys) == len(set(keys)) == 16
    assert all(trial.state is optuna.trial.TrialState.COMPLETE for trial in study.trials)
    assert all(set(trial.constraints) == {"memory_gib"} for trial in study.trials)

    undisturbed = optuna.load_study(study_name="small", storage=tuned.result["storage"])
    assert [trial.params for trial in undisturbed.trials] == [
        trial.params for trial in study.trials
    ]
    values = [trial.value for trial in undisturbed.trials]
    assert [trial.value for trial in study.trials] == pytest.approx(values, rel=1e-9)


def _storage(path: Path) -> optuna.storages.BaseStorage:
    return open_storage(storage_address(str(path), path))


def _trials(path: Path) -> int:
    """Complete trials in the storage; opening it must always work."""
    storage = _storage(path)
    return sum(len(storage.get_all_trials(s._study_id)) for s in storage.get_all_studies())
