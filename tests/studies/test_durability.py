"""Storages that are killed, full, read-only or out of time: one sentence, and an intact study."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from studies.durability import measure_durability
from studies.storage import open_storage, storage_address
from tests.nursery import Nursery
from tests.studies.conftest import Ran

ROOT = Path(__file__).parents[2]
Command = Callable[..., Ran]


@pytest.mark.parametrize("kind", ["sqlite", "journal", "postgres"])
def test_kills_at_random_moments_lose_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = kind
    if kind == "postgres":
        place = request.getfixturevalue("postgres").database("killed_often")
    found = measure_durability(place, tmp_path, kills=3, seed=1, trials=8)
    assert found.kills >= 3
    assert found.studies >= 1
    assert found.is_clean, found.as_json()


class _Mounts:
    """Mounts of this test, undone at its end."""

    def __init__(self) -> None:
        self._made: list[Path] = []

    def mount(self, source: str, path: Path, *options: str) -> None:
        done = subprocess.run(
            ["mount", *options, source, str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"this user cannot mount: {done.stderr.strip()}")
        self._made.append(path)

    def undo(self) -> None:
        while self._made:
            subprocess.run(["umount", "-l", str(self._made.pop())], check=True)


@pytest.fixture
def mounts() -> Iterator[_Mounts]:
    """Mounts file systems where this user may; the test is skipped elsewhere."""
    made = _Mounts()
    yield made
    made.undo()


def _one_sentence(ran: Ran) -> str:
    assert ran.code == 2, ran.err
    assert "Traceback" not in ran.err
    (line,) = [line for line in ran.err.splitlines() if line.startswith("foretune: ")]
    return line


def _count(storage: Path) -> int:
    opened = open_storage(storage_address(str(storage), storage))
    return sum(len(opened.get_all_trials(s._study_id)) for s in opened.get_all_studies())


@pytest.mark.parametrize("name", ["a.db", "a.journal"])
def test_a_full_disk_is_one_sentence_and_the_study_goes_on(
    name: str, small_study: Path, tmp_path: Path, foretune: Command, mounts: _Mounts
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounts.mount("none", disk, "-t", "tmpfs", "-o", "size=1m")
    storage, filler = disk / name, disk / "filler"
    tune = ("tune", small_study, "--out", tmp_path / "out", "--storage", storage, "--json")
    assert foretune(*tune, "--trials", "3").code == 0
    before = _count(storage)
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    line = _one_sentence(foretune(*tune))
    assert "full" in line or "No space left" in line, line
    filler.unlink()
    assert _count(storage) >= before, "nothing is lost"
    ran = foretune(*tune)
    assert ran.code == 0, ran.err
    assert ran.json["trials"] == 16


@pytest.mark.parametrize("name", ["a.db", "a.journal"])
def test_a_read_only_folder_is_one_sentence_and_the_study_is_intact(
    name: str, small_study: Path, tmp_path: Path, foretune: Command, mounts: _Mounts
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    storage = folder / name
    tune = ("tune", small_study, "--out", tmp_path / "out", "--storage", storage, "--json")
    assert foretune(*tune, "--trials", "3").code == 0
    held = storage.read_bytes()
    mounts.mount(str(folder), folder, "--bind")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
    line = _one_sentence(foretune(*tune))
    assert "cannot be written" in line
    assert str(folder) in line
    assert storage.read_bytes() == held
    mounts.undo()
    assert foretune(*tune).json["trials"] == 16


def test_results_that_cannot_be_written_are_one_sentence(
    small_study: Path, tmp_path: Path, foretune: Command, mounts: _Mounts
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    mounts.mount("none", out, "-t", "tmpfs", "-o", "size=16k")
    storage = tmp_path / "a.db"
    line = _one_sentence(foretune("tune", small_study, "--out", out, "--storage", storage))
    assert "No space left" in line
    assert _count(storage) == 16


CLOCK = """\
import sys, time, datetime
import optuna.storages._rdb.storage as rdb
from studies.cli.main import call

class SetBack(datetime.datetime):
    calls = 0

    @classmethod
    def now(cls, tz=None):
        # A clock that somebody sets back by a day after every answer.
        SetBack.calls += 1
        return datetime.datetime(2026, 11, 30, tzinfo=tz) - datetime.timedelta(days=SetBack.calls)

import optuna.trial._trial, optuna.trial._frozen
for module in list(sys.modules.values()):
    if getattr(module, "datetime", None) is datetime.datetime:
        module.datetime = SetBack
start = time.time()
ticks = iter(range(10**9))
time.time = lambda: start - 3600.0 * next(ticks)
sys.exit(call(sys.argv[1:]))
"""


def test_a_clock_that_is_set_back_changes_no_result(
    small_study: Path, tmp_path: Path, foretune: Command, nursery: Nursery
) -> None:
    storage, whole = tmp_path / "a.db", tmp_path / "whole.db"
    command = ["tune", str(small_study), "--out", str(tmp_path / "out"), "--storage", str(storage)]
    for trials in ("6", "16"):
        process = nursery.start("-c", CLOCK, *command, "--trials", trials, "--json")
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
    found = json.loads(printed)
    ran = foretune("tune", small_study, "--out", tmp_path / "w", "--storage", whole, "--json")
    assert found["trials"] == ran.json["trials"] == 16
    assert found["best"]["config"] == ran.json["best"]["config"]
