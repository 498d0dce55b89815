"""The launcher for this machine, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collectors.launchers.launch import Ending, Launch, torchrun
from collectors.launchers.local import Local
from collectors.launchers.processes import marked
from collectors.launchers.watching import run, watch
from specs.errors import InputError

POLL_S = 0.02


def _launch(folder: Path, script: str, **fields: object) -> Launch:
    return Launch(name="job", folder=folder, command=("bash", "-c", script), **fields)  # type: ignore[arg-type]


def _alive(process: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def _sleeps(token: str) -> bool:
    """Whether the launched command is ``sleep`` by now: a process that starts one shows no mark."""
    return any(
        Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"sleep\0")
        for process in marked(token)
    )


@pytest.mark.parametrize(
    ("script", "ending", "words"),
    [
        ("echo fine", Ending.FINISHED, "finished"),
        ("exit 3", Ending.CRASHED, "exit code 3"),
        ("kill -9 $$", Ending.CRASHED, "signal 9"),
        ("no_such_program", Ending.CRASHED, "not found"),
        (
            "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1",
            Ending.OUT_OF_MEMORY,
            "out of memory",
        ),
        ("echo 'recovered from OutOfMemoryError'; exit 0", Ending.FINISHED, "finished"),
    ],
)
def test_endings(script: str, ending: Ending, words: str, tmp_path: Path) -> None:
    end = run(Local(), _launch(tmp_path, script), POLL_S)
    assert end.ending is ending
    assert words in end.reason
    assert end.log.is_file()


def test_the_script_can_be_reviewed_and_run_by_hand(tmp_path: Path) -> None:
    launch = _launch(tmp_path, 'echo "$NNODES $NODE_RANK $A"', environment={"A": "it's 1"})
    (path,) = Local().write(launch)
    done = subprocess.run([path], capture_output=True, text=True, check=True)
    assert done.stdout == "1 0 it's 1\n"


def test_a_run_that_takes_too_long_ends_with_all_its_children(tmp_path: Path) -> None:
    # A child in a session of its own that ignores SIGTERM: what a hung worker of torchrun is.
    child = "setsid bash -c 'trap \"\" TERM; echo $$ > child; while :; do sleep 0.1; done' & wait"
    launcher = Local(grace_s=0.2)
    launch = _launch(tmp_path, child, time_limit_s=1.0)
    end = run(launcher, launch, POLL_S)
    assert end.ending is Ending.TIMED_OUT
    assert "stopped after its 1 s" in end.reason
    assert not _alive(int((tmp_path / "child").read_text()))


def test_what_outlives_the_command_is_ended_with_it(tmp_path: Path) -> None:
    end = run(Local(), _launch(tmp_path, "setsid sleep 600 & echo $! > child"), POLL_S)
    assert end.ending is Ending.FINISHED
    assert not _alive(int((tmp_path / "child").read_text()))


def test_what_a_killed_foretune_left_behind_is_ended_before_the_folder_is_used(
    tmp_path: Path,
) -> None:
    launch = _launch(tmp_path, "sleep 600")
    starter = (
        "import pathlib, sys, os, signal\n"
        "from collectors.launchers.launch import Launch\n"
        "from collectors.launchers.local import Local\n"
        "folder, command = pathlib.Path(sys.argv[1]), tuple(sys.argv[2:])\n"
        "launch = Launch(name='job', folder=folder, command=command)\n"
        "launcher = Local(); launcher.write(launch); print(launcher.start(launch), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", starter, str(tmp_path), *launch.command]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    token = done.stdout.strip()
    deadline = time.monotonic() + 30
    while not _sleeps(token) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    assert marked(token), "the command outlived the killed process"
    launcher = Local()
    assert launcher.poll(launch, token) is None, "another process sees that it still runs"
    assert run(launcher, _launch(tmp_path, "echo second"), POLL_S).ending is Ending.FINISHED
    assert not marked(token)
    lost = launcher.poll(launch, token)
    assert lost is not None
    assert lost.ending is Ending.LOST


def test_ctrl_c_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Local()
    launch = _launch(tmp_path, "sleep 600")
    jobs: list[str] = []
    start = launcher.start

    def remembered(launch: Launch) -> str:
        jobs.append(start(launch))
        return jobs[-1]

    def interrupted(_launch: Launch, _job: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "start", remembered)
    monkeypatch.setattr(launcher, "poll", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(launcher, launch, POLL_S)
    assert not marked(jobs[0])


def test_jobs_are_told_as_they_end(tmp_path: Path) -> None:
    launcher, jobs = Local(), []
    for name, script in (("slow", "sleep 0.6"), ("quick", "exit 1")):
        folder = tmp_path / name
        launch = Launch(name=name, folder=folder, command=("bash", "-c", script))
        launcher.write(launch)
        jobs.append((launch, launcher.start(launch)))
    ends = [(launch.name, end.ending) for launch, end in watch(launcher, jobs, POLL_S)]
    assert ends == [("quick", Ending.CRASHED), ("slow", Ending.FINISHED)]


def test_two_nodes_are_not_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2 nodes"):
        run(Local(), _launch(tmp_path, "true", nodes=2), POLL_S)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "../up"},
        {"command": ()},
        {"nodes": 0},
        {"time_limit_s": 0.0},
        {"environment": {"A B": "1"}},
    ],
)
def test_what_cannot_be_launched_is_one_sentence(fields: dict[str, object], tmp_path: Path) -> None:
    given: dict[str, object] = {"name": "job", "folder": tmp_path, "command": ("true",)}
    with pytest.raises(InputError):
        Launch(**(given | fields))  # type: ignore[arg-type]


def test_torchrun_starts_every_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torchrun comes with PyTorch")
    program = tmp_path / "program.py"
    program.write_text("import os\nprint('rank', os.environ['RANK'], os.environ['WORLD_SIZE'])\n")
    given = Launch(name="job", folder=tmp_path, command=("true",), gpus_per_node=2)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "OMP_NUM_THREADS": "1", "MASTER_PORT": "0"}
    launch = Launch(
        name="job",
        folder=tmp_path,
        command=torchrun(given, str(program)),
        gpus_per_node=2,
        environment=environment,
    )
    end = run(Local(), launch, POLL_S)
    assert end.ending is Ending.FINISHED, end.log.read_text()
    lines = [line for line in end.log.read_text().splitlines() if line.startswith("rank")]
    assert sorted(lines) == ["rank 0 2", "rank 1 2"]
