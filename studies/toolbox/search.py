"""The search over bundles: what is known so far, and the loop in which planners spend trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from studies.toolbox.bundle import Bundle
from studies.toolbox.verdicts import Outcome, Verdict

_NEEDS_COMPANY = "torch_compile"
"""May fail or compile ever again with a growing cache and still do well with a static one."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A bundle that a planner wants evaluated, and why."""

    bundle: Bundle
    reason: str


@dataclass
class Progress:
    """What a search has found out: outcomes against the baseline by bundle, in order.

    ``legal`` are the bundles that may be proposed.
    """

    legal: Sequence[Bundle]
    outcomes: dict[Bundle, Outcome] = field(default_factory=dict)

    def open(self) -> list[Bundle]:
        """Bundles that are worth evaluating: not evaluated and without a part known to be bad.

        A setting that changed nothing stays out of all others, one that is wrong or fails alone
        stays out of larger bundles, and so does a pair with wrong outputs.
        """
        bad = [part for b, outcome in self.outcomes.items() for part in _bad_parts(b, outcome)]
        return [
            bundle
            for bundle in self.legal
            if bundle not in self.outcomes and not any(part.within(bundle) for part in bad)
        ]

    @property
    def best(self) -> Outcome | None:
        """The fastest kept bundle; None where none is kept."""
        kept = [o for o in self.outcomes.values() if o.verdict is Verdict.KEEP]
        return max(kept, key=lambda outcome: outcome.log_ratio or 0.0, default=None)

    @property
    def contender(self) -> Outcome | None:
        """What is worth confirming: the best kept bundle, else the best that noise left open."""
        unsettled = (Verdict.NOISY, Verdict.INCONCLUSIVE)
        hopeful = [
            outcome
            for outcome in self.outcomes.values()
            if outcome.verdict in unsettled and (outcome.log_ratio or 0.0) > 0
        ]
        return self.best or max(hopeful, key=lambda o: o.log_ratio or 0.0, default=None)


def _bad_parts(bundle: Bundle, outcome: Outcome) -> list[Bundle]:
    """The parts of a bundle that its outcome condemns wherever they occur."""
    if outcome.verdict is Verdict.NO_EFFECT:
        idle = [Bundle(((tool, bundle.get(tool)),)) for tool in outcome.details["idle"]]
        return [part for part in idle if _NEEDS_COMPANY not in part]
    if outcome.verdict is Verdict.WRONG and len(bundle) <= 2:
        return [bundle]
    if outcome.verdict is Verdict.FAILED and len(bundle) == 1 and _NEEDS_COMPANY not in bundle:
        return [bundle]
    return []


class Planner(Protocol):
    """Chooses the next bundle from what is known; None where it has nothing more to propose."""

    name: str

    def suggest(self, progress: Progress) -> Suggestion | None:
        """The next bundle; always an open one."""
        ...


Evaluate = Callable[[Bundle, Bundle], Outcome]
"""``evaluate(bundle, base)``: the outcome of a bundle against a base."""


def spend(
    planner: Planner,
    progress: Progress,
    evaluate: Callable[[Suggestion], Outcome],
    trials: int,
) -> None:
    """Evaluates what the planner suggests until ``trials`` bundles are evaluated in all."""
    while len(progress.outcomes) < trials:
        suggestion = planner.suggest(progress)
        if suggestion is None:
            return
        progress.outcomes[suggestion.bundle] = evaluate(suggestion)


@dataclass(frozen=True)
class FinalStack:
    """The stack that is left after it was measured again as a whole and tool by tool.

    ``whole`` holds every measurement of a stack against the baseline, the last one of ``stack``;
    ``leave_one_out`` each comparison of a stack with itself without one tool.
    """

    stack: Bundle
    whole: tuple[Outcome, ...]
    leave_one_out: tuple[Outcome, ...]
    removed: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON."""
        return {
            "stack": self.stack.as_json(),
            "whole": [outcome.as_json() for outcome in self.whole],
            "leave_one_out": [outcome.as_json() for outcome in self.leave_one_out],
            "removed": list(self.removed),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FinalStack:
        """What ``as_json`` wrote."""
        return cls(
            Bundle.of(content["stack"]),
            tuple(Outcome.from_json(item) for item in content["whole"]),
            tuple(Outcome.from_json(item) for item in content["leave_one_out"]),
            tuple(content["removed"]),
        )

    @property
    def proven(self) -> Outcome | None:
        """The measurement of the final stack where it ends in a keep."""
        last = self.whole[-1] if self.whole else None
        kept = last is not None and last.verdict is Verdict.KEEP and last.bundle == self.stack
        return last if kept else None


def finish(
    best: Bundle,
    evaluate: Evaluate,
    is_legal: Callable[[Bundle], bool],
    threshold: float,
) -> FinalStack:
    """Measures the best stack afresh and drops tools that do not earn their place in it.

    Each tool is left out in turn: it stays where the stack is kept against the stack without it, or
    where that cannot be decided but the estimate says so. The tool that earns least goes first, for
    the others may need each other; what is left is measured as a whole again.
    """
    stack, removed = best, []
    whole = [evaluate(stack, Bundle())]
    comparisons: list[Outcome] = []
    while len(stack) > 1 and whole[-1].verdict.timed:
        trials = [
            evaluate(stack, stack.without(tool))
            for tool, _ in stack
            if is_legal(stack.without(tool))
        ]
        comparisons += trials
        idle = [outcome for outcome in trials if not _earns(outcome, threshold)]
        if not idle:
            break
        worst = min(idle, key=lambda outcome: outcome.log_ratio or 0.0)
        tool = next(name for name, _ in stack if name not in worst.base)
        stack = stack.without(tool)
        removed.append(tool)
        whole.append(evaluate(stack, Bundle()))
    return FinalStack(stack, tuple(whole), tuple(comparisons), tuple(removed))


def _earns(outcome: Outcome, threshold: float) -> bool:
    """Whether the tool that the base lacks is worth keeping."""
    if outcome.verdict is Verdict.KEEP:
        return True
    ratio = outcome.ratio
    if ratio is None:
        # The stack without the tool could not be measured, so the tool cannot be missed.
        return True
    return outcome.verdict is not Verdict.DROP and ratio > 1 + threshold


def verdict_counts(outcomes: Mapping[Bundle, Outcome]) -> dict[str, int]:
    """How often each verdict was given."""
    counts = {verdict.value: 0 for verdict in Verdict}
    for outcome in outcomes.values():
        counts[outcome.verdict.value] += 1
    return counts
