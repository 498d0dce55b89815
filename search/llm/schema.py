"""What a language model may answer: typed, bounded, and forgiving of what does not matter.

A part that cannot be used becomes empty or is dropped by itself; only a reply that is not an object
with proposals is refused as a whole. Nothing here decides whether a config is legal.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from specs.text import one_line

MOST_PROPOSALS = 8
MOST_PRIORS = 64
MOST_HYPOTHESES = 8
TEXT_LENGTH = 400
NOTES_LENGTH = 1200
MOST_AXES = 64
LARGEST_EFFECT = 10.0
"""A config that is expected to be more than eleven times as fast is no expectation."""


def _text(limit: int) -> BeforeValidator:
    """Anything as one line of text of at most ``limit`` characters, without control characters."""
    return BeforeValidator(lambda value: one_line(value, limit))


def _effect(value: Any) -> float | None:
    """A finite fraction, from a number or a text such as "+12%"; None where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        if isinstance(value, str):
            number = float(value.strip().removesuffix("%"))
            number = number / 100 if value.strip().endswith("%") else number
        else:
            number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and -1.0 <= number <= LARGEST_EFFECT else None


def _weight(value: Any) -> float:
    number = _effect(value)
    return 0.0 if number is None else max(-1.0, min(1.0, number))


def _probability(value: Any) -> float | None:
    number = _effect(value)
    return None if number is None else max(0.0, min(1.0, number))


def _label(value: Any) -> Any:
    """A value of an axis: text, whole number or yes/no; anything else as short text."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple):
        return one_line(",".join(map(str, value[:MOST_AXES])), TEXT_LENGTH)
    return one_line(value, TEXT_LENGTH)


def _config(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a config is an object of axis: value")
    if len(value) > MOST_AXES:
        raise ValueError(f"a config has at most {MOST_AXES} axes")
    return {one_line(axis, 60): _label(held) for axis, held in value.items() if held is not None}


def _condition(value: Any) -> dict[str, Any]:
    return _config(value or {})


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Hypothesis(_Part):
    """Something the model believes about this job, in words."""

    claim: Annotated[str, _text(TEXT_LENGTH)]
    confidence: Annotated[float | None, BeforeValidator(_probability)] = Field(
        default=None, description="0 to 1"
    )


class ProposedConfig(_Part):
    """A config to try, whole or in part, and what is expected of it."""

    config: Annotated[dict[str, Any], BeforeValidator(_config)] = Field(
        description="axis: value; axes left out keep the value of the best config so far"
    )
    expected_effect: Annotated[float | None, BeforeValidator(_effect)] = Field(
        default=None, description="fraction of throughput over the baseline: 0.05 is 5% faster"
    )
    reason: Annotated[str, _text(TEXT_LENGTH)] = ""


class AxisPrior(_Part):
    """How much better or worse a value of an axis is than the others, alone or beside others."""

    axis: Annotated[str, _text(60)]
    value: Annotated[Any, BeforeValidator(_label)]
    weight: Annotated[float, BeforeValidator(_weight)] = Field(
        description="-1 (avoid) to 1 (prefer)"
    )
    when: Annotated[dict[str, Any], BeforeValidator(_condition)] = Field(
        default={}, description="other axes: values that it holds for; empty: always"
    )


def _usable(kind: type[_Part], most: int) -> BeforeValidator:
    """The members of a list that can be used, at most so many; an object counts as one member."""

    def kept(value: Any) -> list[Any]:
        members = [value] if isinstance(value, dict) else value
        if not isinstance(members, list | tuple):
            raise ValueError(f"expected a list of {kind.__name__}")
        adapter = TypeAdapter(kind)
        found: list[Any] = []
        for member in members:
            try:
                found.append(adapter.validate_python(member))
            except ValidationError:
                continue
            if len(found) == most:
                break
        return found

    return BeforeValidator(kept)


Hypotheses = Annotated[list[Hypothesis], _usable(Hypothesis, MOST_HYPOTHESES)]
Proposals = Annotated[list[ProposedConfig], _usable(ProposedConfig, MOST_PROPOSALS)]
AxisPriors = Annotated[list[AxisPrior], _usable(AxisPrior, MOST_PRIORS)]
Notes = Annotated[str, _text(NOTES_LENGTH)]


class Reply(_Part):
    """A whole answer."""

    hypotheses: Hypotheses = []
    axis_priors: AxisPriors = []
    notes: Notes = ""
    proposals: Proposals


def read_reply(fields: Any) -> Reply | str:
    """The reply that an object describes, or one sentence of why it describes none."""
    if not isinstance(fields, dict):
        return "the reply is not a JSON object"
    try:
        reply = Reply.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return one_line(f"the reply cannot be used: {where}: {first['msg']}", TEXT_LENGTH)
    if not (reply.proposals or reply.axis_priors):
        return "the reply holds no usable proposal and no prior"
    return reply
