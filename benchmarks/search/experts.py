"""Simulated experts in the place of a language model, through the product's own code.

An expert knows the (log) truth up to an error and tells it as a model may: a few configs with
their expected effect, and values and pairs of values to prefer or avoid, in rounds. What it says
goes through the same reply, checks, prior, guard and ration as that of a real model.

Errors are independent from config to config (the experts of the rest of the benchmark), or
systematic: smooth over axes and pairs of axes, so that what the expert likes best is what it is
most wrong about. Systematic errors are the harder case; a language model's are of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from benchmarks.search.methods import (
    CAPACITY_GIB,
    Method,
    Run,
    allowed,
    pool_of_problem,
    simulated_expert,
)
from benchmarks.search.problem import Floats, Problem
from search.evidence import PEAK_KNOWN
from search.llm.advice import ACCEPTED, DUPLICATE, ILLEGAL, Advice, Finding, consult
from search.llm.asking import Request, Scripted
from search.llm.opinion import current_opinion
from search.llm.repair import closeness
from search.llm.schema import MOST_PRIORS
from search.llm.turns import Trials, Worth, is_due, its_turn
from search.pool import Pool
from search.pool_sampler import Judged, PoolSampler
from search.prior import Opinion

PROPOSALS = 5


def systematic(problem: Problem, correlation: float) -> Floats:
    """What an expert believes of every candidate: the truth and a smooth error, standardised."""
    generator = np.random.default_rng([problem.seed, 23])
    truth = np.log(problem.true_speed)
    error = np.zeros(len(problem))
    codes, axes = problem.codes, problem.axes
    for i, axis in enumerate(axes):
        error += generator.standard_normal(axis.size)[codes[:, i]]
    for i, j in combinations(range(len(axes)), 2):
        error += (
            0.5 * generator.standard_normal((axes[i].size, axes[j].size))[codes[:, i], codes[:, j]]
        )
    mixed: Floats = correlation * _standard(truth) + np.sqrt(1 - correlation**2) * _standard(error)
    return mixed


def _standard(values: Floats) -> Floats:
    standardised: Floats = (values - values.mean()) / values.std()
    return standardised


def reply_of(
    problem: Problem, belief: Floats, may: Floats, tried: set[int], baseline: int
) -> dict[str, Any]:
    """What the expert answers: its best open candidates that it thinks fit, and its priors."""
    open_belief = np.where(may, belief, -np.inf)
    open_belief[list(tried)] = -np.inf
    best = np.argsort(-open_belief, kind="stable")[:PROPOSALS]
    scale = float(np.log(problem.true_speed).std())
    priors = priors_of(problem, belief)
    proposals = [
        {
            "config": named(problem, int(row)),
            "expected_effect": float(np.expm1(scale * (belief[row] - belief[baseline]))),
            "reason": "simulated",
        }
        for row in best
    ]
    return {"hypotheses": [], "axis_priors": priors, "notes": "", "proposals": proposals}


def priors_of(problem: Problem, belief: Floats) -> list[dict[str, Any]]:
    """The effects of single values and the strongest of pairs, as weights on one scale."""
    codes, axes = problem.codes, problem.axes
    rest = belief - belief.mean()
    single = []
    for a, axis in enumerate(axes):
        means = _means(rest, codes[:, a], axis.size)
        rest = rest - means[codes[:, a]]
        single += [({"axis": axis.name, "value": v}, float(means[v])) for v in range(axis.size)]
    paired = []
    for i, j in combinations(range(len(axes)), 2):
        cell = codes[:, i] * axes[j].size + codes[:, j]
        means = _means(rest, cell, axes[i].size * axes[j].size)
        for number, mean in enumerate(means):
            first, second = divmod(number, axes[j].size)
            said = {"axis": axes[j].name, "value": second, "when": {axes[i].name: first}}
            paired.append((said, float(mean)))
    paired.sort(key=lambda pair: -abs(pair[1]))
    said_all = [*single, *paired[: MOST_PRIORS - len(single)]]
    widest = max(abs(weight) for _, weight in said_all)
    return [{**said, "weight": weight / widest} for said, weight in said_all]


def _means(values: Floats, group: Any, groups: int) -> Floats:
    counts = np.bincount(group, minlength=groups)
    means: Floats = np.bincount(group, values, groups) / np.maximum(counts, 1)
    return means


def named(problem: Problem, row: int) -> dict[str, int]:
    """A candidate as axis -> value."""
    return {axis.name: int(problem.codes[row, a]) for a, axis in enumerate(problem.axes)}


class PoolCandidates:
    """The candidates of a problem as opinions see them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __len__(self) -> int:
        return len(self._pool)

    def having(self, axis: str, value: Any) -> Any:
        """Which candidates have a value on an axis."""
        code = self._pool.code_of({axis: value}, exactly=True)
        if not code:
            return None
        (position, place), *_ = code.items()
        return self._pool.codes[:, position] == place

    def closeness(self, config: Mapping[str, Any]) -> Floats | None:
        """How like a config each candidate is."""
        return closeness(self._pool, config)


class PoolGround:
    """Accepts candidates of the pool that were not tried."""

    def __init__(self, pool: Pool, tried: set[int]) -> None:
        self._pool, self._tried = pool, set(tried)

    def judge(self, proposed: Mapping[str, Any]) -> Finding:
        """The verdict on a proposed candidate."""
        row = self._pool.find(proposed)
        if row is None:
            return Finding(ILLEGAL, "it is no candidate")
        if row in self._tried:
            return Finding(DUPLICATE, "it was tried", dict(proposed))
        self._tried.add(row)
        return Finding(ACCEPTED, "", dict(proposed))


def worth_of(sampler: PoolSampler, study: Any, pool: Pool) -> Worth:
    """What candidates promise by all that was measured, found out once and only if asked."""
    held: list[Judged] = []

    def worth(config: Mapping[str, Any]) -> float | None:
        judged = held[0] if held else sampler.judged(study)
        held[:] = [judged]
        row = pool.find(config)
        if row is None or row not in judged.open_rows:
            return None
        return float(judged.scores.score[row] - judged.scores.score[judged.best_row])

    return worth


def advised_by(expert: Callable[[Problem], Floats]) -> Method:
    """PoolSampler with an expert as its model: prior, guard and one evaluation in three."""

    def method(problem: Problem, budget: int, memory_filter: bool, seed: int) -> Run:
        import optuna

        run = Run(problem)
        rows = allowed(problem, memory_filter)
        if problem.start >= 0 and problem.start not in rows:
            rows = np.sort(np.append(rows, problem.start))
        pool = pool_of_problem(problem, rows)
        candidates, trials, advice = PoolCandidates(pool), Trials(), list[Advice]()
        belief, fits = expert(problem), problem.memory <= 1.0
        model = Scripted(
            lambda _: reply_of(problem, belief, fits, set(run.rows), max(problem.start, 0))
        )

        def opinion(_: Pool) -> Opinion | None:
            return current_opinion(candidates, advice, trials.rows)

        sampler = PoolSampler(pool, expert=opinion, seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for number in range(min(budget, len(pool))):
            if is_due(advice, number):
                ground = PoolGround(pool, set(trials.rows))
                request = Request("simulated", str(number))
                advice.append(consult(model, ground, request, len(advice), number))
            mine = its_turn(advice, candidates, trials, worth_of(sampler, study, pool))
            if number == 0 and problem.start >= 0:
                study.enqueue_trial(pool.parameters(int(np.searchsorted(rows, problem.start))))
            elif mine is not None:
                study.enqueue_trial(dict(mine.config or {}))
            asked = study.ask(pool.space)
            row = sampler.row_of(asked)
            speed, share = run.evaluate(int(rows[row]))
            over = CAPACITY_GIB * ((share or 1.0) - 1.0) if speed is not None else 1.0
            asked.set_user_attr(PEAK_KNOWN, share is not None)
            asked.set_constraint("memory_gib", over)
            study.tell(asked, speed or 0.0)
            trials.add(row, speed or 0.0, mine is not None)
        return run

    return method


def independent(problem: Problem, correlation: float) -> Floats:
    """What an expert believes of every candidate: the truth and an error of each by itself."""
    return simulated_expert(correlation)(problem)


QUALITIES = {"good": 0.8, "weak": 0.5, "adversarial": -0.5}
"""Correlation of what an expert believes with the log of the truth."""


def name_of(quality: str, errors: str) -> str:
    """The method of an expert in the place of the model."""
    return f"PoolSampler, LLM: {quality} expert" + (f", {errors} errors" if errors else "")


EXPERTS: dict[str, Method] = {
    name_of(quality, errors): advised_by(lambda p, c=correlation, b=belief: b(p, c))
    for errors, belief in (("", independent), ("systematic", systematic))
    for quality, correlation in QUALITIES.items()
}
"""Methods that are compared with PoolSampler alone."""
