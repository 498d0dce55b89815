"""Compiles the program on recorded studies: examples whose proposals had little regret.

DSPy's optimizers choose and make the examples. What is kept is plain JSON, which nothing executes,
and which ``--llm-program`` loads. The metric is the regret of the proposals: how far the best
proposal that fits is below the best config known of the study.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.llm.recording import read_lines
from search.llm.schema import Reply, read_reply
from specs.errors import InputError

SCHEMA_VERSION = 1
MOST_EXAMPLES = 3
"""Examples of a program: each is a whole briefing, some thousand tokens."""

Regret = Callable[["Example", Reply], float]
"""How far the best proposal of a reply is below the best config known, a fraction; 1 where none
fits."""


@dataclass(frozen=True)
class Example:
    """A question with the answer that was given; ``fields`` is None where there was none."""

    instructions: str
    briefing: str
    feedback: str
    fields: Mapping[str, Any] | None


def recorded_examples(paths: Sequence[Path]) -> list[Example]:
    """The calls of recordings.

    Raises:
        InputError: a file is no recording, or none holds a call.
    """
    examples = [
        Example(line["instructions"], line["briefing"], line["feedback"], line.get("fields"))
        for path in paths
        for line in read_lines(path)
        if line["kind"] == "call" and not line.get("skipped")
    ]
    if not examples:
        raise InputError("the recordings hold no call; record a study with --llm first.")
    return examples


def mean_regret(examples: Sequence[Example], regret: Regret) -> float:
    """Mean regret of the answers; one that could not be used counts 1."""
    regrets = [_regret(example, example.fields, regret) for example in examples]
    return sum(regrets) / len(regrets)


def _regret(example: Example, fields: Any, regret: Regret) -> float:
    reply = read_reply(fields)
    return regret(example, reply) if isinstance(reply, Reply) else 1.0


def compiled(
    examples: Sequence[Example],
    regret: Regret,
    good: float,
    lm: Any | None = None,
    most: int = MOST_EXAMPLES,
) -> dict[str, Any]:
    """A compiled program as JSON.

    Args:
        examples: recorded questions and answers.
        regret: of the proposals of a reply to an example.
        good: regret up to which an answer is an example to follow.
        lm: a DSPy language model that answers the questions again, from which good answers are
            taken too (``BootstrapFewShot``); without it recorded answers alone are used
            (``LabeledFewShot``).
        most: examples that are kept.

    Raises:
        InputError: no answer is good enough, or none came because of a redirect.
    """
    import dspy

    from search.llm.program import OneReply, Proposer
    from search.llm.redirects import REDIRECTED, refused

    program = Proposer(examples[0].instructions)
    labelled = [
        dspy.Example(briefing=e.briefing, feedback=e.feedback, **dict(e.fields or {})).with_inputs(
            "briefing", "feedback"
        )
        for e in sorted(examples, key=lambda e: _regret(e, e.fields, regret))
        if _regret(e, e.fields, regret) <= good
    ]
    if lm is None:
        if not labelled:
            raise InputError(f"no recorded answer has a regret of {good:.0%} or less.")
        optimizer = dspy.LabeledFewShot(k=most)
        made = optimizer.compile(program, trainset=labelled[:most], sample=False)
    else:
        found = {e.briefing: e for e in examples}
        questions = [
            dspy.Example(briefing=e.briefing, feedback="").with_inputs("briefing", "feedback")
            for e in found.values()
        ]

        def metric(example: Any, prediction: Any, _trace: Any = None) -> bool:
            fields = {name: _plain(value) for name, value in prediction.items()}
            return _regret(found[example.briefing], fields, regret) <= good

        optimizer = dspy.BootstrapFewShot(
            metric=metric,
            max_bootstrapped_demos=most,
            max_labeled_demos=0,
            max_rounds=1,
            max_errors=len(questions) + 1,  # a question without an answer is no example, no more
        )
        with dspy.context(lm=lm, adapter=OneReply()):
            made = optimizer.compile(program, trainset=questions)
        if not made.propose.demos and refused:
            raise InputError(f"no answer of the model: {REDIRECTED}.")
        if not made.propose.demos:
            raise InputError(f"no answer of the model has a regret of {good:.0%} or less.")
    kept = [{k: _plain(v) for k, v in dict(demo).items()} for demo in made.propose.demos[:most]]
    return {
        "schema_version": SCHEMA_VERSION,
        "optimizer": type(optimizer).__name__,
        "metric": "regret of the proposals",
        "good": good,
        "mean_regret_of_recorded": mean_regret(examples, regret),
        "examples": [{k: v for k, v in demo.items() if k != "augmented"} for demo in kept],
    }


def _plain(value: Any) -> Any:
    """A value of DSPy as JSON."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    return json.loads(json.dumps(value, default=str))
