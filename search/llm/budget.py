"""What asking a model may cost: tokens, money, calls. A call that could break a cap is not made."""

from __future__ import annotations

from dataclasses import dataclass

CHARACTERS_PER_TOKEN = 3
"""Fewer than any tokenizer needs for English and JSON (about 4), so that caps hold (assumed)."""
DEFAULT_TOKENS = 200_000
"""Tokens of a study where nothing else is said: a few rounds of any model."""


@dataclass(frozen=True)
class Caps:
    """The most that a study may spend: tokens of prompts and replies, US dollars."""

    tokens: int = DEFAULT_TOKENS
    cost_usd: float | None = None


@dataclass
class Spent:
    """What was spent; ``cost_usd`` is None once a call was made whose price nobody knows."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Prompt and reply."""
        return self.prompt_tokens + self.completion_tokens

    def add(self, prompt: int, completion: int, cost_usd: float | None, seconds: float) -> None:
        """Counts a call."""
        self.calls += 1
        self.prompt_tokens += max(prompt, 0)
        self.completion_tokens += max(completion, 0)
        known = self.cost_usd is not None and cost_usd is not None
        self.cost_usd = (self.cost_usd or 0.0) + (cost_usd or 0.0) if known else None
        self.seconds += seconds

    def as_json(self) -> dict[str, float | int | None]:
        """Everything, as JSON."""
        return {
            "calls": self.calls,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost_usd": self.cost_usd,
            "seconds": round(self.seconds, 3),
        }


def tokens_of(text: str) -> int:
    """Tokens that a text may take, rather too many than too few."""
    return len(text.encode("utf-8")) // CHARACTERS_PER_TOKEN + 1


def why_not_affordable(
    caps: Caps, spent: Spent, prompt: str, reply_tokens: int, price: tuple[float, float] | None
) -> str:
    """Why a call may not be made; empty where it may.

    Args:
        caps: the most that may be spent.
        spent: so far.
        prompt: what would be sent.
        reply_tokens: the most that may come back.
        price: US dollars a token of prompt and of reply; None where nobody knows.
    """
    asked = tokens_of(prompt)
    if spent.tokens + asked + reply_tokens > caps.tokens:
        return f"the token budget is spent ({spent.tokens:,} of {caps.tokens:,})"
    if caps.cost_usd is None:
        return ""
    if price is None or spent.cost_usd is None:
        return "the price of the model is not known, so the cost cap cannot be kept"
    if spent.cost_usd + asked * price[0] + reply_tokens * price[1] > caps.cost_usd:
        return f"the cost cap is reached (${spent.cost_usd:.4f} of ${caps.cost_usd:.4f})"
    return ""
