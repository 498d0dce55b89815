"""A model as a consultant of a study: within its budget, its deadline and its patience, on record.

Whatever the model or its server does, the answer is a reply or one sentence of why there is none.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from search.llm.asking import Answer, Request
from search.llm.budget import Caps, tokens_of, why_not_affordable
from search.llm.client import Client, Endpoint, Failed
from search.llm.recording import Recording
from search.llm.redaction import Redactor
from specs.text import one_line

DEADLINE_S = 60.0
"""Seconds for a question and the answer to its feedback, retries included."""
PATIENCE = 2
"""Rounds without an answer in a row after which a study does not ask again."""
FAILURE_LENGTH = 240


class LiveConsultant:
    """Asks a model over the network; every call is recorded before its answer is used."""

    def __init__(
        self,
        endpoint: Endpoint,
        recording: Recording,
        caps: Caps,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._client = Client(endpoint)
        self._recording, self._caps, self._deadline_s = recording, caps, deadline_s
        self._redact = Redactor.of_environment(endpoint.url)
        self._failures = 0
        self._ends = 0.0
        self.model = endpoint.model
        self.spent = recording.spent

    def ask(self, request: Request) -> Answer:
        """The model's answer; never raises for what the model or its server does."""
        answer = self._asked(request)
        answer = replace(answer, seconds=round(answer.seconds, 3))  # as it is recorded
        if not answer.skipped:
            self.spent.add(
                answer.prompt_tokens, answer.completion_tokens, answer.cost_usd, answer.seconds
            )
            missed = 0 if request.feedback else 1
            self._failures = self._failures + missed if answer.failure else 0
        self._recording.call(request, answer, self.model)
        return answer

    def _asked(self, request: Request) -> Answer:
        if self._failures >= PATIENCE:
            return _skipped(f"it failed {self._failures} rounds in a row and is not asked again")
        began = time.monotonic()
        try:
            self._client.start()
            why = why_not_affordable(
                self._caps, self.spent, request.text, self._client.reply_tokens, self._client.price
            )
            if why:
                return _skipped(why)
            if not request.feedback:
                self._ends = time.monotonic() + self._deadline_s
            left_s = self._ends - time.monotonic()
            if left_s <= 0:
                return _skipped("no time is left for a second answer")
            began = time.monotonic()
            found = self._client.ask(
                request.instructions, request.briefing, request.feedback, left_s
            )
        except Failed as failed:
            return Answer(
                failure=one_line(self._redact(str(failed)), FAILURE_LENGTH),
                # What was sent may have been billed.
                prompt_tokens=tokens_of(request.text) if failed.sent else 0,
                seconds=time.monotonic() - began,
            )
        return self._answer(request, self._redact.deeply(found))

    def _answer(self, request: Request, found: Mapping[str, Any]) -> Answer:
        text = str(found.get("text", ""))
        prompt = int(found.get("prompt_tokens") or tokens_of(request.text))
        reply = int(found.get("completion_tokens") or (tokens_of(text) if text else 0))
        cost, price = found.get("cost_usd"), self._client.price
        if cost is None and price is not None:
            cost = prompt * price[0] + reply * price[1]
        return Answer(
            fields=found.get("fields"),
            failure=one_line(found.get("failure", ""), FAILURE_LENGTH),
            text=text,
            prompt_tokens=prompt,
            completion_tokens=reply,
            cost_usd=cost,
            seconds=float(found.get("seconds") or 0.0),
        )

    def judged(self, request: Request, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Records what became of each proposal."""
        self._recording.verdicts(request, verdicts)

    def close(self) -> None:
        """Ends the process that talks to the model."""
        self._client.close()


def _skipped(why: str) -> Answer:
    return Answer(failure=why, skipped=True)
