"""Simulated experts in the place of a language model: what its planner brings if it knows so much.

An expert believes a mixture of the truth and of noise, reads in the briefing what was measured, and
replies as a model would: through the same checks, turns and trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from search.llm.asking import Request, Scripted
from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.planners.llm import LlmPlanner

EXPERTS = {"llm, good expert": 0.8, "llm, weak expert": 0.5, "llm, misleading expert": -0.5}
"""Correlations of belief and truth over all bundles, as in the benchmark of the search."""
PROPOSALS = 5
"""Bundles in a reply."""


def simulated_expert(known: Mapping[Bundle, float], correlation: float, seed: int) -> LlmPlanner:
    """The planner of an expert.

    Args:
        known: true log speed ratio of every bundle.
        correlation: of what the expert believes with the truth.
        seed: of what it gets wrong.
    """
    belief = _belief(known, correlation, seed)
    ranked = sorted(belief, key=lambda bundle: -belief[bundle])
    priors = _priors(belief)

    def answer(request: Request) -> dict[str, Any]:
        fresh = [bundle for bundle in ranked if f"{bundle}: " not in request.briefing]
        proposals = [
            {
                "config": bundle.as_json(),
                "expected_effect": float(np.expm1(belief[bundle])),
                "reason": "simulated",
            }
            for bundle in fresh[:PROPOSALS]
        ]
        return {"proposals": proposals, "axis_priors": priors, "notes": ""}

    return LlmPlanner(Scripted(answer), lambda: ())


def _belief(known: Mapping[Bundle, float], correlation: float, seed: int) -> dict[Bundle, float]:
    """What an expert believes of every bundle: mean and spread are those of the truth."""
    bundles = [bundle for bundle in known if bundle != BASELINE]
    truth = np.array([known[bundle] for bundle in bundles])
    noise = np.random.default_rng([seed, 13]).standard_normal(len(bundles))
    mixed = correlation * (truth - truth.mean()) / truth.std()
    mixed += np.sqrt(1 - correlation**2) * noise
    return dict(zip(bundles, (truth.mean() + truth.std() * mixed).tolist(), strict=True))


def _priors(belief: Mapping[Bundle, float]) -> list[dict[str, Any]]:
    """How much better bundles with a setting are than those without, as weights up to 1."""
    effects = {}
    for pair in sorted({pair for bundle in belief for pair in bundle}):
        having = [value for bundle, value in belief.items() if pair in bundle.pairs]
        lacking = [value for bundle, value in belief.items() if pair not in bundle.pairs]
        effects[pair] = float(np.mean(having)) - (float(np.mean(lacking)) if lacking else 0.0)
    widest = max(abs(effect) for effect in effects.values()) or 1.0
    return [
        {"axis": tool, "value": setting, "weight": effect / widest}
        for (tool, setting), effect in effects.items()
    ]
