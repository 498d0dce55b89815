"""Processes that start at once, for tests: see ``tests.warm``."""

from __future__ import annotations

import atexit
import multiprocessing.spawn  # noqa: F401  # remembers the real python before any stands in
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests import warm

ROOT = Path(__file__).resolve().parents[1]
READY_S = 120.0


class Nursery:
    """Where processes are forked: one that has imported everything waits for what to become."""

    def __init__(self, modules: Sequence[str] = warm.COMMANDS) -> None:
        self.modules = modules
        self.folder = Path(tempfile.mkdtemp(prefix="foretune-warm-"))
        self.socket = str(self.folder / "socket")
        self._server: subprocess.Popen[bytes] | None = None

    def ready(self) -> str:
        """The socket, once processes can be asked for there."""
        if self._server is None:
            changed = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            # LiteLLM and DSPy read these as they are imported: nothing from the net, no file left.
            changed |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DSPY_CACHEDIR": str(self.folder)}
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", "serve", self.socket, *self.modules],
                cwd=ROOT,
                env=os.environ | changed | {"PYTHONPATH": str(ROOT)},
            )
        deadline = time.monotonic() + READY_S
        while not Path(self.socket).exists():
            assert self._server.poll() is None, "nothing can be forked"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return self.socket

    def start(self, *arguments: str, **environment: str) -> Process:
        """A process that runs what ``python`` runs with these arguments, in the repository."""
        return Process(self.ready(), list(arguments), environment)

    def python(self) -> str:
        """A program that stands in for ``python``, with everything imported: a path."""
        program = self.folder / "python"
        program.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -S "{warm.__file__}" "{self.ready()}" "$@"\n'
        )
        program.chmod(0o755)
        return str(program)

    def close(self) -> None:
        """Ends the process that the others are forked from."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
        shutil.rmtree(self.folder)


@cache
def python_with(modules: Sequence[str]) -> str:
    """A program that stands in for ``python`` with these modules imported, until the tests end."""
    nursery = Nursery(modules)
    atexit.register(nursery.close)
    return nursery.python()


class Process:
    """A process of a nursery, with what ``subprocess.Popen`` offers of it."""

    def __init__(self, path: str, arguments: list[str], environment: dict[str, str]) -> None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        self._written = [os.memfd_create(name) for name in ("stdout", "stderr")]
        files = [nothing, *self._written]
        self._connection = warm.ask(path, arguments, str(ROOT), files, **environment)
        os.close(nothing)
        self.pid = warm.pid_of(self._connection)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._ended(0.0)

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout_s)[0]:
            answer = self._connection.recv(1)
            self.returncode = answer[0] if answer else -signal.SIGKILL
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote to stdout and stderr, once it has ended.

        Raises:
            TimeoutError: it goes on for more than so many seconds.
        """
        if self._ended(timeout) is None:
            raise TimeoutError(f"process {self.pid} still runs")
        out, err = self.written()
        return out, err

    def written(self) -> list[str]:
        """What it has written to stdout and stderr so far."""
        return [os.pread(file, os.fstat(file).st_size, 0).decode() for file in self._written]

    def send_signal(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it and everything that it started."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
