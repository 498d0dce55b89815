"""One tool after another in a fixed order, kept or reverted: what ROCKET does."""

from __future__ import annotations

import math

from studies.toolbox.bundle import Bundle
from studies.toolbox.search import Progress, Suggestion
from studies.toolbox.verdicts import Verdict

ORDER = (
    ("kv_cache_config", ("static",)),
    ("dtype_cast", ("bfloat16", "float16")),
    ("sdpa_attention", ("sdpa", "flash", "math", "efficient", "eager")),
    ("input_padding", ("128", "64", "256")),
    ("torch_compile", ("reduce-overhead", "default", "fixed-shapes", "max-autotune")),
    ("int8_quantisation", ("dynamic", "weight-only")),
    ("matmul_precision", ("high", "medium")),
    ("tunable_op", ("tune", "hipblaslt")),
)
"""KMaruthi2002/rocket, orchestrator.py: kv_cache, dtype, sdpa, padding, compile; ours follow."""


class FixedOrderPlanner:
    """Adds the next tool to what is kept; never looks back and never at pairs."""

    name = "greedy"

    def __init__(self, threshold: float) -> None:
        self._log_threshold = math.log1p(threshold)

    def suggest(self, progress: Progress) -> Suggestion | None:
        """The kept stack with the next tool; the first setting that is open."""
        stack, gain = Bundle(), 0.0
        legal = set(progress.open())
        for tool, settings in ORDER:
            tried = next((s for s in settings if stack.with_(tool, s) in progress.outcomes), None)
            if tried is None:
                setting = next((s for s in settings if stack.with_(tool, s) in legal), None)
                if setting is not None:
                    return Suggestion(
                        stack.with_(tool, setting), f"{tool} is next, on top of {stack}"
                    )
                continue
            outcome = progress.outcomes[stack.with_(tool, tried)]
            better = (outcome.log_ratio or 0.0) - gain >= self._log_threshold
            if outcome.verdict is Verdict.KEEP and better:
                stack, gain = outcome.bundle, outcome.log_ratio or 0.0
        return None
