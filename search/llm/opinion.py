"""Advice as an opinion on candidates, and how far its earlier opinions are to be believed.

A preferred value raises every candidate that has it, a proposal raises the candidates like it. What
an opinion is worth is judged on trials that came after it only: a model that sees the ledger could
otherwise earn trust by repeating it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from search.llm.advice import Advice
from search.prior import Opinion, standings, trust

Floats = NDArray[np.float64]

PROPOSAL_HEIGHT = 2.0
"""How much a proposal raises itself, in units of a fully preferred value of one axis (assumed)."""
LEAST_PROPOSALS = 3
"""Own proposals evaluated before they are judged as a group."""
ONE_IN = 3
"""At most one evaluation in three is the model's."""


class Candidates(Protocol):
    """Candidates as opinions see them."""

    def __len__(self) -> int: ...

    def having(self, axis: str, value: Any) -> NDArray[np.bool_] | None:
        """Which candidates have a value on an axis; None where there is no such axis or value."""
        ...

    def closeness(self, config: Mapping[str, Any]) -> Floats | None:
        """How like a config each candidate is, 1 for itself, about 1/e a step away; or None."""
        ...


def opinion_of(candidates: Candidates, advice: Advice) -> Floats:
    """Scores of all candidates, shape (n,); only their order counts."""
    scores = np.zeros(len(candidates))
    for values, weight in advice.axis_priors:
        masks = [candidates.having(axis, value) for axis, value in values.items()]
        known = [mask for mask in masks if mask is not None]
        if known and len(known) == len(masks):
            scores += weight * np.logical_and.reduce(known)
    usable = advice.usable
    for place, proposal in enumerate(usable):
        assert proposal.config is not None
        close = candidates.closeness(proposal.config)
        if close is not None:
            height = PROPOSAL_HEIGHT * (1.0 - 0.5 * place / len(usable))
            scores += (-height if (proposal.expected_effect or 0.0) < 0 else height) * close
    return scores


_STANDINGS: WeakKeyDictionary[Candidates, dict[int, tuple[Advice, Floats]]] = WeakKeyDictionary()
"""Standings by candidates and round: a study asks for the same ones before every trial."""


def _standing(candidates: Candidates, advice: Advice) -> Floats:
    """What a round thought of each candidate, as ``search.prior.standings``."""
    held = _STANDINGS.setdefault(candidates, {})
    if id(advice) not in held:  # the advice is kept with it, so its id is not given away again
        held[id(advice)] = (advice, standings(opinion_of(candidates, advice)))
    return held[id(advice)][1]


def foretold(
    candidates: Candidates, advice: Sequence[Advice], order: Sequence[int]
) -> dict[int, float]:
    """Row -> standing that the advice in force gave it before it was evaluated.

    Args:
        candidates: the pool.
        advice: all rounds, oldest first.
        order: the row that each trial evaluated, -1 for one beside the pool.
    """
    held = [a for a in advice if not a.failure]
    told: dict[int, float] = {}
    for position, row in enumerate(order):
        before = [a for a in held if a.known <= position]
        if row < 0 or not before:
            continue
        told[int(row)] = float(_standing(candidates, before[-1])[row])
    return told


def current_opinion(
    candidates: Candidates, advice: Sequence[Advice], order: Sequence[int]
) -> Opinion | None:
    """The opinion of the last round that held, with what all foretold; None if none held."""
    held = [a for a in advice if not a.failure]
    if not held:
        return None
    return Opinion(_standing(candidates, held[-1]), foretold(candidates, advice, order))


def agreement(told: Mapping[int, float], rows: Sequence[int], values: Sequence[float]) -> float:
    """How far the model is to be believed, 0 to 1: rank agreement of what it foretold.

    Args:
        told: row -> standing foretold.
        rows, values: evaluated rows and what they were worth, higher is better.
    """
    both = [(told[r], v) for r, v in zip(rows, values, strict=True) if r in told]
    said, seen = np.array([s for s, _ in both]), np.array([v for _, v in both])
    return trust(said, seen)


def has_a_say(believed: float, own: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the model's proposals may still be evaluated.

    Not where nothing is believed of it any more, nor where some of its proposals were evaluated and
    the best of them is worse than the middle of all other trials.

    Args:
        believed: ``agreement``.
        own, others: values of the model's trials and of all others, those that do not fit as 0.
    """
    if believed <= 0.0:
        return False
    if len(own) < LEAST_PROPOSALS or not others:
        return True
    return max(own) >= float(np.median(others))


def is_its_turn(own: int, total: int) -> bool:
    """Whether the next evaluation may be the model's: never more than one in three."""
    return ONE_IN * (own + 1) <= total + 1
