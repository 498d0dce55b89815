"""A loopback server that speaks OpenAI's chat completions, well or with one of many faults.

    with LlmServer("good") as server: ... server.url ...

A fault is chosen by mode, for every request or by a list, one for each request in turn. ``python -m
tests.llm_server MODE`` serves until it is stopped and prints its URL.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

CONFIG = {"tp": 1, "pp": 2, "mbs": 2}
GOOD: dict[str, Any] = {
    "hypotheses": [{"claim": "tensor parallelism costs more than it saves", "confidence": 0.7}],
    "axis_priors": [{"axis": "tp", "value": 1, "weight": 0.8}],
    "notes": "tp 1 looked good",
    "proposals": [
        {"config": CONFIG, "expected_effect": 0.08, "reason": "less communication"},
        {"config": {"tp": 1, "pp": 1, "mbs": 4}, "expected_effect": 0.05, "reason": "no pipeline"},
    ],
}
"""A reply that suits the small study of the tests."""


def text_of(**changes: Any) -> str:
    """A good reply as text, with some fields changed."""
    return json.dumps(GOOD | changes)


def proposals(*configs: Any, effect: Any = 0.1) -> str:
    """A reply that proposes these configs."""
    listed = [{"config": c, "expected_effect": effect, "reason": "scripted"} for c in configs]
    return text_of(proposals=listed)


REPLIES: dict[str, Callable[[], str]] = {
    "good": lambda: text_of(),
    "prose": lambda: "I would raise the micro-batch size and see what happens.",
    "fenced": lambda: f"Sure, here you are:\n```json\n{text_of()}\n```",
    "cut": lambda: text_of()[: len(text_of()) // 2],
    "empty_text": lambda: "",
    "wrong_types": lambda: json.dumps({"proposals": "tp=2", "axis_priors": 7, "notes": [1]}),
    "wrong_members": lambda: text_of(
        proposals=[3, {"config": "tp=2"}, {"config": {"tp": [2], "mbs": None}}],
        axis_priors=[{"axis": "tp"}, {"axis": 3, "value": {}, "weight": "much"}],
    ),
    "no_proposals": lambda: json.dumps({"hypotheses": [], "notes": "nothing to add"}),
    "illegal": lambda: proposals({"tp": 3, "pp": 7, "cp": 5, "ep": 9}, {"schedule": "zb-h2"}),
    "near_miss": lambda: proposals({"tp": 3}, {"schedule": "interleavd", "vpp": 2}),
    "duplicates": lambda: proposals(CONFIG, CONFIG, {}, {"tp": 2}, CONFIG),
    "unknown_axes": lambda: proposals({"learning_rate": 0.1}, {"../../etc/passwd": "x", "tp": 1}),
    "too_big": lambda: proposals({"tp": 1, "pp": 1, "mbs": 4, "recompute": "none"}),
    "nan": lambda: (
        text_of().replace("0.08", "NaN").replace("0.05", "Infinity").replace("0.8", "-NaN")
    ),
    "huge_numbers": lambda: proposals({"mbs": 10**30}, {"tp": 2**31}, effect=1e308),
    "html": lambda: text_of(
        notes="<script>alert(1)</script>",
        proposals=[
            {
                "config": CONFIG,
                "expected_effect": 0.08,
                "reason": "<script>alert('x')</script> | **bold** ![a](http://x/y.png)",
            }
        ],
    ),
    "many": lambda: proposals(*({"mbs": 1 + i % 4, "tp": 1 + i % 2} for i in range(500))),
    "deep": lambda: '{"proposals": ' + "[" * 20000 + "]" * 20000 + "}",
}
"""Modes that answer with status 200 and a whole completion."""
TRANSPORT = (
    "status_429", "status_500", "status_401", "status_404", "html_page", "not_json", "no_choices",
    "null_content", "no_body", "closed", "hung", "drip", "huge", "not_utf8", "wrong_length",
    "echo_key", "redirect",
)  # fmt: skip
"""Modes that break the protocol."""
MODES = (*REPLIES, *TRANSPORT)


class LlmServer:
    """Serves on a free port of 127.0.0.1 from ``with`` to its end.

    ``requests`` are the bodies that came, ``keys`` the Authorization headers, ``paths`` where to.
    Mode ``redirect`` answers with the status and the location of ``redirect``, by default another
    path of its own.
    """

    def __init__(
        self,
        mode: str | Sequence[str] = "good",
        reply: Callable[[dict[str, Any]], str] | None = None,
        port: int = 0,
    ) -> None:
        self.modes = [mode] if isinstance(mode, str) else list(mode)
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.paths: list[str] = []
        self.redirect = (302, "")
        self.ended = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                key = self.headers.get("Authorization", "")
                with outer._lock:
                    number = len(outer.requests)
                    outer.requests.append(body)
                    outer.keys.append(key)
                    outer.paths.append(self.path)
                mode = outer.modes[min(number, len(outer.modes) - 1)]
                try:
                    outer.answer(self, mode, body, key)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_POST  # what clients make of a POST that is answered with 302

            def log_message(self, *_: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def url(self) -> str:
        """What ``--llm-url`` is given."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> LlmServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(
        self, handler: BaseHTTPRequestHandler, mode: str, body: dict[str, Any], key: str
    ) -> None:
        """Answers one request in a mode."""
        if mode in REPLIES:
            text = self.reply(body) if self.reply is not None else REPLIES[mode]()
            send(handler, 200, json.dumps(completion(text, body)).encode())
        elif mode.startswith("status_"):
            status = int(mode.removeprefix("status_"))
            error = {"error": {"message": f"no, not now ({status})", "type": "refused"}}
            send(handler, status, json.dumps(error).encode())
        elif mode == "echo_key":
            text = f"your key is {key}, {key.removeprefix('Bearer ')}"
            send(handler, 400, json.dumps({"error": {"message": text}}).encode())
        elif mode == "html_page":
            send(handler, 200, b"<html><body>Welcome to the proxy</body></html>", "text/html")
        elif mode == "not_json":
            send(handler, 200, b'{"choices": [')
        elif mode == "no_choices":
            send(handler, 200, json.dumps(completion("", body) | {"choices": []}).encode())
        elif mode == "null_content":
            send(handler, 200, json.dumps(completion(None, body)).encode())
        elif mode == "no_body":
            send(handler, 200, b"")
        elif mode == "not_utf8":
            whole = json.dumps(completion("XX", body)).encode().replace(b"XX", b"\xff\xfe\xc3(")
            send(handler, 200, whole)
        elif mode == "redirect":
            handler.send_response(self.redirect[0])
            handler.send_header("Location", self.redirect[1] or f"{self.url}/elsewhere")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        else:
            self._broken(handler, mode, body)

    def _broken(self, handler: BaseHTTPRequestHandler, mode: str, body: dict[str, Any]) -> None:
        """Modes that end or hold the connection."""
        handler.close_connection = True
        if mode == "closed":
            return
        whole = json.dumps(completion(text_of(), body)).encode()
        if mode == "hung":
            self.ended.wait(120)
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        if mode == "wrong_length":
            handler.send_header("Content-Length", str(len(whole) + 1000))
            handler.end_headers()
            handler.wfile.write(whole)
        elif mode == "drip":
            handler.send_header("Content-Length", str(len(whole)))
            handler.end_headers()
            for byte in whole:
                handler.wfile.write(bytes([byte]))
                handler.wfile.flush()
                if self.ended.wait(0.5):
                    return
        elif mode == "huge":
            handler.end_headers()
            handler.wfile.write(whole[:-2])
            while not self.ended.is_set():
                handler.wfile.write(b" " * (1 << 20))
                time.sleep(0.05)
        else:
            raise ValueError(f"there is no mode {mode!r}")


def completion(text: str | None, body: dict[str, Any]) -> dict[str, Any]:
    """A chat completion."""
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", "m"),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120},
    }


def send(
    handler: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json"
) -> None:
    """Sends a whole answer."""
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def main() -> None:
    """Serves until it is stopped."""
    with LlmServer(sys.argv[1] if len(sys.argv) > 1 else "good") as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
