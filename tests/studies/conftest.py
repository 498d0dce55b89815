"""A study that ranks in a blink, and the command line run inside this process."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from studies.cli.main import call
from tests.nursery import python_with
from tests.studies.postgres import Postgres, binaries
from tests.warm import LANGUAGE_MODELS

SMALL_STUDY = """\
name: small
model: llama3.1-8b
seq_len: 4096
global_batch_size: 64
cluster: 2x8xMI300X
stack: {framework: Primus}
baseline: {tp: 2, pp: 2, mbs: 1, sharding: zero1}
axes:
  tp: [1, 2, 4]
  pp: [1, 2, 4]
  cp: 1
  mbs: [1, 2, 4]
  vpp: [1, 2]
  schedule: [1f1b, interleaved, zbv]
  recompute: [none, selective, full]
  recompute_layers: [0, 1, 4]
  precision: [bf16]
  sharding: [zero1, none]
  overlap: [none, dp]
trials: 16
"""


@pytest.fixture
def small_study(tmp_path: Path) -> Path:
    """The file of a small study."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL_STUDY)
    return path


@dataclass(frozen=True)
class Tuned:
    """A small study that is done: its file, the folder of its results, and the JSON of ``tune``."""

    study: Path
    out: Path
    result: Any

    def copied(self, folder: Path) -> Path:
        """A copy of the folder of results, to go on with."""
        return shutil.copytree(self.out, folder)


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """The small study after ``tune``; tests read it or go on with a copy."""
    folder = tmp_path_factory.mktemp("tuned")
    study, out = folder / "small.yaml", folder / "out"
    study.write_text(SMALL_STUDY)
    return Tuned(study, out, json_of("tune", study, "--out", out))


def json_of(*arguments: object) -> Any:
    """The JSON of a command that works; for fixtures that several tests share."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert call([*map(str, arguments), "--json"]) == 0
    return json.loads(printed.getvalue())


@dataclass(frozen=True)
class Ran:
    """What a command printed and returned."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out)


@pytest.fixture
def foretune(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs a command line and returns its exit code, stdout and stderr."""

    def run(*arguments: object) -> Ran:
        code = call([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def warm_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that talk to a model start without importing anything."""
    monkeypatch.setattr(sys, "executable", python_with(LANGUAGE_MODELS))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server of its own for each test process."""
    pytest.importorskip("psycopg2", reason="pip install 'foretune[postgres]'")
    found = binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with tempfile.TemporaryDirectory(prefix="foretune-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder) / "server", found)
        server.create()
        yield server
        server.stop()
