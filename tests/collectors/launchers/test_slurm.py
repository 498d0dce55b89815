"""The launcher for Slurm, against commands that really run the job on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.launchers.launch import Ending, Launch, torchrun
from collectors.launchers.slurm import Slurm, clock
from collectors.launchers.watching import run
from specs.errors import InputError
from tests.collectors.launchers.fake_slurm import install

POLL_S = 0.05


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-ins on PATH, with the interpreter of the tests for torchrun."""
    commands = install(tmp_path / "cluster")
    interpreter = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{commands}:{interpreter}:{os.environ['PATH']}")
    return commands


def _launch(folder: Path, script: str, **fields: object) -> Launch:
    folder.mkdir(exist_ok=True)
    return Launch(name="job", folder=folder, command=("bash", "-c", script), **fields)  # type: ignore[arg-type]


def test_the_batch_script_is_one_that_a_person_can_review(tmp_path: Path) -> None:
    launch = Launch(
        name="llama_8b-3",
        folder=tmp_path / "run_3",
        command=("bash", "/runs/measure.sh"),
        nodes=4,
        gpus_per_node=8,
        time_limit_s=5400,
        workdir=Path("/opt/Megatron-LM"),
        environment={"HSA_FORCE_FINE_GRAIN_PCIE": "1"},
    )
    slurm = Slurm({"partition": "gpu", "account": "it's ours"}, ("--container-image=x",))
    (path,) = slurm.write(launch)
    text = path.read_text()
    for line in (
        "#SBATCH --job-name=llama_8b-3",
        "#SBATCH --nodes=4",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --exclusive",
        "#SBATCH --time=0-01:30:00",
        f"#SBATCH --output={tmp_path}/run_3/slurm.log",
        "#SBATCH --chdir=/opt/Megatron-LM",
        "#SBATCH --no-requeue",
        "#SBATCH --partition=gpu",
        "export HSA_FORCE_FINE_GRAIN_PCIE=1",
        "srun --kill-on-bad-exit=1 --container-image=x \\",
        "  bash /runs/measure.sh",
    ):
        assert line in text.splitlines(), text
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


@pytest.mark.parametrize(
    ("script", "ending", "words"),
    [
        ("echo fine", Ending.FINISHED, "finished"),
        ("exit 3", Ending.CRASHED, "exit code 3"),
        ("no_such_program", Ending.CRASHED, "not found"),
        (
            "echo 'torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB'; exit 1",
            Ending.OUT_OF_MEMORY,
            "out of memory",
        ),
    ],
)
@pytest.mark.parametrize("accounting", [True, False])
def test_endings(
    script: str, ending: Ending, words: str, accounting: bool, cluster: Path, tmp_path: Path
) -> None:
    if not accounting:
        (cluster / "sacct").unlink()
    end = run(Slurm(), _launch(tmp_path / "run", script), POLL_S)
    assert end.ending is ending, end
    assert words in end.reason
    assert end.log.is_file()


@pytest.mark.usefixtures("cluster")
def test_every_node_runs_the_command_with_its_rank(tmp_path: Path) -> None:
    script = 'echo "$NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT"'
    end = run(Slurm(), _launch(tmp_path / "run", script, nodes=2), POLL_S)
    lines = sorted(end.log.read_text().splitlines())
    assert [line.split(" at ")[0] for line in lines] == ["0 of 2", "1 of 2"]
    assert len({line.split(" at ")[1] for line in lines}) == 1


@pytest.mark.usefixtures("cluster")
def test_torchrun_meets_over_two_nodes(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torchrun comes with PyTorch")
    program = tmp_path / "program.py"
    program.write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "os.write(1, f'ranks {int(total)}\\n'.encode())\n"
        # A rank that leaves while gloo still talks to another aborts.
        "dist.barrier()\n"
        "dist.destroy_process_group()\n"
    )
    given = Launch(name="job", folder=tmp_path / "run", command=("true",), nodes=2, gpus_per_node=1)
    launch = Launch(
        name="job",
        folder=tmp_path / "run",
        command=torchrun(given, str(program)),
        nodes=2,
        gpus_per_node=1,
        workdir=tmp_path,
        environment={"OMP_NUM_THREADS": "1"},
    )
    end = run(Slurm(), launch, POLL_S)
    assert end.ending is Ending.FINISHED, end.log.read_text()
    assert end.log.read_text().count("ranks 2") == 2


@pytest.mark.usefixtures("cluster")
def test_the_time_limit_is_the_scheduler_s(tmp_path: Path) -> None:
    end = run(Slurm(), _launch(tmp_path / "run", "sleep 600", time_limit_s=1), POLL_S)
    assert end.ending is Ending.TIMED_OUT
    assert "Slurm" in end.reason


@pytest.mark.usefixtures("cluster")
def test_a_cancelled_job_is_lost_and_may_run_again(tmp_path: Path) -> None:
    slurm, launch = Slurm(), _launch(tmp_path / "run", "touch begun; sleep 600")
    slurm.write(launch)
    job = slurm.start(launch)
    assert slurm.start(launch) == job, "a job that is still there is not submitted twice"
    while not (tmp_path / "run" / "begun").exists():
        assert slurm.poll(launch, job) is None
    slurm.stop(launch, job)
    while (end := slurm.poll(launch, job)) is None:
        pass
    assert end.ending is Ending.LOST
    assert "CANCELLED" in end.reason
    assert slurm.start(launch) == job, "its end was not told yet"
    slurm.forget(launch)
    (tmp_path / "run" / "begun").unlink()
    again = slurm.start(launch)
    assert again != job
    while not (tmp_path / "run" / "begun").exists():
        assert slurm.poll(launch, again) is None
    slurm.stop(launch, again)


@pytest.mark.usefixtures("cluster")
def test_a_waiting_job_is_found_that_a_killed_foretune_did_not_write_down(tmp_path: Path) -> None:
    slurm, launch = Slurm(), _launch(tmp_path / "run", "touch ran")
    (path,) = slurm.write(launch)
    jobs = tmp_path / "cluster" / "jobs"
    for job, script in (("1000", tmp_path / "other" / path.name), ("1001", path)):
        waits = {"state": "PENDING", "options": {}, "script": str(script)}
        (jobs / f"{job}.json").write_text(json.dumps(waits))
    assert slurm.start(launch) == "1001"
    assert len(list(jobs.glob("*.json"))) == 2
    assert run(Slurm(), _launch(tmp_path / "new", "true"), POLL_S).ending is Ending.FINISHED
    begun = (tmp_path / "new" / "slurm.job").read_text().strip()
    assert begun == "1002", "a job that has begun writes itself down"


def test_a_job_that_nobody_knows_is_lost(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, launch = Slurm(), _launch(tmp_path / "run", "true")
    ends = [slurm.poll(launch, "77") for _ in range(5)]
    assert ends[:4] == [None] * 4, "accounting may lag behind the queue"
    assert ends[4] is not None
    assert ends[4].ending is Ending.LOST
    (cluster / "squeue").write_text(
        "#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n"
    )
    assert [slurm.poll(launch, "77") for _ in range(9)] == [None] * 9, "no answer is no news"
    monkeypatch.setenv("PATH", "/nowhere")
    assert "not on PATH" in slurm.why_not(launch)
    with pytest.raises(InputError, match=r"job\.sbatch where Slurm is"):
        slurm.start(launch)


@pytest.mark.usefixtures("cluster")
def test_what_sbatch_refuses_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="invalid partition"):
        run(Slurm({"partition": "closed"}), _launch(tmp_path / "run", "true"), POLL_S)


@pytest.mark.parametrize("options", [{"--wrap": "x"}, {"time": "1\n#SBATCH --uid=0"}, {"a b": "1"}])
def test_no_option_can_break_out_of_its_line(options: dict[str, str]) -> None:
    with pytest.raises(InputError):
        Slurm(options)


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.1, "0-00:01:00"), (5400, "0-01:30:00"), (90061, "1-01:01:01")]
)
def test_time_limits(seconds: float, text: str) -> None:
    assert clock(seconds) == text
