"""Recordings: whole lines or none, resumed, replayed, and refused where they do not match."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search.llm.asking import Answer, Request
from search.llm.recording import Recording, Replay, read_lines
from specs.errors import InputError

STUDY = {"seed": 0, "llm": {"model": "openai/m", "hints": []}}
FIRST, SECOND = Request("i", "one trial"), Request("i", "seven trials", "wrong")
ANSWER = Answer(
    fields={"proposals": [{"config": {"tp": 2}}]},
    text="{...}",
    prompt_tokens=100,
    completion_tokens=20,
    cost_usd=0.25,
    seconds=1.5,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A recording of two calls."""
    recording = Recording(tmp_path / "llm.jsonl", STUDY, "openai/m", 12)
    recording.call(FIRST, ANSWER, "openai/m")
    recording.verdicts(FIRST, [{"verdict": "accepted"}])
    recording.call(SECOND, Answer(failure="the server failed", prompt_tokens=7), "openai/m")
    return recording.path


def test_a_replay_gives_what_was_answered(path: Path) -> None:
    replay = Replay(path)
    replay.check(STUDY, 12)
    assert replay.model == "openai/m"
    assert replay.ask(FIRST) == ANSWER
    assert replay.ask(SECOND).failure == "the server failed"
    assert replay.spent.as_json() == {
        "calls": 2, "prompt_tokens": 107, "completion_tokens": 20, "cost_usd": None, "seconds": 1.5,
    }  # fmt: skip
    with pytest.raises(InputError, match="after 2 calls it holds no answer"):
        replay.ask(Request("i", "one trial", program="another"))


def test_requests_differ_where_any_part_does() -> None:
    hashes = {
        Request(*parts).sha256
        for parts in (("a", "b"), ("ab", ""), ("", "ab"), ("a", "", "b"), ("a", "", "", "b"))
    }
    assert len(hashes) == 5


def test_a_resumed_recording_goes_on_and_counts_what_was_spent(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"kind": "call", "request_sha')  # a process was killed here
    resumed = Recording(path, STUDY, "openai/m", 12)
    assert resumed.spent.tokens == 127
    resumed.call(FIRST, Answer(failure="asked again after the kill"), "openai/m")
    lines = read_lines(path)
    assert [line["kind"] for line in lines] == ["study", "call", "verdicts", "call", "call"]
    assert Replay(path).ask(FIRST).failure == "asked again after the kill"


def test_other_studies_are_refused_with_what_differs(path: Path) -> None:
    other = STUDY | {"seed": 1, "baseline": {}}
    with pytest.raises(InputError, match="baseline, seed differ"):
        Recording(path, other, "openai/m", 12)
    with pytest.raises(InputError, match="baseline, seed differ"):
        Replay(path).check(other, 12)
    with pytest.raises(InputError, match="12 trials, not 24"):
        Replay(path).check(STUDY, 24)
    Recording(path, STUDY, "openai/m", 24)
    with pytest.raises(InputError, match="12 and then 24 trials, not 24"):
        Replay(path).check(STUDY, 24)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}\n", b"[1]\n", b"\xff\xfe\n", b"not json\n",
        b'{"kind": "study", "schema_version": 9, "study": {}}\n',
        b'{"kind": "call", "schema_version": 1}\n',
        b'{"kind": "study", "schema_version": 1, "study": 3}\n',
    ],
)  # fmt: skip
def test_files_that_are_no_recording(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError):
        Replay(path)
    with pytest.raises(InputError):
        Replay(tmp_path / "none.jsonl")


def test_every_line_is_strict_ascii_json(path: Path) -> None:
    recording = Recording(path, STUDY, "openai/m", 12)
    recording.call(Request("i", "\u2028 \ud83d\ude00 é"), Answer(text="\x00\u202e"), "openai/m")
    for line in path.read_bytes().splitlines():
        line.decode("ascii")
        json.loads(line)
