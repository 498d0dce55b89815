"""The launcher for this machine: one node, the command as a child process."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from collectors.launchers.endings import ended
from collectors.launchers.launch import MASTER_PORT, Ended, Ending, Launch
from collectors.launchers.processes import GRACE_S, MARK, end_marked, marked
from specs.errors import InputError
from specs.files import atomic_text
from specs.text import comment_lines

SCRIPT, LOG, TOKEN = "local.sh", "local.log", ".local.token"


@dataclass
class Local:
    """Runs the command here; it ends with this process unless that is killed with SIGKILL.

    What a killed foretune left running in a folder is ended before the folder is used again.
    """

    name: str = "local"
    grace_s: float = GRACE_S
    _running: dict[str, tuple[subprocess.Popen[bytes], float]] = field(
        default_factory=dict, repr=False
    )

    def why_not(self, launch: Launch) -> str:
        """Why it cannot be started from here: this machine is one node."""
        if launch.nodes > 1:
            return (
                f"{launch.name} needs {launch.nodes} nodes and this machine is one; use a "
                "scheduler, or a job of one node."
            )
        if not launch.runs_in.is_dir():
            return f"there is no folder {launch.runs_in} to run {launch.name} in."
        return ""

    def write(self, launch: Launch) -> tuple[Path, ...]:
        """Writes ``local.sh``, which a person can also run by hand."""
        path = launch.folder / SCRIPT
        with atomic_text(path) as file:
            file.write(_script(launch))
        path.chmod(0o755)
        return (path,)

    def start(self, launch: Launch) -> str:
        """Starts ``local.sh`` in a session of its own; the job is a token that marks it.

        Nobody would hear how one ends that a killed foretune left running: it begins anew.

        Raises:
            InputError: it cannot be started; says why.
        """
        if reason := self.why_not(launch):
            raise InputError(reason)
        self._end_leftover(launch)
        token = uuid.uuid4().hex
        with atomic_text(launch.folder / TOKEN) as file:
            file.write(token)
        with (launch.folder / LOG).open("wb") as log:
            process = subprocess.Popen(
                ["bash", str((launch.folder / SCRIPT).absolute())],
                cwd=launch.runs_in,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {MARK: token},
                start_new_session=True,
            )
        self._running[token] = (process, time.monotonic())
        return token

    def poll(self, launch: Launch, job: str) -> Ended | None:
        """How it ended; what outlives the command is ended with it."""
        log = launch.folder / LOG
        if job not in self._running:
            if marked(job):
                return None
            return Ended(Ending.LOST, None, 0.0, log, "it was started by a process that is gone.")
        process, started = self._running[job]
        wall_s = time.monotonic() - started
        code = process.poll()
        if code is None:
            if wall_s < launch.time_limit_s:
                return None
            self.stop(launch, job)
            text = f"stopped after its {launch.time_limit_s:.0f} s, see {log}."
            return Ended(Ending.TIMED_OUT, None, wall_s, log, text)
        self.stop(launch, job)
        return ended(code, wall_s, log)

    def stop(self, launch: Launch, job: str) -> None:
        """Ends the command and every process that came of it."""
        end_marked(job, self.grace_s)
        if job in self._running:
            self._running.pop(job)[0].wait()
        (launch.folder / TOKEN).unlink(missing_ok=True)

    def forget(self, launch: Launch) -> None:
        """Ends what a killed foretune left running there."""
        self._end_leftover(launch)
        (launch.folder / TOKEN).unlink(missing_ok=True)

    def _end_leftover(self, launch: Launch) -> None:
        path = launch.folder / TOKEN
        if path.is_file() and (token := path.read_text().strip()):
            end_marked(token, self.grace_s)


def _script(launch: Launch) -> str:
    lines = [
        "#!/usr/bin/env bash",
        *comment_lines([f"{launch.name}: written by foretune to run on one node."]),
        "set -uo pipefail",
        f"cd {shlex.quote(str(launch.runs_in))}",
        "export NNODES=1 NODE_RANK=0 MASTER_ADDR=127.0.0.1",
        f'export MASTER_PORT="${{MASTER_PORT:-{MASTER_PORT}}}"',
        *(
            f"export {key}={shlex.quote(value)}"
            for key, value in sorted(launch.environment.items())
        ),
        f"exec {shlex.join(launch.command)}",
    ]
    return "\n".join(lines) + "\n"
