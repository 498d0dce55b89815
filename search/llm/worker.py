"""The process that talks to a model: one JSON line in, one out, until its input ends.

A process and not a thread, because a hung or endless reply is then ended for certain, with whatever
memory it took. Everything that LiteLLM and DSPy print goes to stderr, which nobody keeps.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEY_VARIABLE = "FORETUNE_LLM_API_KEY"
"""Environment variable with the key for ``--llm-url``."""
REPLY_TOKENS = 4096
REASONING_TOKENS = 16384
"""Tokens of a reply; models that reason count their thoughts (DSPy asks at least 16,000)."""
RETRIES = 1
CALL_SHARE = 0.5
"""Part of the deadline that one call may take: the rest is for another try or for feedback."""
MOST_MEMORY_BYTES = 8 << 30
GRACE_S = 2.0
"""Seconds after the deadline at which the process ends itself, should nobody have ended it."""


def main() -> None:
    """Serves requests from stdin."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def say(content: Mapping[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    settings = json.loads(sys.stdin.readline())
    try:
        ready = Started(settings)
    except Exception as error:
        say({"failure": f"the model cannot be used: {in_words(error)}"})
        return
    say({"ready": True, "price": price_of(settings["model"]), "reply_tokens": ready.reply_tokens})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, request["left_s"] + GRACE_S)  # ends the process
        say(ready.asked(request))
        signal.setitimer(signal.ITIMER_REAL, 0)


class Started:
    """A model with what it was started with."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        import dspy
        from dspy.utils.exceptions import LMConfigurationError

        from search.llm.program import language_model

        dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
        self._dspy, self._settings = dspy, settings
        key = os.environ.get(KEY_VARIABLE)
        limits: dict[str, Any] = {"num_retries": RETRIES}
        self.reply_tokens = REPLY_TOKENS
        model, url = settings["model"], settings["url"]
        try:
            self._lm = language_model(model, url, key, max_tokens=REPLY_TOKENS, **limits)
        except LMConfigurationError:  # OpenAI's reasoning models
            self.reply_tokens = REASONING_TOKENS
            self._lm = language_model(model, url, key, max_tokens=REASONING_TOKENS, **limits)
        self._programs: dict[str, Any] = {}
        import litellm

        litellm.drop_params = True
        litellm.completion  # noqa: B018  # imports the rest of it before the clock runs

    def asked(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Fields, text, tokens, cost and seconds of one call, or its failure."""
        from search.llm.program import OneReply, load_program
        from search.llm.redirects import REDIRECTED, refused

        began = time.monotonic()
        refused.clear()
        instructions = request["instructions"]
        if instructions not in self._programs:
            path = self._settings["program"]
            self._programs[instructions] = load_program(instructions, Path(path) if path else None)
        lm = self._lm.copy(timeout=max(CALL_SHARE * request["left_s"], 0.1))
        found: dict[str, Any] = {"fields": None, "failure": "", "text": ""}
        try:
            with self._dspy.context(lm=lm, adapter=OneReply()):
                said = self._programs[instructions](
                    briefing=request["briefing"], feedback=request["feedback"]
                )
            found["fields"] = plain(dict(said.items()))
        except Exception as error:
            found["failure"] = REDIRECTED if refused else in_words(error)
        if lm.history:
            last = lm.history[-1]
            found["text"] = str((last.get("outputs") or [""])[0])[:20_000]
            usage = last.get("usage") or {}
            found["prompt_tokens"] = int(usage.get("prompt_tokens") or 0)
            found["completion_tokens"] = int(usage.get("completion_tokens") or 0)
            found["cost_usd"] = last.get("cost") or None
        found["seconds"] = time.monotonic() - began
        return found


def price_of(model: str) -> list[float] | None:
    """US dollars a token of prompt and of reply, from LiteLLM's own table; None if not in it."""
    import litellm

    try:
        prompt, reply = litellm.cost_per_token(
            model=model, prompt_tokens=1_000_000, completion_tokens=1_000_000
        )
    except Exception:
        return None
    known = prompt > 0 or reply > 0
    return [prompt / 1e6, reply / 1e6] if known else None


def plain(value: Any) -> Any:
    """Models of pydantic as JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {str(key): plain(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    return value


WORDS = {
    "LMTimeoutError": "the server did not answer in time",
    "LMTransportError": "the server cannot be reached or broke the connection",
    "LMRateLimitError": "the server refuses for now (too many requests)",
    "LMBillingError": "the account has no credit left",
    "LMAuthError": "the server refuses the key",
    "LMServerError": "the server failed",
    "LMUnsupportedModelError": "the server does not know the model",
    "LMInvalidRequestError": "the server refuses the request",
    "ContextWindowExceededError": "the study is too long for the model",
    "AdapterParseError": "the reply cannot be read",
    "MemoryError": "the reply is too large",
}


_LIBRARIES = re.compile(
    r"^(?:\[[^\]]*\] )?(?:litellm\.)?(?:\w+: )*(?:\w+Exception - )?(?:error - )?"
)
"""What the libraries put before what the server said."""


def in_words(error: BaseException) -> str:
    """One sentence of what went wrong, without the wall of text that libraries add."""
    for kind in type(error).__mro__:
        if kind.__name__ in WORDS:
            words = WORDS[kind.__name__]
            break
    else:
        words = f"the call failed ({type(error).__name__})"
    detail = str(error).strip().splitlines()[0] if str(error).strip() else ""
    detail = _LIBRARIES.sub("", detail)[:160]
    return f"{words}: {detail}" if detail else words


if __name__ == "__main__":
    main()
