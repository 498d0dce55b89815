"""A model's server with every fault: an answer or one sentence, in time, and never a key."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from search.llm.asking import Request
from search.llm.budget import Caps
from search.llm.client import Client, Endpoint, Failed
from search.llm.consultant import LiveConsultant
from search.llm.recording import Recording
from search.llm.schema import Reply, read_reply
from tests.llm_server import MODES, TRANSPORT, LlmServer, proposals
from tests.nursery import python_with
from tests.warm import LANGUAGE_MODELS

if importlib.util.find_spec("litellm") is None or importlib.util.find_spec("dspy") is None:
    pytest.skip("pip install 'foretune[llm]'", allow_module_level=True)

from search.llm.redirects import REDIRECTED

CANARY = "sk-canary-0123456789abcdef"
ENDING = ("hung", "drip", "huge")
"""Modes that never end: the worker is ended and another one started."""
LANES = 4
"""Workers that are asked at once."""
READABLE = {
    "good", "fenced", "wrong_members", "illegal", "near_miss", "duplicates", "unknown_axes",
    "too_big", "nan", "huge_numbers", "html", "many",
}  # fmt: skip


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """The canary as the key of the endpoint."""
    before = os.environ.get("FORETUNE_LLM_API_KEY")
    os.environ["FORETUNE_LLM_API_KEY"] = CANARY
    yield
    os.environ.pop("FORETUNE_LLM_API_KEY")
    if before is not None:
        os.environ["FORETUNE_LLM_API_KEY"] = before


@pytest.fixture(autouse=True)
def warm_llm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start without importing anything; ``tests/studies/test_llm.py`` starts whole ones."""
    monkeypatch.setattr(sys, "executable", python_with(LANGUAGE_MODELS))


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    """One server whose mode the tests change."""
    with LlmServer() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LlmServer, environment: None) -> Iterator[Client]:
    """One worker for all modes: it takes seconds to start."""
    del environment
    running = Client(Endpoint("openai/small", server.url))
    yield running
    running.close()


def ask(client: Client, server: LlmServer, mode: str, left_s: float) -> Reply | str:
    """What comes of one question in a mode: a reply or a sentence."""
    server.modes, server.requests[:] = [mode], []
    try:
        client.start()
        found = client.ask("Propose.", "a study", "", left_s)
    except Failed as failed:
        return str(failed)
    if found["failure"]:
        return str(found["failure"])
    return read_reply(found["fields"])


def outcomes_in(modes: Sequence[str]) -> dict[str, Reply | str]:
    """What comes of one question in each mode, asked of one worker, which then still answers."""
    outcomes = {}
    with LlmServer() as server:
        client = Client(Endpoint("openai/small", server.url))
        try:
            for mode in modes:
                outcomes[mode] = ask(client, server, mode, 40.0)
                assert len(server.requests) <= 3, mode
            # The study goes on.
            assert isinstance(ask(client, server, "good", 40.0), Reply)
        finally:
            client.close()
    return outcomes


def test_every_mode_ends_in_a_reply_or_one_sentence(environment: None) -> None:
    del environment
    assert len(MODES) >= 30
    assert len(TRANSPORT) >= 12
    modes = [mode for mode in MODES if mode not in ENDING]
    with ThreadPoolExecutor(LANES) as lanes:  # another try comes a second later
        found = lanes.map(outcomes_in, [modes[lane::LANES] for lane in range(LANES)])
        outcomes = {mode: outcome for lane in found for mode, outcome in lane.items()}
    assert set(outcomes) == set(modes)
    said = {}
    for mode, outcome in outcomes.items():
        assert isinstance(outcome, Reply) == (mode in READABLE), (mode, outcome)
        if isinstance(outcome, str):
            assert outcome
            assert "\n" not in outcome
            assert len(outcome) < 400
            said[mode] = outcome
    assert "too many requests" in said["status_429"]
    assert "refuses the key" in said["status_401"]
    assert "does not know the model" in said["status_404"]
    assert "cut off" in said["cut"]
    assert "cannot be read" in said["prose"]


@pytest.mark.parametrize("mode", ENDING)
def test_a_reply_that_never_ends_is_ended(client: Client, server: LlmServer, mode: str) -> None:
    client.start()
    process = client._process
    assert process is not None
    began = time.monotonic()
    outcome = ask(client, server, mode, 1.0)
    assert time.monotonic() - began < 20.0  # and not the 2 minutes or the forever of the server
    assert isinstance(outcome, str), outcome
    assert process.poll() is not None
    assert threading.active_count() < 20


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("to", ["another port", "another path", "a file"])
def test_no_redirect_is_followed(
    client: Client, server: LlmServer, status: int, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlmServer() as other:
        places = {"another port": f"{other.url}/steal", "a file": "file:///etc/passwd"}
        monkeypatch.setattr(server, "redirect", (status, places.get(to, "")))
        server.paths.clear()
        assert ask(client, server, "redirect", 40.0) == REDIRECTED
        assert other.requests == []
    assert set(server.paths) == {"/v1/chat/completions"}


@pytest.mark.parametrize("model", ["anthropic/small", "ollama/small", "hosted_vllm/small"])
def test_no_client_of_another_provider_follows_a_redirect(
    model: str, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    del environment
    with LlmServer() as other, LlmServer() as named:
        monkeypatch.setattr(named, "redirect", (307, f"{other.url}/steal"))
        client = Client(Endpoint(model, named.url))
        try:
            assert ask(client, named, "redirect", 40.0) == REDIRECTED
        finally:
            client.close()
        assert named.paths
        assert other.requests == []


def test_keys_reach_neither_recording_nor_answer(
    server: LlmServer, environment: None, tmp_path: Path
) -> None:
    del environment
    recording = Recording(tmp_path / "llm.jsonl", {"seed": 0}, "openai/small", 4)
    consultant = LiveConsultant(Endpoint("openai/small", server.url), recording, Caps(), 40.0)
    try:
        server.modes, server.keys[:] = ["echo_key"], []
        refused = consultant.ask(Request("Propose.", "a study"))
        assert server.keys[0] == f"Bearer {CANARY}"  # it was really sent, to this server alone
        server.modes = ["good"]
        server.reply = lambda _: proposals({"tp": CANARY, CANARY: 1}) + f" Bearer {CANARY}"
        echoed = consultant.ask(Request("Propose.", "another study"))
    finally:
        server.reply = None
        consultant.close()
    assert refused.failure
    assert echoed.fields is not None
    for text in (refused.failure, echoed.text, str(echoed.fields), recording.path.read_text()):
        assert CANARY not in text
        assert CANARY.removeprefix("sk-") not in text
    lines = [json.loads(line) for line in recording.path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["study", "call", "call"]
    assert lines[2]["completion_tokens"] == 20


def test_many_at_once_get_their_own_answers(environment: None) -> None:
    del environment

    def told(body: dict[str, object]) -> str:
        text = json.dumps(body)
        number = next(n for n in range(12) if f"study number {n} of" in text)
        time.sleep(0.05 * (number % 3))
        return proposals({"mbs": number + 1})

    with LlmServer(reply=told) as server:
        clients = [Client(Endpoint("openai/small", server.url)) for _ in range(2)]

        def asked(number: int) -> int:
            client = clients[number % 2]
            with locks[number % 2]:
                client.start()
                found = client.ask("Propose.", f"study number {number} of 12", "", 60.0)
            return int(found["fields"]["proposals"][0]["config"]["mbs"])

        locks = [threading.Lock(), threading.Lock()]
        try:
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(asked, range(12)))
        finally:
            for client in clients:
                client.close()
    assert answers == [number + 1 for number in range(12)]
