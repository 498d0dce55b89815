"""Verdicts on a bundle and everything that was found out about it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from studies.toolbox.bundle import Bundle


class Verdict(StrEnum):
    """How an evaluation ends; only KEEP claims a gain."""

    KEEP = "keep"
    """Faster than the threshold with confidence, correct, and proven to change execution."""
    DROP = "drop"
    """A gain above the threshold is out of reach."""
    INCONCLUSIVE = "inconclusive"
    """All blocks are spent and the interval still holds the threshold."""
    NOISY = "noisy"
    """Two copies of the baseline differ too much on this machine for a claim."""
    NO_EFFECT = "no effect"
    """Nothing shows that a tool changed execution; it was not timed."""
    WRONG = "wrong"
    """The outputs are beyond the correctness budget."""
    OUT_OF_MEMORY = "out of memory"
    """Device or host memory did not suffice."""
    FAILED = "failed"
    """It raised, did not compile, hung or died."""

    @property
    def timed(self) -> bool:
        """Whether a speed was measured."""
        return self in (Verdict.KEEP, Verdict.DROP, Verdict.INCONCLUSIVE, Verdict.NOISY)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict on a bundle against a base; ratios are of speed, 1.05 is 5% faster.

    Attributes:
        bundle, base: what was compared.
        sentence: the reason in one sentence.
        log_ratio, standard_error: estimate of the log speed ratio; None where it was not timed.
        lower, upper: interval of the ratio; None where it was not timed.
        tokens_per_s: of the candidate; None where it was not timed.
        correctness: how far the worst check is beyond its budget, log10; 0 or less passes.
        details: evidence, checks, raw times and so on, as JSON.
        cost_s: seconds that the evaluation took.
    """

    bundle: Bundle
    verdict: Verdict
    sentence: str
    base: Bundle = field(default_factory=Bundle)
    log_ratio: float | None = None
    standard_error: float | None = None
    lower: float | None = None
    upper: float | None = None
    tokens_per_s: float | None = None
    correctness: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)
    cost_s: float = 0.0

    @property
    def ratio(self) -> float | None:
        """The estimated speed ratio."""
        return None if self.log_ratio is None else math.exp(self.log_ratio)

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "bundle": self.bundle.as_json(),
            "base": self.base.as_json(),
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "ratio": self.ratio,
            "log_ratio": self.log_ratio,
            "standard_error": self.standard_error,
            "lower": self.lower,
            "upper": self.upper,
            "tokens_per_s": self.tokens_per_s,
            "correctness": self.correctness,
            "cost_s": self.cost_s,
            "details": self.details,
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Outcome:
        """The outcome that ``as_json`` wrote."""
        fields = {k: v for k, v in content.items() if k != "ratio"}
        return cls(
            **{
                **fields,
                "bundle": Bundle.of(content["bundle"]),
                "base": Bundle.of(content["base"]),
                "verdict": Verdict(content["verdict"]),
            }
        )
