"""What is asked of a model and what comes back, whoever answers: a provider or a recording."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from search.llm.budget import Spent
from search.llm.schema import Reply, read_reply


@dataclass(frozen=True)
class Request:
    """One question.

    ``instructions`` say what the model is for, ``briefing`` is what it sees of the study and
    ``feedback`` what was wrong with its last reply. ``program`` names a compiled program.
    """

    instructions: str
    briefing: str
    feedback: str = ""
    program: str = ""

    @property
    def sha256(self) -> str:
        """A hash of everything that the reply may depend on."""
        parts = [self.instructions, self.briefing, self.feedback, self.program]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def text(self) -> str:
        """All of it, for counting tokens."""
        return "\n".join((self.instructions, self.briefing, self.feedback))


@dataclass(frozen=True)
class Answer:
    """What came back: ``fields`` of the reply, or a ``failure`` in one sentence.

    ``text`` is what the model wrote; ``skipped`` says that it was not asked at all. ``cost_usd`` is
    None where nobody knows the price.
    """

    fields: Mapping[str, Any] | None = None
    failure: str = ""
    text: str = ""
    skipped: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0

    @property
    def outcome(self) -> Reply | str:
        """The reply as typed, or one sentence of why there is none."""
        return self.failure or read_reply(self.fields)


class Consultant(Protocol):
    """Somebody to ask. Never raises for what a model or its server does."""

    model: str
    spent: Spent

    def ask(self, request: Request) -> Answer:
        """The answer to a request."""
        ...

    def judged(self, request: Request, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Is told what became of each proposal of the answer."""
        ...


@dataclass
class Scripted:
    """A consultant that says what a function says: experts of known quality, tests."""

    answer: Any
    model: str = "scripted"
    spent: Spent = field(default_factory=Spent)
    requests: list[Request] = field(default_factory=list)
    verdicts: list[list[Mapping[str, Any]]] = field(default_factory=list)

    def ask(self, request: Request) -> Answer:
        """What the function says of the request: fields of a reply, or a failure."""
        self.requests.append(request)
        said = self.answer(request)
        self.spent.add(0, 0, 0.0, 0.0)
        return Answer(failure=said) if isinstance(said, str) else Answer(fields=said)

    def judged(self, request: Request, verdicts: Sequence[Mapping[str, Any]]) -> None:
        """Keeps the verdicts."""
        del request
        self.verdicts.append(list(verdicts))
