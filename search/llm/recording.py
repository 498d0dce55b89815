"""The audit of every call to a model, as JSON lines, and its replay without any network.

The first line says which study it belongs to; each call is a line with the whole request, its hash,
the reply, tokens, cost and time; the verdicts on its proposals follow as a line. Lines are appended
and reach the disk before the study goes on, so a killed study has lost nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from search.llm.asking import Answer, Request
from search.llm.budget import Spent
from specs.errors import InputError
from specs.files import input_file

SCHEMA_VERSION = 1
_ANSWER = ("failure", "text", "skipped", "prompt_tokens", "completion_tokens", "cost_usd")


class Recording:
    """A file that calls are appended to; ``study`` identifies what they are about."""

    def __init__(self, path: Path, study: Mapping[str, Any], model: str, trials: int) -> None:
        """Opens the file and writes its first line where it is new.

        Args:
            path: of the file.
            study: what the trials of the study depend on.
            model: who is asked.
            trials: of the study in all.

        Raises:
            InputError: the file belongs to another study or cannot be written.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            held = _cut_to_whole_lines(path)
        except OSError as error:
            raise InputError(f"the recording {path} cannot be written: {error.strerror}.") from None
        self.spent = Spent()
        if not held:
            first = {"kind": "study", "model": model, "trials": trials, "study": dict(study)}
            self._append(first)
            return
        lines = read_lines(path)
        check_study(path, lines, study)
        if lines[0].get("trials") != trials:
            self._append({"kind": "resumed", "trials": trials})
        for line in lines:
            if line.get("kind") == "call" and not line.get("skipped"):
                _count(self.spent, line)

    def call(self, request: Request, answer: Answer, model: str) -> None:
        """Appends a call."""
        self._append(
            {
                "kind": "call",
                "request_sha256": request.sha256,
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "model": model,
                "instructions": request.instructions,
                "briefing": request.briefing,
                "feedback": request.feedback,
                "program": request.program,
                "fields": answer.fields,
                **{name: getattr(answer, name) for name in _ANSWER},
                "seconds": round(answer.seconds, 3),
            }
        )

    def verdicts(self, request: Request, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Appends what became of the proposals of a call."""
        content = {"kind": "verdicts", "request_sha256": request.sha256}
        self._append({**content, "verdicts": [dict(verdict) for verdict in verdicts]})

    def _append(self, content: Mapping[str, Any]) -> None:
        line = json.dumps({"schema_version": SCHEMA_VERSION, **content}, allow_nan=False)
        with self.path.open("ab") as file:
            file.write(line.encode("ascii") + b"\n")
            file.flush()
            os.fsync(file.fileno())


class Replay:
    """A consultant that answers from a recording: the same request, the same answer."""

    def __init__(self, path: Path) -> None:
        """Reads a recording.

        Raises:
            InputError: the file is no recording.
        """
        self._path = path
        self._lines = read_lines(path)
        # Where a killed study asked again, the study went on with the last answer.
        self._calls = {
            str(line["request_sha256"]): line for line in self._lines if line["kind"] == "call"
        }
        self.model = str(self._lines[0].get("model", ""))
        self.spent = Spent()

    @property
    def study(self) -> Mapping[str, Any]:
        """What the recorded study was made from."""
        found: Mapping[str, Any] = self._lines[0]["study"]
        return found

    def check(self, study: Mapping[str, Any], trials: int) -> None:
        """Refuses a study that the recording does not belong to.

        Raises:
            InputError: says what differs.
        """
        check_study(self._path, self._lines, study)
        counts = [line["trials"] for line in self._lines if "trials" in line]
        if set(counts) != {trials}:
            raise InputError(
                f"the recording {self._path} does not match this study: it was made with "
                f"{' and then '.join(map(str, counts))} trials, not {trials}."
            )

    def ask(self, request: Request) -> Answer:
        """The recorded answer.

        Raises:
            InputError: the recording holds no answer to this request.
        """
        line = self._calls.get(request.sha256)
        if line is None:
            raise InputError(
                f"the recording {self._path} does not match this study: after "
                f"{self.spent.calls} calls it holds no answer to what would be asked next, so the "
                "study or what it projects has changed since."
            )
        if not line.get("skipped"):
            _count(self.spent, line)
        content = {name: line[name] for name in (*_ANSWER, "fields", "seconds") if name in line}
        return Answer(**content)

    def judged(self, request: Request, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Nothing is recorded twice."""


def check_study(path: Path, lines: Sequence[Mapping[str, Any]], study: Mapping[str, Any]) -> None:
    """Refuses a recording of another study.

    Raises:
        InputError: says what differs.
    """
    recorded = lines[0]["study"]
    now = json.loads(json.dumps(dict(study)))
    names = sorted(set(recorded) | set(now))
    differ = [name for name in names if recorded.get(name) != now.get(name)]
    if differ:
        raise InputError(
            f"the recording {path} does not match this study: {', '.join(differ)} differ."
        )


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a recording; a last line that was cut while being written is left out.

    Raises:
        InputError: the file cannot be read or is no recording of this version.
    """
    try:
        raw = input_file(path, again=True).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the recording {path}: {error.strerror}.") from None
    lines = []
    for number, text in enumerate(raw.split(b"\n")[:-1], 1):
        try:
            line = json.loads(text)
            kind = line["kind"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise InputError(f"{path}, line {number}: this is no recording of a model.") from None
        if line.get("schema_version") != SCHEMA_VERSION:
            raise InputError(
                f"{path}, line {number}: version {line.get('schema_version')} is not "
                f"{SCHEMA_VERSION}; record the study again."
            )
        if kind == "call" and not isinstance(line.get("request_sha256"), str):
            raise InputError(f"{path}, line {number}: the call has no request_sha256.")
        lines.append(line)
    if not lines or lines[0]["kind"] != "study" or not isinstance(lines[0].get("study"), dict):
        raise InputError(f"{path} is no recording of a model: its first line names no study.")
    return lines


def _count(spent: Spent, line: Mapping[str, Any]) -> None:
    spent.add(
        int(line.get("prompt_tokens") or 0),
        int(line.get("completion_tokens") or 0),
        line.get("cost_usd"),
        float(line.get("seconds") or 0.0),
    )


def _cut_to_whole_lines(path: Path) -> bool:
    """Removes a last line without its newline; gives whether anything is left."""
    if not path.exists():
        return False
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole != len(content):
            file.truncate(whole)
        return whole > 0
