"""A model behind LiteLLM, asked in a process of its own with a deadline that holds."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specs.errors import InputError

START_S = 120.0
"""Longest import of DSPy and LiteLLM: 7 s of CPU, more on a busy machine (measured)."""
LONGEST_LINE = 4 << 20
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Endpoint:
    """A model: its name for LiteLLM, the URL of an OpenAI-compatible server where it is not the
    provider's own, and a compiled program."""

    model: str
    url: str | None = None
    program: Path | None = None


class Failed(Exception):
    """No answer; the message is one sentence, possibly with foreign text in it.

    ``sent`` says whether anything may have reached the model.
    """

    def __init__(self, sentence: str, sent: bool = True) -> None:
        super().__init__(sentence)
        self.sent = sent


class Client:
    """The worker process of an endpoint, started when it is first needed and ended for certain."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._cache: str | None = None
        self.price: tuple[float, float] | None = None
        self.reply_tokens = 0

    def start(self) -> None:
        """Starts the worker where none runs.

        Raises:
            Failed: it does not come up.
        """
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._cache = tempfile.mkdtemp(prefix="foretune-llm-")
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DSPY_CACHEDIR": self._cache,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "search.llm.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        endpoint = self._endpoint
        program = str(endpoint.program) if endpoint.program else None
        settings = {"model": endpoint.model, "url": endpoint.url, "program": program}
        try:
            ready = self._exchange(settings, START_S)
        except Failed as failed:
            raise Failed(f"DSPy and LiteLLM do not start: {failed}", sent=False) from None
        if not ready.get("ready"):
            self.close()
            raise Failed(str(ready.get("failure", "the model cannot be used")), sent=False)
        self.price = tuple(ready["price"]) if ready["price"] else None
        self.reply_tokens = int(ready["reply_tokens"])

    def ask(self, instructions: str, briefing: str, feedback: str, left_s: float) -> dict[str, Any]:
        """What the worker says of one call.

        Raises:
            Failed: the deadline passed or the worker died; the next call starts another.
        """
        self.start()
        return self._exchange(
            {
                "instructions": instructions,
                "briefing": briefing,
                "feedback": feedback,
                "left_s": left_s,
            },
            left_s,
        )

    def _exchange(self, content: Mapping[str, Any], left_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(content).encode() + b"\n")
            process.stdin.flush()
            found: dict[str, Any] = json.loads(self._line(time.monotonic() + left_s))
        except TimeoutError:
            self.close()
            raise Failed(f"no answer within {left_s:.3g} s") from None
        except (OSError, EOFError, ValueError):
            self.close()
            raise Failed("the process that talks to the model ended") from None
        return found

    def _line(self, deadline: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if len(self._unread) > LONGEST_LINE:
                    raise ValueError("the answer is too long")
                if not selector.select(max(deadline - time.monotonic(), 0.0)):
                    raise TimeoutError
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise EOFError
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """Ends the worker and whatever it started."""
        process, self._process, self._unread = self._process, None, b""
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            process.wait()
        if self._cache is not None:
            shutil.rmtree(self._cache, ignore_errors=True)
            self._cache = None


def check_installed() -> None:
    """Refuses to start without DSPy and LiteLLM.

    Raises:
        InputError: one is missing.
    """
    missing = [name for name in ("dspy", "litellm") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"asking a model needs {' and '.join(missing)}; run: pip install 'foretune[llm]'."
        )
