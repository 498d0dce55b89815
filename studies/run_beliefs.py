"""What is believed of every config that may be run for real, with what told runs taught.

``ask`` and ``tell`` show the same numbers: throughput and its interval are projections calibrated
on the runs of the job, which without runs are those of ``foretune project``, and with them those of
``foretune project --calibration`` and ``tune``: memory is moved by measured peaks and by runs that
went out of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from search.config_pool import ConfigPool
from search.pool_sampler import Judged
from search.space import Space
from specs.config import TrainingConfig
from studies.real_runs import FINISHED, AskedRun, RealRuns
from surrogate.projection import Projections

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RunBeliefs:
    """n configs of ``pool`` as they were projected before any run (``before``) and as they are now.

    ``judged`` is what the sampler makes of the runs: it decides what is asked next.
    """

    pool: ConfigPool
    before: Projections
    now: Projections
    judged: Judged

    @property
    def fit_probability(self) -> Floats:
        """Probability that each config fits, shape (n,)."""
        return self.now.fit_probability

    @property
    def expected(self) -> Floats:
        """Throughput to expect of each config, one that runs out of memory counting 0, (n,)."""
        speed: Floats = self.now.tokens_per_s_per_gpu * self.fit_probability
        return speed

    def peak_gib(self, row: int, asked: Sequence[AskedRun] = ()) -> float:
        """Peak device memory to expect of a config, GiB; the last peak of its runs ``asked``, as
        device memory, where one was measured."""
        device_gib = float(self.now.device_gib[row])
        for run in reversed(asked):
            if run.state == FINISHED and run.peak_gib is not None:
                read_gib = float(getattr(self.now, f"{run.counter}_gib")[row])
                return device_gib * run.peak_gib / read_gib
        return device_gib

    def row(self, config: TrainingConfig) -> int:
        """The row of a config that was asked or is the baseline."""
        row = self.pool.row_of(config)
        assert row is not None
        return row

    def rows(self, runs: RealRuns, state: str) -> list[int]:
        """The rows of the runs in a state (``AskedRun.state``), each once."""
        configs = dict.fromkeys(run.config for run in runs.runs() if run.state == state)
        return [self.row(config) for config in configs]


def run_beliefs(
    runs: RealRuns, space: Space, seed: int = 0, extra: Sequence[TrainingConfig] = ()
) -> RunBeliefs:
    """What is believed of the configs of a space, the baseline and ``extra``.

    Args:
        runs: of the job.
        space: configs that may be run.
        seed: of the random part of a space that is too large to take whole.
        extra: configs that belong to it whatever the space, such as those that were asked.
    """
    pool = runs.pool(space, seed, extra)
    return RunBeliefs(
        pool=pool,
        before=runs.job.project(pool.table),
        now=replace(runs.job, learned=runs.taught()).project(pool.table),
        judged=runs.judged(pool, seed),
    )
