"""When a model is asked, and which of its proposals is evaluated next, if any."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from search.llm.advice import Advice, CheckedProposal
from search.llm.opinion import Candidates, agreement, foretold, has_a_say, is_its_turn

FIRST = 1
"""Trials known before the model is asked first: the baseline."""
EVERY = 6
"""Trials between two questions: two of the model's and four others to learn from."""
MOST_ROUNDS = 8
RECENT = 2
"""Rounds whose proposals still wait."""
LEAST_WORTH = -3.0
"""Log of the expected gain of a proposal over that of the best candidate, below which it is not
evaluated: what was measured says by now that it is hopeless."""

Worth = Callable[[Mapping[str, Any]], float | None]
"""Log of the expected gain of a config over that of the best candidate; None: not to be evaluated
(it was, or it is no candidate)."""


@dataclass
class Trials:
    """The trials so far, in order: the row of each among some candidates (-1 beside them), what it
    was worth (0 where it does not fit, NaN where that is not known yet), and whether the model
    proposed it."""

    rows: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    mine: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: int, value: float, mine: bool) -> None:
        """One more trial."""
        self.rows.append(row)
        self.values.append(value)
        self.mine.append(mine)

    def worth(self, mine: bool) -> list[float]:
        """What the model's trials were worth, or those of all others."""
        pairs = zip(self.values, self.mine, strict=True)
        return [v for v, own in pairs if own is mine and isfinite(v)]


def is_due(advice: Sequence[Advice], trials: int) -> bool:
    """Whether the model is to be asked now."""
    if len(advice) >= MOST_ROUNDS:
        return False
    return trials >= (advice[-1].known + EVERY if advice else FIRST)


def standing_of_model(advice: Sequence[Advice], candidates: Candidates, trials: Trials) -> float:
    """How far the model is believed now, 0 to 1; 0 also where its proposals lost their say."""
    told = foretold(candidates, advice, trials.rows)
    known = [pair for pair in zip(trials.rows, trials.values, strict=True) if isfinite(pair[1])]
    believed = agreement(told, [row for row, _ in known], [value for _, value in known])
    own, others = trials.worth(True), trials.worth(False)
    return believed if has_a_say(believed, own, others) else 0.0


def its_turn(
    advice: Sequence[Advice], candidates: Candidates, trials: Trials, worth: Worth
) -> CheckedProposal | None:
    """The model's proposal to evaluate next; None where it is not its turn, it has none or no say.

    Of the proposals of its last two rounds the one that promises most by all that is known.

    Args:
        advice: all rounds, oldest first.
        candidates: what opinions are about.
        trials: so far.
        worth: what a config promises.
    """
    if not is_its_turn(sum(trials.mine), len(trials)):
        return None
    if standing_of_model(advice, candidates, trials) <= 0.0:
        return None
    waiting = [p for held in reversed(advice[-RECENT:]) for p in held.usable]
    promised = [(worth(proposal.config or {}), proposal) for proposal in waiting]
    usable = [(gain, p) for gain, p in promised if gain is not None and gain >= LEAST_WORTH]
    return max(usable, key=lambda pair: pair[0])[1] if usable else None
