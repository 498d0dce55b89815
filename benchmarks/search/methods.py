"""Searches that are compared: each spends a budget of evaluations on a problem.

Every method exists with the memory filter (it proposes only what the believed memory model lets
pass) and without. Methods that propose points of a product space are snapped to the nearest legal
candidate that is still open, so that none is handicapped by illegal or repeated proposals.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.problem import MEMORY_FILTER, POSTERIOR, PROJECTION, Floats, Problem
from search.evidence import PEAK_KNOWN
from search.pool import Belief, Pool
from search.pool_sampler import PoolSampler
from search.prior import Expert
from search.transfer import Source

Rows = NDArray[np.int64]

CAPACITY_GIB = 100.0
"""Problems give memory as a share of capacity; the sampler wants GiB."""


@dataclass
class Run:
    """Evaluations in order: candidate, measured speed (None: OOM)."""

    problem: Problem
    rows: list[int] = field(default_factory=list)
    speeds: list[float | None] = field(default_factory=list)
    shares: list[float | None] = field(default_factory=list)

    def evaluate(self, row: int) -> tuple[float | None, float | None]:
        """Spends one evaluation."""
        speed, share = self.problem.evaluate(row, self.rows.count(row))
        self.rows.append(row)
        self.speeds.append(speed)
        self.shares.append(share)
        return speed, share

    @property
    def ooms(self) -> int:
        """Evaluations that ran out of memory."""
        return sum(speed is None for speed in self.speeds)

    def regrets(self) -> list[float]:
        """Regret after each evaluation of the config that was measured fastest so far."""
        best, fastest, regrets = None, -np.inf, []
        for row, speed in zip(self.rows, self.speeds, strict=True):
            if speed is not None and speed > fastest:
                best, fastest = row, speed
            regrets.append(self.problem.regret(best))
        return regrets


Method = Callable[[Problem, int, bool, int], Run]
"""(problem, budget, memory filter, seed) -> run."""


def allowed(problem: Problem, memory_filter: bool) -> Rows:
    """Candidates that a method may propose."""
    if not memory_filter:
        return np.arange(len(problem))
    return np.flatnonzero(problem.memory <= MEMORY_FILTER)


def first(problem: Problem, ok: Rows, seed: int) -> int:
    """Where a method that needs a start begins: the problem's own, or a random candidate."""
    if problem.start >= 0:
        return problem.start
    return int(np.random.default_rng([seed, 14]).choice(ok))


def random(problem: Problem, budget: int, memory_filter: bool, seed: int) -> Run:
    """Uniform, without replacement."""
    run = Run(problem)
    rows = allowed(problem, memory_filter)
    generator = np.random.default_rng([seed, 11])
    for row in generator.permutation(rows)[:budget]:
        run.evaluate(int(row))
    return run


def analytic_top_k(problem: Problem, budget: int, memory_filter: bool, seed: int) -> Run:
    """The believed best, one after the other."""
    del seed
    run = Run(problem)
    rows = allowed(problem, memory_filter)
    for row in rows[np.argsort(-problem.speed[rows], kind="stable")][:budget]:
        run.evaluate(int(row))
    return run


def seed_sweep(problem: Problem, budget: int, memory_filter: bool, seed: int) -> Run:
    """Every other value of every axis by itself, from the start, the axes taking turns."""
    run = Run(problem)
    ok = allowed(problem, memory_filter)
    start = first(problem, ok, seed)
    run.evaluate(start)
    tried = {start}
    base = problem.codes[start]
    for step in range(1, max(axis.size for axis in problem.axes)):
        for a, axis in enumerate(problem.axes):
            for value in (base[a] + step, base[a] - step):
                if 0 <= value < axis.size and len(run.rows) < budget:
                    wanted = base.copy()
                    wanted[a] = value
                    _try(run, problem, ok, tried, wanted)
    return run


def coordinate_descent(problem: Problem, budget: int, memory_filter: bool, seed: int) -> Run:
    """From the start, axis after axis in random order; every better value is kept."""
    run = Run(problem)
    generator = np.random.default_rng([seed, 12])
    ok = allowed(problem, memory_filter)
    here = first(problem, ok, seed)
    fastest = run.evaluate(here)[0] or 0.0
    tried = {here}
    while len(run.rows) < budget:
        before = len(run.rows)
        for a in generator.permutation(len(problem.axes)):
            for value in generator.permutation(problem.axes[a].size):
                if len(run.rows) >= budget or value == problem.codes[here, a]:
                    continue
                wanted = problem.codes[here].copy()
                wanted[a] = value
                found = _try(run, problem, ok, tried, wanted)
                if found is not None and (run.speeds[-1] or 0.0) > fastest:
                    here, fastest = found, run.speeds[-1] or 0.0
        if len(run.rows) == before:  # a local optimum: go on from a random candidate
            open_rows = np.setdiff1d(ok, list(tried))
            if not len(open_rows):
                break
            here = int(generator.choice(open_rows))
            tried.add(here)
            fastest = run.evaluate(here)[0] or 0.0
    return run


def _try(run: Run, problem: Problem, ok: Rows, tried: set[int], wanted: Any) -> int | None:
    """Evaluates a wanted candidate if it is legal, allowed and new."""
    rows = ok[(problem.codes[ok] == wanted).all(axis=1)]
    if not len(rows) or int(rows[0]) in tried:
        return None
    tried.add(int(rows[0]))
    run.evaluate(int(rows[0]))
    return int(rows[0])


def snapped(make: Callable[[int], Any]) -> Method:
    """An Optuna sampler on the product of the axes, snapped to the nearest open candidate."""

    def method(problem: Problem, budget: int, memory_filter: bool, seed: int) -> Run:
        import optuna

        run = Run(problem)
        ok = allowed(problem, memory_filter)
        is_open = np.zeros(len(problem), dtype=bool)
        is_open[ok] = True
        space = _space(problem)
        study = optuna.create_study(direction="maximize", sampler=make(seed))
        ordinal = np.array([axis.ordinal for axis in problem.axes])
        width = np.array([max(axis.size - 1, 1) for axis in problem.axes])
        for _ in range(min(budget, len(ok))):
            asked = study.ask(space)
            wanted = np.array([int(asked.params[axis.name]) for axis in problem.axes])
            apart = problem.codes - wanted
            distance = np.where(ordinal, np.abs(apart) / width, apart != 0).sum(axis=1)
            row = int(np.argmin(np.where(is_open, distance, np.inf)))
            is_open[row] = False
            speed, share = run.evaluate(row)
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
            params = {axis.name: int(problem.codes[row, a]) for a, axis in enumerate(problem.axes)}
            study.add_trial(_told(params, space, speed, share, problem))
        return run

    return method


def _told(params: Any, space: Any, speed: float | None, share: float | None, p: Problem) -> Any:
    """A finished trial: an OOM is worth less than anything that fits and violates memory."""
    import optuna

    worst = float(np.log(p.speed.min()) - 1.0)
    over = 1.0 if speed is None else (share or 0.0) - 1.0
    return optuna.create_trial(
        params=params,
        distributions=space,
        value=worst if speed is None else float(np.log(speed)),
        constraints={"memory": over},
    )


def _space(problem: Problem) -> dict[str, Any]:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    return {
        axis.name: IntDistribution(0, axis.size - 1)
        if axis.ordinal
        else CategoricalDistribution(tuple(range(axis.size)))
        for axis in problem.axes
    }


def _tpe(seed: int) -> Any:
    import optuna

    return optuna.samplers.TPESampler(seed=seed)


def _gp(seed: int) -> Any:
    import optuna

    return optuna.samplers.GPSampler(seed=seed)


def pool_of_problem(problem: Problem, rows: Rows, unsure: str = PROJECTION) -> Pool:
    """The candidates of a problem as a pool, with what the belief is unsure of if it says so."""
    used, loadings = problem.codes[rows], problem.loadings.get(unsure)
    return Pool(
        space=_space(problem),
        values=tuple(tuple(range(axis.size)) for axis in problem.axes),
        codes=used,
        belief=Belief(
            problem.speed[rows][:, None],
            problem.memory[rows] * CAPACITY_GIB,
            None if loadings is None else loadings[rows],
        ),
        capacity_gib=CAPACITY_GIB,
        total=len(used),
    )


def pool_sampler(
    expert: Callable[[Problem], Floats] | None = None,
    warm: Callable[[Problem], Source] | None = None,
    unsure: str = PROJECTION,
) -> Method:
    """PoolSampler on an Optuna study in memory, the start of the problem enqueued first.

    ``unsure`` picks the ``loadings`` of the problem that it knows; without any, axes alone count.
    """

    def method(problem: Problem, budget: int, memory_filter: bool, seed: int) -> Run:
        import optuna

        run = Run(problem)
        rows = allowed(problem, memory_filter)
        if problem.start >= 0 and problem.start not in rows:
            rows = np.sort(np.append(rows, problem.start))
        pool = pool_of_problem(problem, rows, unsure)
        opinion: Expert | None = None
        if expert is not None:
            said = expert(problem)[rows]
            opinion = lambda _: said  # noqa: E731
        sources = [warm(problem)] if warm else []
        sampler = PoolSampler(pool, expert=opinion, sources=sources, seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        if problem.start >= 0:
            study.enqueue_trial(pool.parameters(int(np.searchsorted(rows, problem.start))))
        for _ in range(min(budget, len(pool))):
            asked = study.ask(pool.space)
            row = int(rows[sampler.row_of(asked)])
            speed, share = run.evaluate(row)
            over = CAPACITY_GIB * ((share or 1.0) - 1.0) if speed is not None else 1.0
            asked.set_user_attr(PEAK_KNOWN, share is not None)
            asked.set_constraint("memory_gib", over)
            study.tell(asked, speed or 0.0)
        return run

    return method


def simulated_expert(correlation: float) -> Callable[[Problem], Floats]:
    """Scores with this correlation with the (log) truth, as an LLM might give; drawn by task."""

    def scores(problem: Problem) -> Floats:
        generator = np.random.default_rng([problem.seed, 13])
        truth = np.log(problem.true_speed)
        truth = (truth - truth.mean()) / truth.std()
        noise = generator.standard_normal(len(truth))
        mixed: Floats = correlation * truth + np.sqrt(1 - correlation**2) * noise
        return mixed

    return scores


def first_study(make: Callable[[Problem], Problem]) -> Callable[[Problem], Source]:
    """A finished study of 30 evaluations of a related problem, to start warm from."""

    def source(problem: Problem) -> Source:
        related = make(problem)
        run = pool_sampler()(related, 30, True, related.seed)
        kept = [
            (row, speed)
            for row, speed in zip(run.rows, run.speeds, strict=True)
            if speed is not None
        ]
        names = [axis.name for axis in related.axes]
        return Source(
            name=related.name,
            parameters=tuple(
                dict(zip(names, related.codes[row].tolist(), strict=True)) for row, _ in kept
            ),
            log_projected=np.log(related.speed[[row for row, _ in kept]]),
            log_measured=np.log([speed for _, speed in kept]),
        )

    return source


PLAIN: dict[str, Method] = {
    "random": random,
    "TPE": snapped(_tpe),
    "GPSampler": snapped(_gp),
    "coordinate descent": coordinate_descent,
    "analytic top-k": analytic_top_k,
    "seed sweep": seed_sweep,
    "PoolSampler": pool_sampler(),
}
TOLD: dict[str, Method] = {
    "PoolSampler, axes alone": pool_sampler(unsure=""),
    "PoolSampler, told the posterior": pool_sampler(unsure=POSTERIOR),
}
"""What it makes of less, and of more, than the projection: where a problem says what is unsure."""


def quiet() -> None:
    """Keeps Optuna from talking about each trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
