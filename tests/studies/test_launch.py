"""Asked runs that are launched for real, with a training script that only prints."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from search.space import Space
from studies.file_lock import FileLock
from studies.inputs import resolve
from studies.real_runs import RealRuns
from studies.storage import storage_address
from tests.collectors.launchers.fake_slurm import install
from tests.nursery import Nursery
from tests.studies.conftest import SMALL_STUDY, Ran

Command = Callable[..., Ran]
TRAIN = """\
#!/usr/bin/env bash
steps() {
  for i in $(seq 9); do
    echo " iteration $i/ 9 | elapsed time per iteration (ms): 2000.0 | global batch size: 64 |"
  done
}
case "$(basename "$PWD")" in
  # Megatron prints the iterations on its last rank.
  run_0) [ "$NODE_RANK" != "$((NNODES - 1))" ] || steps ;;
  run_1) echo 'torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB'; exit 1 ;;
  run_2) echo 'NCCL error'; exit 3 ;;
  *) sleep 600 ;;
esac
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    """The command that trains."""
    path = tmp_path / "train.sh"
    path.write_text(TRAIN)
    return f"bash {path}"


def _study(tmp_path: Path, nodes: int) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL_STUDY.replace("2x8xMI300X", f"{nodes}x8xMI300X"))
    return path


def _ask(study: Path, out: Path, count: int) -> None:
    """Asks for the first configs of the space, without weighing which are worth it."""
    job = resolve(str(study))
    space = Space.of(job.experiment, job.cluster)
    runs = RealRuns.open(job, storage_address(None, out / "foretune.db"), "small")
    for row in range(count):
        runs.ask(space.core.config(row), "a test", {"run_s": 300.0})


@pytest.mark.parametrize("place", ["slurm", "local"])
def test_runs_are_launched_watched_and_told(
    place: str, tmp_path: Path, train: str, foretune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = 2 if place == "slurm" else 1
    commands = install(tmp_path / "cluster")
    monkeypatch.setenv("PATH", f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    study, out = _study(tmp_path, nodes), tmp_path / "out"
    shared = (study, "--out", out, "--json")
    _ask(study, out, 4)

    written = foretune("launch", *shared, "--on", place, "--write-only", "--command", train)
    assert written.code == 0, written.err
    assert len(written.json["files"]) == 4
    assert all(Path(path).is_file() for path in written.json["files"])

    ran = foretune("launch", *shared, "--on", place, "--command", train, "--time-limit", "3s")
    assert ran.code == 0, ran.err
    ends = {run["run"]: run for run in ran.json["runs"]}
    assert {number: run["ending"] for number, run in ends.items()} == {
        0: "finished",
        1: "out of memory",
        2: "crashed",
        3: "timed out",
    }
    assert all(Path(run["log"]).is_file() for run in ends.values())
    # 64 sequences of 4096 tokens in 2 s on all GPUs.
    assert f"{64 * 4096 / 2 / (8 * nodes):g} tokens/s/GPU" in ends[0]["told"]

    again = foretune("launch", *shared, "--on", place)
    assert again.code == 2
    assert "no run waits" in again.err
    table = (out / "small" / "measured" / "run_0" / "measure.sh").read_text()
    assert "foretune tell" in table


def test_what_cannot_start_says_nothing_of_the_config(tmp_path: Path, foretune: Command) -> None:
    study, out = _study(tmp_path, 1), tmp_path / "out"
    shared = (study, "--out", out, "--json")
    _ask(study, out, 1)
    for _ in range(2):
        ran = foretune("launch", *shared, "--on", "local", "--command", "no_such_program --x")
        assert ran.code == 0, ran.err
        assert "nothing is told of run 0: the command was not found" in ran.json["runs"][0]["told"]
    # A result that a killed foretune did not tell is told, not measured again.
    folder = out / "small" / "measured" / "run_0"
    (folder / "result.json").write_text(
        '{"schema_version": 1, "run": 0, "study": "small/measured", "exit_code": 0,'
        ' "out_of_memory": false, "step_time_s": 2.0, "tokens_per_s_per_gpu": 7000.0, "log": ""}'
    )
    ran = foretune("launch", *shared, "--on", "local", "--command", "no_such_program")
    assert "7000 tokens/s/GPU" in ran.json["runs"][0]["told"]


def _killed_in_run(command: tuple[object, ...], folder: Path, begun: str, nursery: Nursery) -> None:
    """Runs ``foretune launch`` and kills it with -9 as soon as the file is in the folder."""
    process = nursery.start("-m", "foretune", *map(str, command))
    deadline = time.monotonic() + 240
    while not (folder / begun).exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (folder / begun).exists()


ONE_AT_A_TIME = """\
mkdir "$PWD/alone" || { echo two at once; exit 9; }
trap 'rmdir "$PWD/alone"' EXIT
echo "$NODE_RANK" >> starts
touch begun
while [ ! -e go ]; do sleep 0.05; done
for i in $(seq 9); do
  echo " iteration $i/ 9 | elapsed time per iteration (ms): 2000.0 | global batch size: 64 |"
done
"""


@pytest.mark.parametrize("place", ["slurm", "local"])
def test_a_killed_launch_takes_its_run_up_again(
    place: str,
    tmp_path: Path,
    foretune: Command,
    monkeypatch: pytest.MonkeyPatch,
    nursery: Nursery,
) -> None:
    commands = install(tmp_path / "cluster")
    monkeypatch.setenv("PATH", f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    study, out = _study(tmp_path, 1), tmp_path / "out"
    _ask(study, out, 1)
    train = tmp_path / "train.sh"
    train.write_text(ONE_AT_A_TIME)
    command = ("launch", study, "--out", out, "--on", place, "--command", f"bash {train}", "--json")
    folder = out / "small" / "measured" / "run_0"
    _killed_in_run(command, folder, "begun", nursery)
    (folder / "go").touch()
    ran = foretune(*command)
    assert ran.code == 0, ran.err
    assert [run["ending"] for run in ran.json["runs"]] == ["finished"]
    assert "tokens/s/GPU" in ran.json["runs"][0]["told"]
    if place == "slurm":
        assert len((folder / "starts").read_text().splitlines()) == 1
        assert len(list((tmp_path / "cluster" / "jobs").glob("*.json"))) == 1
    assert "no run waits" in foretune(*command).err


def test_two_launches_at_once_are_one_too_many(tmp_path: Path, foretune: Command) -> None:
    study, out = _study(tmp_path, 1), tmp_path / "out"
    _ask(study, out, 1)
    with FileLock(out / "small" / "measured" / ".launch"):
        ran = foretune("launch", study, "--out", out, "--on", "local", "--command", "true")
    assert ran.code == 2
    assert "another foretune launch" in ran.err


def test_what_ended_while_nobody_looked_is_told_and_not_submitted_again(
    tmp_path: Path, foretune: Command, monkeypatch: pytest.MonkeyPatch, nursery: Nursery
) -> None:
    commands = install(tmp_path / "cluster")
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    study, out = _study(tmp_path, 1), tmp_path / "out"
    _ask(study, out, 1)
    command = ("launch", study, "--out", out, "--on", "slurm", "--json")
    command += ("--command", "bash -c 'touch begun; sleep 600'", "--time-limit", "2s")
    _killed_in_run(command, out / "small" / "measured" / "run_0", "begun", nursery)
    (job,) = (tmp_path / "cluster" / "jobs").glob("*.json")
    deadline = time.monotonic() + 30
    while "TIMEOUT" not in job.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    ran = foretune(*command)
    assert ran.code == 0, ran.err
    assert [run["ending"] for run in ran.json["runs"]] == ["timed out"]
    assert len(list(job.parent.glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--on", "moon"), "local, slurm"),
        (("--on", "local", "--sbatch", "partition=x"), "--on slurm"),
        (("--on", "slurm", "--sbatch", "partition"), "axis=value"),
        (("--on", "local"), "begin with foretune ask"),
    ],
)
def test_bad_input(
    arguments: tuple[str, ...], words: str, tmp_path: Path, foretune: Command
) -> None:
    ran = foretune("launch", _study(tmp_path, 1), "--out", tmp_path / "out", *arguments)
    assert ran.code == 2
    assert words in ran.err


def test_one_machine_is_not_two_nodes(tmp_path: Path, foretune: Command) -> None:
    study = _study(tmp_path, 2)
    _ask(study, tmp_path / "out", 1)
    ran = foretune("launch", study, "--out", tmp_path / "out", "--on", "local")
    assert ran.code == 2
    assert "2 nodes" in ran.err
