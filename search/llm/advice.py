"""Advice: what one round with a model led to, checked, as a study keeps it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from search.llm.asking import Answer, Consultant, Request
from search.llm.schema import ProposedConfig
from specs.text import one_line

ACCEPTED, REPAIRED, DUPLICATE, ILLEGAL, MEMORY = (
    "accepted",
    "repaired",
    "duplicate",
    "illegal",
    "memory",
)
FED_BACK = (ILLEGAL, MEMORY)
"""Verdicts that the model is told of, once, to do better."""
WHY_LENGTH = 300


@dataclass(frozen=True)
class Finding:
    """What the rules say of a proposed config.

    ``config`` is what would be evaluated, axis -> value; None where nothing would be.
    """

    verdict: str
    why: str = ""
    config: Mapping[str, Any] | None = None


class Ground(Protocol):
    """What proposals are checked against: legality, memory and what was tried already."""

    def judge(self, proposed: Mapping[str, Any]) -> Finding:
        """The verdict on a full or partial config; the same config twice is a duplicate."""
        ...


@dataclass(frozen=True)
class CheckedProposal:
    """A proposal as the model wrote it and what became of it."""

    proposed: Mapping[str, Any]
    verdict: str
    why: str
    config: Mapping[str, Any] | None
    expected_effect: float | None
    reason: str

    @property
    def usable(self) -> bool:
        """Whether it may be evaluated."""
        return self.verdict in (ACCEPTED, REPAIRED) and self.config is not None

    def as_json(self) -> dict[str, Any]:
        """The proposal as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Advice:
    """Round ``number``, asked when ``known`` trials were known; ``failure`` is empty if it held.

    ``axis_priors`` are (values that a config must have, axis -> value; weight).
    """

    number: int
    known: int
    failure: str = ""
    hypotheses: tuple[Mapping[str, Any], ...] = ()
    axis_priors: tuple[tuple[Mapping[str, Any], float], ...] = ()
    notes: str = ""
    proposals: tuple[CheckedProposal, ...] = ()

    @property
    def usable(self) -> tuple[CheckedProposal, ...]:
        """The proposals that may be evaluated, in the model's order."""
        return tuple(proposal for proposal in self.proposals if proposal.usable)

    def as_json(self) -> dict[str, Any]:
        """The advice as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Advice:
        """The advice that ``as_json`` described."""
        return cls(
            number=content["number"],
            known=content["known"],
            failure=content["failure"],
            hypotheses=tuple(content["hypotheses"]),
            axis_priors=tuple((dict(held), float(w)) for held, w in content["axis_priors"]),
            notes=content["notes"],
            proposals=tuple(CheckedProposal(**held) for held in content["proposals"]),
        )


def consult(
    consultant: Consultant, ground: Ground, request: Request, number: int, known: int
) -> Advice:
    """Asks, checks every proposal, and feeds back exactly once what was wrong.

    Args:
        consultant: who is asked.
        ground: what proposals are checked against.
        request: the question, without feedback.
        number: of the round.
        known: trials known so far.
    """
    answer = consultant.ask(request)
    first = _checked(answer, ground, number, known)
    consultant.judged(request, [p.as_json() for p in first.proposals])
    feedback = _feedback(answer, first)
    if not feedback:
        return first
    again = replace(request, feedback=feedback)
    second = _checked(consultant.ask(again), ground, number, known)
    consultant.judged(again, [p.as_json() for p in second.proposals])
    if second.failure:
        return first
    return replace(
        second,
        hypotheses=second.hypotheses or first.hypotheses,
        axis_priors=second.axis_priors or first.axis_priors,
        notes=second.notes or first.notes,
        proposals=(*first.proposals, *second.proposals),
    )


def _checked(answer: Answer, ground: Ground, number: int, known: int) -> Advice:
    outcome = answer.outcome
    if isinstance(outcome, str):
        return Advice(number, known, failure=outcome)
    return Advice(
        number=number,
        known=known,
        hypotheses=tuple(held.model_dump(mode="json") for held in outcome.hypotheses),
        axis_priors=tuple(
            ({**p.when, p.axis: p.value}, p.weight) for p in outcome.axis_priors if p.weight
        ),
        notes=outcome.notes,
        proposals=tuple(_proposal(held, ground) for held in outcome.proposals),
    )


def _proposal(held: ProposedConfig, ground: Ground) -> CheckedProposal:
    found = ground.judge(held.config)
    return CheckedProposal(
        proposed=dict(held.config),
        verdict=found.verdict,
        why=one_line(found.why, WHY_LENGTH),
        config=None if found.config is None else dict(found.config),
        expected_effect=held.expected_effect,
        reason=held.reason,
    )


def _feedback(answer: Answer, advice: Advice) -> str:
    """What the model is told to do better; empty where it may not or need not be asked again."""
    if answer.skipped:
        return ""
    if advice.failure:
        # A server that failed has said nothing that could be put right.
        return f"Your last reply could not be used: {advice.failure}" if answer.text else ""
    wrong = [p for p in advice.proposals if p.verdict in FED_BACK]
    if not wrong:
        return ""
    lines = [f"{_words(p.proposed)}: {p.verdict}: {p.why}" for p in wrong]
    return "These proposals were refused; replace them:\n" + "\n".join(lines)


def _words(config: Mapping[str, Any]) -> str:
    return one_line(", ".join(f"{axis}={value}" for axis, value in config.items()), WHY_LENGTH)


def notes_of(advice: Sequence[Advice], most: int = 3) -> list[str]:
    """The model's notes of its last rounds, oldest first."""
    return [held.notes for held in advice if held.notes][-most:]
