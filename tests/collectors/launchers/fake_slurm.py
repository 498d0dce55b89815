"""Stand-ins for sbatch, squeue, sacct, scancel, scontrol and srun that run jobs on this machine.

They stand for a cluster that cannot be in a test: a job really runs, in the background, with the
variables that Slurm sets, on as many "nodes" as it asks for, until its time limit. Every node is
this machine. What a real slurmctld decides (queues, priorities, cgroups) is not here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

TOOLS = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun")
STATE = "FAKE_SLURM"


def install(folder: Path, without: tuple[str, ...] = ()) -> Path:
    """Makes the commands; gives the folder to put on PATH."""
    commands = folder / "bin"
    commands.mkdir(parents=True)
    (folder / "jobs").mkdir()
    for tool in TOOLS:
        if tool not in without:
            path = commands / tool
            path.write_text(
                f"#!/usr/bin/env bash\nexport {STATE}='{folder}'\n"
                f"exec '{sys.executable}' '{__file__}' {tool} \"$@\"\n"
            )
            path.chmod(0o755)
    return commands


def _jobs() -> Path:
    return Path(os.environ[STATE]) / "jobs"


def _record(job: str) -> dict[str, object] | None:
    path = _jobs() / f"{job}.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _note(job: str, **fields: object) -> None:
    path = _jobs() / f"{job}.json"
    held = json.loads(path.read_text()) if path.is_file() else {}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(held | fields))
    temporary.replace(path)


def sbatch(arguments: list[str]) -> int:
    """Queues a job and prints its id."""
    script = Path(arguments[-1])
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)=?'?([^'\n]*)'?$", script.read_text(), re.M))
    if options.get("partition") == "closed":
        print("sbatch: error: invalid partition specified: closed", file=sys.stderr)
        return 1
    job = str(1000 + len(list(_jobs().glob("*.json"))))
    _note(job, state="PENDING", options=options, script=str(script))
    command = [sys.executable, __file__, "supervise", job]
    subprocess.Popen(
        command,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    print(job)
    return 0


def supervise(arguments: list[str]) -> int:
    """What slurmd does: runs the job until it ends or its time is over."""
    (job,) = arguments
    record = _record(job)
    assert record is not None
    options = record["options"]
    assert isinstance(options, dict)
    days, hours, minutes, seconds = map(int, re.split("[-:]", options["time"]))
    limit_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    nodes = options["nodes"]
    environment = os.environ | {
        "SLURM_JOB_ID": job,
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_JOB_NODELIST": f"fake[1-{nodes}]",
    }
    started = time.monotonic()
    with Path(options["output"]).open("wb") as log:
        process = subprocess.Popen(
            ["bash", str(record["script"])],
            cwd=options["chdir"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        _note(job, state="RUNNING", pid=process.pid)
        try:
            code = process.wait(timeout=limit_s)
            state = "COMPLETED" if code == 0 else "FAILED"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code, state = process.wait(), "TIMEOUT"
    elapsed = int(time.monotonic() - started)
    if (_record(job) or {}).get("cancelled"):
        state = "CANCELLED by 0"
    signal_number = -code if code < 0 else 0
    _note(job, state=state, code=f"{max(code, 0)}:{signal_number}", elapsed=elapsed)
    return 0


def squeue(arguments: list[str]) -> int:
    """The state of a job that has not ended, or the ids and scripts of all such jobs."""
    if "--jobs" not in arguments:
        records = {path.stem: json.loads(path.read_text()) for path in _jobs().glob("*.json")}
        waits = ("PENDING", "RUNNING")
        lines = [f"{job}|{r['script']}" for job, r in records.items() if r["state"] in waits]
        print("\n".join(lines))
        return 0
    record = _record(arguments[arguments.index("--jobs") + 1])
    if record is None or record["state"] not in ("PENDING", "RUNNING"):
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1
    print(record["state"])
    return 0


def sacct(arguments: list[str]) -> int:
    """State, exit code and seconds of a job."""
    record = _record(arguments[arguments.index("--jobs") + 1])
    if record is not None and "code" in record:
        print(record["state"], record["code"], record["elapsed"], sep="|")
    return 0


def scancel(arguments: list[str]) -> int:
    """Ends a job."""
    record = _record(arguments[0])
    if record is not None and record["state"] == "RUNNING":
        _note(arguments[0], cancelled=True)
        os.killpg(int(str(record["pid"])), signal.SIGKILL)
    return 0


def scontrol(_arguments: list[str]) -> int:
    """The names of the nodes: all are this machine."""
    print("\n".join(["localhost"] * int(os.environ["SLURM_JOB_NUM_NODES"])))
    return 0


def srun(arguments: list[str]) -> int:
    """Runs a command once a node; the first that fails ends the others."""
    start = next(n for n, word in enumerate(arguments) if not word.startswith("-"))
    nodes = [
        subprocess.Popen(arguments[start:], env=os.environ | {"SLURM_NODEID": str(node)})
        for node in range(int(os.environ["SLURM_JOB_NUM_NODES"]))
    ]
    while any(node.poll() is None for node in nodes):
        if any(node.poll() for node in nodes):
            for node in nodes:
                node.kill()
        time.sleep(0.02)
    return max(abs(node.returncode) for node in nodes if node.returncode is not None)


if __name__ == "__main__":
    # The tools are C programs: a closed pipe ends them quietly.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(globals()[sys.argv[1]](sys.argv[2:]))
