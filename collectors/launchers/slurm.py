"""The launcher for Slurm: a batch script to review, sbatch, squeue, sacct and scancel.

submitit is not used: its job is a pickled Python function that needs foretune inside the training
container, and its batch script is not one that a person would review.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from collectors.launchers.endings import ended, says_out_of_memory
from collectors.launchers.launch import MASTER_PORT, Ended, Ending, Launch
from specs.errors import InputError
from specs.files import atomic_text
from specs.text import comment_lines

SCRIPT, LOG, JOB, EXIT = "job.sbatch", "slurm.log", "slurm.job", "slurm.exit"
ANSWERS_S = 60.0
"""Seconds that a Slurm command may take: slurmctld answers late when it is busy."""
MISSING_POLLS = 5
"""A job that no command knows for so many polls is lost; accounting lags behind the queue."""
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_WAITS_OR_RUNS = (
    *("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT"),
    *("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "SIGNALING", "SPECIAL_EXIT"),
)
"""States of squeue (man squeue, "JOB STATE CODES") of a job that has not ended."""
_LOST = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED", "CANCELLED")
"""States of a job that ended for no fault of its config."""


@dataclass
class Slurm:
    """Submits the job with sbatch and asks squeue, then sacct, how it goes.

    Attributes:
        options: more lines of the batch script, such as ``{"partition": "gpu", "account": "x"}``.
        srun_options: arguments of srun, such as ``("--container-image=...",)``.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    srun_options: tuple[str, ...] = ()
    name: str = "slurm"
    _unknown: dict[str, int] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Refuses options that would break the script.

        Raises:
            InputError: one is no option of sbatch or srun.
        """
        for key, value in self.options.items():
            if not _OPTION.fullmatch(key) or not value.isprintable():
                raise InputError(f"{key}={value!r} is no option of sbatch.")
        for argument in self.srun_options:
            if not argument.isprintable():
                raise InputError(f"{argument!r} is no option of srun.")

    def why_not(self, launch: Launch) -> str:
        """Why it cannot be submitted from here: Slurm's commands are missing."""
        if not launch.runs_in.is_dir():
            return f"there is no folder {launch.runs_in} to run {launch.name} in."
        missing = [tool for tool in ("sbatch", "squeue", "scancel") if not shutil.which(tool)]
        if missing:
            return (
                f"{', '.join(missing)} is not on PATH; submit {launch.folder / SCRIPT} where Slurm "
                "is."
            )
        return ""

    def write(self, launch: Launch) -> tuple[Path, ...]:
        """Writes ``job.sbatch``."""
        path = launch.folder / SCRIPT
        with atomic_text(path) as file:
            file.write(self._script(launch))
        path.chmod(0o755)
        return (path,)

    def start(self, launch: Launch) -> str:
        """Submits ``job.sbatch`` and gives the job id; one that was submitted is taken up again.

        Raises:
            InputError: it cannot be submitted; says why.
        """
        if reason := self.why_not(launch):
            raise InputError(reason)
        record = launch.folder / JOB
        if record.is_file():
            return record.read_text().strip()
        if job := self._unrecorded(launch):
            return job
        for left in (LOG, EXIT):
            (launch.folder / left).unlink(missing_ok=True)
        answer = _ask("sbatch", "--parsable", str((launch.folder / SCRIPT).absolute()))
        if answer.returncode != 0:
            said = " ".join(answer.stderr.split()) or f"exit code {answer.returncode}"
            raise InputError(f"sbatch refused {launch.folder / SCRIPT}: {said}.")
        job = answer.stdout.strip().partition(";")[0]
        if not job.isdigit():
            raise InputError(f"sbatch gave no job id but {answer.stdout.strip()!r}.")
        with atomic_text(record) as file:
            file.write(job)
        return job

    def poll(self, launch: Launch, job: str) -> Ended | None:
        """How the job ended, as accounting tells; without accounting, as its log and result do."""
        log = launch.folder / LOG
        queue = _ask("squeue", "--noheader", "--jobs", job, "--format", "%T")
        state = queue.stdout.strip().splitlines()[:1]
        if queue.returncode == 0 and state and state[0] in _WAITS_OR_RUNS:
            self._unknown.pop(job, None)
            return None
        if queue.returncode != 0 and "Invalid job id" not in queue.stderr:
            return None  # slurmctld does not answer: nothing is known, and nothing is lost
        return self._accounted(launch, job, log) or self._unaccounted(job, log)

    def stop(self, launch: Launch, job: str) -> None:
        """Cancels the job; Slurm ends its processes on every node."""
        del launch
        _ask("scancel", job)

    def forget(self, launch: Launch) -> None:
        """Removes what says that it was submitted."""
        for name in (JOB, EXIT):
            (launch.folder / name).unlink(missing_ok=True)

    def _unrecorded(self, launch: Launch) -> str:
        """The job that waits to run this script; empty without one.

        It is there where foretune was killed before it could write down what sbatch answered. One
        that has begun has written that down itself.

        Raises:
            InputError: Slurm does not say, so that a job might be submitted twice.
        """
        user = pwd.getpwuid(os.getuid()).pw_name
        script = str((launch.folder / SCRIPT).absolute())
        answer = _ask("squeue", "--noheader", "--user", user, "--format", "%i|%o")
        if answer.returncode != 0:
            said = " ".join(answer.stderr.split()) or f"exit code {answer.returncode}"
            raise InputError(f"squeue does not say whether {script} is submitted: {said}.")
        jobs = (line.strip().partition("|") for line in answer.stdout.splitlines())
        return next((job for job, _, command in jobs if command == script), "")

    def _accounted(self, launch: Launch, job: str, log: Path) -> Ended | None:
        """What sacct says of a job that has left the queue; None where it does not know it."""
        if not shutil.which("sacct"):
            return None
        fields = "State,ExitCode,ElapsedRaw"
        answer = _ask("sacct", "-X", "--noheader", "--parsable2", "--jobs", job, "--format", fields)
        line = answer.stdout.strip().splitlines()[:1]
        if answer.returncode != 0 or not line or line[0].count("|") != 2:
            return None
        text, code, elapsed = line[0].split("|")
        state = text.split()[0] if text.split() else ""  # "CANCELLED by 1000"
        if not state or state in _WAITS_OR_RUNS:
            return None
        status, _, signal = code.partition(":")
        exit_code = -int(signal) if signal not in ("", "0") else int(status)
        wall_s = float(elapsed) if elapsed.isdigit() else 0.0
        if state == "TIMEOUT":
            words = f"stopped by Slurm after its {launch.time_limit_s:.0f} s, see {log}."
            return Ended(Ending.TIMED_OUT, exit_code, wall_s, log, words)
        if state in _LOST:
            words = f"Slurm says {text} of job {job}."
            return Ended(Ending.LOST, None, wall_s, log, words)
        if state == "OUT_OF_MEMORY":  # of the host: the config is not to blame for its GPUs
            if says_out_of_memory(log):
                return ended(exit_code or 1, wall_s, log)
            words = f"the host ran out of memory (Slurm: {text}), see {log}."
            return Ended(Ending.CRASHED, exit_code, wall_s, log, words)
        return ended(exit_code if state == "COMPLETED" else exit_code or 1, wall_s, log)

    def _unaccounted(self, job: str, log: Path) -> Ended | None:
        """A job that has left the queue and of which nothing is recorded: the script's own word."""
        code = log.with_name(EXIT)
        if code.is_file() and (text := code.read_text().strip()).isdigit():
            return ended(int(text), 0.0, log)
        self._unknown[job] = self._unknown.get(job, 0) + 1
        if self._unknown[job] < MISSING_POLLS:
            return None
        words = f"Slurm knows nothing of job {job} any more, and it left no exit code."
        return Ended(Ending.LOST, None, 0.0, log, words)

    def _script(self, launch: Launch) -> str:
        folder = launch.folder.absolute()
        options = {
            "job-name": launch.name,
            "nodes": str(launch.nodes),
            "ntasks-per-node": "1",
            **({"gpus-per-node": str(launch.gpus_per_node)} if launch.gpus_per_node else {}),
            "exclusive": "",
            "time": clock(launch.time_limit_s),
            "output": str(folder / LOG),
            "chdir": str(launch.runs_in),
            "no-requeue": "",
            **self.options,
        }
        return "\n".join(
            [
                "#!/usr/bin/env bash",
                *(_line(key, value) for key, value in options.items()),
                *comment_lines([f"{launch.name}: written by foretune."]),
                "# It needs no network beyond the job's own; the command runs once a node and",
                "# starts the GPUs of that node itself.",
                "set -uo pipefail",
                'MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
                f"MASTER_PORT=$(({MASTER_PORT} + SLURM_JOB_ID % 1000))",
                'NNODES="$SLURM_JOB_NUM_NODES"',
                f'echo "$SLURM_JOB_ID" > {shlex.quote(str(folder / JOB))}',
                "export MASTER_ADDR MASTER_PORT NNODES",
                *(f"export {k}={shlex.quote(v)}" for k, v in sorted(launch.environment.items())),
                f"srun --kill-on-bad-exit=1 {shlex.join(self.srun_options)}".rstrip() + " \\",
                '  bash -c \'NODE_RANK="$SLURM_NODEID" exec "$@"\' node \\',
                f"  {shlex.join(launch.command)}",
                "CODE=$?",
                f'echo "$CODE" > {shlex.quote(str(folder / EXIT))}',
                'exit "$CODE"',
                "",
            ]
        )


def clock(seconds: float) -> str:
    """A time limit as Slurm writes it, days-hours:minutes:seconds, rounded up."""
    whole = int(-(-seconds // 1))
    days, rest = divmod(whole, 86400)
    return f"{days}-{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"


def _line(key: str, value: str) -> str:
    return f"#SBATCH --{key}={shlex.quote(value)}" if value else f"#SBATCH --{key}"


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a Slurm command; one that does not answer has failed."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=ANSWERS_S, check=False
        )
    except subprocess.TimeoutExpired:
        words = f"no answer in {ANSWERS_S:.0f} s"
        return subprocess.CompletedProcess(command, 124, "", words)
