"""Planners replayed on a measured factorial: what they find, what it costs, what they keep wrongly.

Truth is the median over all recorded blocks. An evaluation resamples the recorded blocks and the
pairs in them, so it sees the noise of the machine that was measured; or it adds to the truth noise
that was recorded elsewhere, on a quiet machine say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.decision import Floats, Rule, contrasts, judge
from studies.toolbox.experts import EXPERTS, simulated_expert
from studies.toolbox.factorial import Cell, Table
from studies.toolbox.noise import ROCKET_KEEPS_AT, ROCKET_RUNS
from studies.toolbox.planners import make_planner
from studies.toolbox.planners.fixed_order import ORDER
from studies.toolbox.search import Planner, Progress, Suggestion, finish, spend
from studies.toolbox.verdicts import Outcome, Verdict

Noise = Mapping[str, Sequence[Floats]]
"""Raw times of processes of one program, by operating point."""
ROCKET = "rocket"
"""Its order and its rule: the mean of 3 runs at 1.02, keep for ever, nothing measured again."""
NEAR = 0.95
"""Share of the best speed that counts as found."""


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay of a planner.

    Attributes:
        regret: share of the best bundle's speed that the final stack lacks.
        searched_regret: the same for the best bundle of the search, before it is measured again.
        keeps, false_keeps: keep verdicts, and those on bundles that are truly below the threshold.
        useless_tools: tools in the final stack without which it is truly no slower.
        cost_s: device-seconds in all.
        near_s: device-seconds until a kept bundle had 95% of the best speed; None: never.
    """

    regret: float
    searched_regret: float
    keeps: int
    false_keeps: int
    useless_tools: int
    cost_s: float
    near_s: float | None


@dataclass(frozen=True, slots=True)
class PlannerScore:
    """Replays of a planner over many seeds; fields as in ``Replay``, means unless said."""

    planner: str
    regret: float
    worst_regret: float
    searched_regret: float
    found: float
    near_s: float | None
    cost_s: float
    false_keep_rate: float
    useless_tools: float


def truth(table: Table) -> dict[Bundle, float]:
    """The log speed ratio of every bundle against the baseline, which has 0."""
    found = {
        bundle: float(np.median([np.median(cell.ratios) for cell in cells]))
        for bundle, cells in table.items()
    }
    return {**found, BASELINE: 0.0}


class RecordedMachine:
    """Evaluates bundles by resampling a table, or by its truth with noise recorded elsewhere."""

    def __init__(self, table: Table, rule: Rule, seed: int, noise: Noise | None = None) -> None:
        self.table = table
        self.rule = rule
        self.cost_s = 0.0
        self.generator = np.random.default_rng([seed, 12])
        self._known = truth(table)
        self._points = list(noise.values()) if noise else []

    def evaluate(self, bundle: Bundle, base: Bundle = BASELINE) -> Outcome:
        """The outcome of a bundle against a base; adds to the cost."""
        blocks: list[Floats] = []
        control: list[Floats] = []
        before = self.cost_s
        while True:
            ratios, copies = self._quiet(bundle, base) if self._points else self._own(bundle, base)
            blocks.append(ratios)
            control.append(copies)
            judgement = judge(blocks, control, self.rule)
            if judgement.verdict is not None:
                break
        return Outcome(
            bundle=bundle,
            base=base,
            verdict=judgement.verdict,
            sentence="",
            log_ratio=judgement.estimate.log_ratio,
            standard_error=judgement.estimate.standard_error,
            lower=judgement.lower,
            upper=judgement.upper,
            cost_s=self.cost_s - before,
        )

    def _own(self, bundle: Bundle, base: Bundle) -> tuple[Floats, Floats]:
        """Log ratios of a candidate and of the control in one recorded block."""
        cell = self._block(bundle)
        ratios = self._pairs(cell.ratios)
        if base != BASELINE:
            ratios = ratios - self._pairs(self._block(base).ratios)
        return ratios, self._pairs(cell.control)

    def _quiet(self, bundle: Bundle, base: Bundle) -> tuple[Floats, Floats]:
        """The same from the truth and three processes of one program recorded elsewhere."""
        self._block(bundle)
        if base != BASELINE:
            self._block(base)
        processes = self._points[int(self.generator.integers(len(self._points)))]
        chosen = self.generator.integers(len(processes), size=3)
        first, second, third = (
            self.generator.choice(processes[int(index)], self.rule.pairs) for index in chosen
        )
        ratios, control = contrasts(first, second, third)
        return ratios + self._known[bundle] - self._known[base], control

    def mean_of_three(self, bundle: Bundle) -> float:
        """Mean seconds of a few runs of one process, as ROCKET measures."""
        cell = self._block(bundle if bundle != BASELINE else next(iter(self.table)))
        if self._points:
            processes = self._points[int(self.generator.integers(len(self._points)))]
            process = processes[int(self.generator.integers(len(processes)))]
            runs = self.generator.choice(process / process.mean(), ROCKET_RUNS)
            return float(runs.mean()) * math.exp(-self._known[bundle])
        arm = "candidate" if bundle != BASELINE else "base"
        return float(self.generator.choice(cell.seconds[arm], ROCKET_RUNS).mean())

    def _block(self, bundle: Bundle) -> Cell:
        cells = self.table[bundle]
        cell = cells[int(self.generator.integers(len(cells)))]
        self.cost_s += cell.cost_s
        return cell

    def _pairs(self, ratios: Floats) -> Floats:
        return self.generator.choice(ratios, self.rule.pairs)


def replay(
    table: Table, planner: str, rule: Rule, trials: int, seed: int, noise: Noise | None = None
) -> Replay:
    """One replay of a planner with a budget of trials."""
    machine = RecordedMachine(table, rule, seed, noise)
    known = truth(table)
    best = max(known.values())
    if planner == ROCKET:
        return _rocket(machine, known, best)
    bundles = [bundle for bundle in table if bundle != BASELINE]
    progress = Progress(sorted(bundles, key=lambda bundle: (len(bundle), bundle.pairs)))
    marks: list[tuple[float, Bundle]] = []

    def evaluate(suggestion: Suggestion) -> Outcome:
        outcome = machine.evaluate(suggestion.bundle)
        if outcome.verdict is Verdict.KEEP:
            marks.append((machine.cost_s, outcome.bundle))
        return outcome

    if planner in EXPERTS:
        chooses: Planner = simulated_expert(known, EXPERTS[planner], seed)
    else:
        chooses = make_planner(planner, seed, rule.threshold)
    spend(chooses, progress, evaluate, trials)
    searched = progress.contender.bundle if progress.contender else BASELINE
    stack = BASELINE
    if progress.contender:
        final = finish(searched, machine.evaluate, _in_table(table), rule.threshold)
        stack = final.stack if final.proven else BASELINE
    near = [cost for cost, bundle in marks if known[bundle] >= best + math.log(NEAR)]
    return Replay(
        regret=1 - math.exp(known[stack] - best),
        searched_regret=1 - math.exp(known[searched] - best),
        keeps=len(marks),
        false_keeps=sum(known[bundle] < rule.log_threshold for _, bundle in marks),
        useless_tools=useless(stack, known),
        cost_s=machine.cost_s,
        near_s=near[0] if near else None,
    )


def useless(stack: Bundle, known: dict[Bundle, float]) -> int:
    """Tools of a stack without which it is truly no slower."""
    without = [stack.without(tool) for tool, _ in stack]
    return sum(known[rest] >= known[stack] for rest in without if rest in known)


def _rocket(machine: RecordedMachine, known: dict[Bundle, float], best: float) -> Replay:
    """ROCKET's loop on the recorded machine."""
    stack, held_s = BASELINE, machine.mean_of_three(BASELINE)
    keeps = false_keeps = 0
    near_s: float | None = None
    for tool, settings in ORDER:
        options = [stack.with_(tool, setting) for setting in settings]
        bundle = next((option for option in options if option in machine.table), None)
        if bundle is None:
            continue
        seconds = machine.mean_of_three(bundle)
        if held_s / seconds >= ROCKET_KEEPS_AT:
            keeps += 1
            false_keeps += known[bundle] - known[stack] < math.log(ROCKET_KEEPS_AT)
            stack, held_s = bundle, seconds
            if near_s is None and known[stack] >= best + math.log(NEAR):
                near_s = machine.cost_s
    regret = 1 - math.exp(known[stack] - best)
    return Replay(regret, regret, keeps, false_keeps, useless(stack, known), machine.cost_s, near_s)


def score(
    table: Table,
    planner: str,
    rule: Rule,
    trials: int,
    seeds: int,
    advance: Callable[[int], None],
    noise: Noise | None = None,
) -> PlannerScore:
    """A planner over many seeds."""
    found = []
    for seed in range(seeds):
        found.append(replay(table, planner, rule, trials, seed, noise))
        advance(1)
    near = [one.near_s for one in found if one.near_s is not None]
    return PlannerScore(
        planner=planner,
        regret=float(np.mean([one.regret for one in found])),
        worst_regret=max(one.regret for one in found),
        searched_regret=float(np.mean([one.searched_regret for one in found])),
        found=len(near) / seeds,
        near_s=float(np.median(near)) if near else None,
        cost_s=float(np.mean([one.cost_s for one in found])),
        false_keep_rate=sum(o.false_keeps for o in found) / max(sum(o.keeps for o in found), 1),
        useless_tools=float(np.mean([one.useless_tools for one in found])),
    )


def _in_table(table: Table) -> Callable[[Bundle], bool]:
    return lambda bundle: bundle in table or bundle == BASELINE


def control_ratios(table: Table) -> list[Floats]:
    """Log ratios of the two copies of the baseline, one array a block: noise of one program."""
    return [cell.control for cells in table.values() for cell in cells]


def copies(table: Table) -> dict[str, list[Floats]]:
    """Raw times of all copies of the baseline, by bundle and block that they ran beside."""
    return {
        f"{bundle}, block {index}": [
            times for arm, times in cell.seconds.items() if arm != "candidate" or not len(bundle)
        ]
        for bundle, cells in table.items()
        for index, cell in enumerate(cells)
    }


def three_copies(table: Table) -> list[Floats]:
    """Times of base, control and a third copy, shape (3, rounds), one array a block."""
    return [np.array(list(cell.seconds.values())) for cell in table.get(BASELINE, [])]
