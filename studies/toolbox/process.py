"""A worker as the study sees it: started with its environment, asked with a time limit, ended."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from studies.toolbox.bundle import Bundle
from studies.toolbox.tools import TOOLBOX

FailureKind = Literal["input", "out_of_memory", "compile", "raised", "hung", "died"]
ROOT = Path(__file__).resolve().parents[2]


class WorkerError(Exception):
    """A worker could not do what it was asked; the message is one sentence."""

    def __init__(self, kind: FailureKind, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Everything that workers of a study share."""

    source: dict[str, str]
    dtype: str
    device: str
    work: dict[str, Any]
    threads: int
    seed: int
    timeout_s: float
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def compiled(self) -> Path:
        """Where torch.compile keeps the code of this study."""
        return self.folder / "compiled"


class Worker:
    """One process with one model and one bundle."""

    def __init__(self, launch: Launch, bundle: Bundle, dtype: str | None = None) -> None:
        self.launch = launch
        self.bundle = bundle
        self.dtype = dtype or launch.dtype
        self.facts: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def start(self) -> dict[str, Any]:
        """Starts the process, loads the model and applies the bundle.

        Raises:
            WorkerError: it failed, hung or died.
        """
        launch = self.launch
        launch.folder.mkdir(parents=True, exist_ok=True)
        log = launch.folder / "workers.log"
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "studies.toolbox.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environment(),
                start_new_session=True,
            )
        started = time.perf_counter()
        try:
            self.facts = self.ask(
                "load",
                source=launch.source,
                dtype=self.dtype,
                device=launch.device,
                work=launch.work,
                threads=launch.threads,
                seed=launch.seed,
            )
            self.ask("apply", bundle=self.bundle.as_json())
        except WorkerError:
            self.close()
            raise
        self.facts["start_s"] = time.perf_counter() - started
        return self.facts

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Sends one command and waits for its answer.

        Raises:
            WorkerError: the command failed, the time is up or the process died; the process is
                ended in the latter two.
        """
        process = self._process
        assert process is not None, "start() comes first"
        assert process.stdin is not None
        assert process.stdout is not None
        line = json.dumps({"name": name, "arguments": arguments}) + "\n"
        try:
            process.stdin.write(line.encode())
            process.stdin.flush()
            answer = json.loads(self._read_line(process.stdout, name))
        except (BrokenPipeError, EOFError):
            raise self._death(name) from None
        if "error" in answer:
            raise WorkerError(answer["error"]["kind"], answer["error"]["text"])
        found: dict[str, Any] = answer["ok"]
        return found

    def close(self) -> None:
        """Ends the process and whatever it started."""
        process = self._process
        if process is None:
            return
        self._process = None
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        threads = str(self.launch.threads)
        environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment |= {"TORCHINDUCTOR_COMPILE_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        # Compiled code of a study is its own: what compiling takes is measured once, from nothing.
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.launch.compiled.resolve())
        environment |= self.launch.environment
        for tool, setting in self.bundle:
            environment |= TOOLBOX[tool].environment(setting)
        return environment

    def _read_line(self, pipe: IO[bytes], name: str) -> bytes:
        """One line; ends the process where none comes in time."""
        deadline = time.monotonic() + self.launch.timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(deadline - time.monotonic(), 0)):
                    self.close()
                    raise WorkerError(
                        "hung",
                        f"the worker did not answer {name!r} within {self.launch.timeout_s:,.0f} s "
                        "and was ended.",
                    )
                chunk = os.read(pipe.fileno(), 65536)
                if not chunk:
                    raise EOFError
                self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _death(self, name: str) -> WorkerError:
        """What the end of the process says."""
        process = self._process
        assert process is not None
        process.wait()
        code = process.returncode
        self.close()
        if code == -signal.SIGKILL:
            return WorkerError(
                "out_of_memory",
                f"the worker was killed during {name!r}, as the system does when memory runs out.",
            )
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return WorkerError(
            "died",
            f"the worker died during {name!r} ({cause}); see {self.launch.folder}/workers.log.",
        )
