"""The search played on the ground truth: runs until one within 2% of the true best was made."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.measured.errors import learned_job
from benchmarks.measured.truth import Truth
from benchmarks.search import methods
from benchmarks.search.methods import Method
from benchmarks.search.problem import PROJECTION, Floats, Problem
from benchmarks.search.report import WITHIN, mean_se
from benchmarks.search.tables import varying_axes
from search.config_pool import loadings
from surrogate.learned import Learned

SEEDS = 100
METHODS = ("random", "TPE", "coordinate descent", "analytic top-k", "PoolSampler")


class Reached(Exception):
    """A config within 2% of the true best was run."""


@dataclass(frozen=True)
class Measured(Problem):
    """A problem whose evaluations are rounds that were measured; ``rounds`` is (n, r).

    ``seen`` collects what was evaluated; the search ends by ``Reached``.
    """

    rounds: Floats = field(default_factory=lambda: np.empty((0, 0)))
    seen: list[int] = field(default_factory=list)

    def evaluate(self, index: int, count: int) -> tuple[float | None, float | None]:
        """One of the rounds of a config, another for each seed.

        Raises:
            Reached: nothing is left to find.
        """
        speed, share = self._measured(index, count)
        self.seen.append(index)
        if speed is not None and self.regret(index) <= WITHIN:
            raise Reached
        return speed, share

    def _measured(self, index: int, count: int) -> tuple[float | None, float | None]:
        if not self.fits[index]:
            return None, None
        generator = np.random.default_rng([self.seed, 77, index])
        order = generator.permutation(self.rounds.shape[1])
        share = float(self.true_memory[index]) if self.reads_memory else None
        return float(self.rounds[index, order[count % len(order)]]), share


def runs_needed(method: Method, one: Measured, seed: int) -> int:
    """Evaluations of a method until one is within 2%; one more than all where none ever is."""
    try:
        method(one, len(one), False, seed)
    except Reached:
        return len(one.seen)
    return len(one) + 1


def problem(truth: Truth, learned: Learned, seed: int) -> Measured:
    """The ground truth as a search problem; what is believed comes from ``learned``."""
    job = learned_job(truth.job, learned)
    table = truth.table
    axes, codes = varying_axes(table)
    seen = job.project(table)
    capacity = job.cluster.gpu.hbm_gib.value
    runtime = job.experiment.stack.runtime_gib or 0.0
    share = (truth.reserved_gib + runtime) / capacity
    oom = truth.out_of_memory
    return Measured(
        name=job.experiment.name,
        axes=axes,
        codes=codes,
        speed=np.asarray(seen.tokens_per_s_per_gpu),
        memory=np.asarray(seen.device_gib) / capacity,
        true_speed=truth.mean,
        true_memory=np.where(oom, np.maximum(share, 1.01), np.minimum(share, 1.0)),
        noise=0.0,
        start=truth.baseline,
        loadings={PROJECTION: loadings(job.cases(table))},  # what ``foretune ask`` knows
        seed=seed,
        rounds=truth.speed,
    )


def replayed(truth: Truth, learned: Learned, seeds: int = SEEDS) -> dict[str, Any]:
    """Runs until within 2% of the best, by method; all begin with the baseline where they can."""
    methods.quiet()
    found: dict[str, Any] = {}
    first = problem(truth, learned, 0)
    for name in METHODS:
        method = methods.PLAIN[name]
        counts = []
        for seed in range(seeds):
            one = replace(first, seed=seed, seen=[])
            counts.append(runs_needed(method, one, seed))
        entry = mean_se(counts)
        found[name] = entry | {"p90": float(np.quantile(counts, 0.9))}
    near = first.true_speed[first.fits] >= (1 - WITHIN) * first.best
    return {
        "configs": len(truth),
        "out_of_memory": int(truth.out_of_memory.sum()),
        "within_2_percent": int(near.sum()),
        "seeds": seeds,
        "runs": found,
        "believed_best_regret": first.regret(
            int(np.argmax(np.where(first.memory <= 1.0, first.speed, 0.0)))
        ),
        "start_regret": first.regret(first.start),
    }
