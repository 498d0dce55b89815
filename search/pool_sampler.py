"""PoolSampler: an Optuna sampler that chooses from a list of legal candidates.

    study = optuna.create_study(sampler=foretune.PoolSampler(pool), direction="maximize")

It keeps no state: every proposal is computed from the trials in the storage, so a resumed study and
a second process propose the same. It never proposes a candidate twice, nor one that is not in the
pool, whatever was enqueued by hand. What it models and how it weighs memory, cost and parallel
workers is in ``search.acquisition``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from search.acquisition import Models, Scores, is_done, scores
from search.evidence import MEMORY_CONSTRAINT, ROW, Seen, evidence_of, modelled, seen_of
from search.pool import Pool, enumerated
from search.prior import Expert, log_weights
from search.transfer import Source
from specs.errors import InputError

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

Rows = NDArray[np.int64]

STARTERS = 8
"""Random candidates evaluated first where nothing is believed beforehand."""


@dataclass(frozen=True)
class Judged:
    """Every candidate as the trials so far make it look; ``open_rows`` may still be proposed."""

    scores: Scores
    models: Models
    open_rows: Rows

    @property
    def best_row(self) -> int:
        """The open candidate with the highest score; the first of equals."""
        return int(self.open_rows[np.argmax(self.scores.score[self.open_rows])])

    @property
    def is_done(self) -> bool:
        """Whether no open candidate promises more than the noise of one evaluation."""
        return is_done(self.scores, self.models, self.open_rows)


class PoolSampler(BaseSampler):
    """Chooses from a pool of candidates by expected gain, fit and cost.

    Args:
        pool: the candidates (``search.pool.pool_of``, ``enumerated``, ``search.config_pool``).
            Without one the space of the objective is enumerated as far as it can be.
        legal: without a pool, whether a combination of parameters may be evaluated.
        expert: an opinion on candidates, weighed by how it agrees with what is measured.
        sources: other studies to learn from, weighed in the same way.
        memory_constraint: the constraint of trials that holds measured memory less capacity, in
            GiB, where the pool projects memory.
        seed: of everything that is drawn.
        stop: whether to end ``study.optimize`` when no gain is left or every candidate was tried.
    """

    def __init__(
        self,
        pool: Pool | None = None,
        *,
        legal: Callable[[dict[str, Any]], bool] | None = None,
        expert: Expert | None = None,
        sources: Sequence[Source] = (),
        memory_constraint: str = MEMORY_CONSTRAINT,
        seed: int | None = 0,
        stop: bool = False,
    ) -> None:
        if pool is not None and legal is not None:
            raise InputError("a pool is legal as it is; give either pool or legal.")
        self._pool, self._legal, self._expert, self._sources = pool, legal, expert, tuple(sources)
        self._memory_constraint, self._stop = memory_constraint, stop
        self._seed = seed if seed is not None else int(np.random.default_rng().integers(2**31))
        self._independent = RandomSampler(seed=self._seed)
        self._pools: dict[Any, Pool] = {}
        self._lock = threading.Lock()

    def reseed_rng(self) -> None:
        """Reseeds what is drawn for parameters outside the pool."""
        self._independent.reseed_rng()

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The space of the pool; without one, what all trials so far have in common."""
        del trial
        if self._pool is not None:
            return dict(self._pool.space)
        common = IntersectionSearchSpace().calculate(study)
        return {name: d for name, d in common.items() if not d.single()}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A random value of a parameter that no candidate has."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of the candidate to evaluate next.

        A trial that was enqueued with some parameters gets the best candidate that has them.

        Raises:
            InputError: no candidate is left, or none has the parameters that were enqueued.
        """
        if not search_space:
            return {}
        with self._lock:
            pool = self._pool_of(search_space)
            row = self._choice(study, trial, pool)
            study._storage.set_trial_system_attr(trial._trial_id, ROW, row)
        chosen = pool.parameters(row)
        return {name: chosen[name] for name in search_space}

    def row_of(self, trial: Trial) -> int:
        """The candidate that an asked trial evaluates.

        Raises:
            InputError: the trial evaluates none.
        """
        held = trial.study._storage.get_trial_system_attrs(trial._trial_id)
        row = held.get(ROW)
        if row is None and self._pool is not None:  # enqueued whole: Optuna did not ask
            row = self._pool.find({**held.get("fixed_params", {}), **trial.params})
        if row is None:
            raise InputError(f"trial {trial.number} has no candidate of the pool.")
        return int(row)

    def judged(self, study: Study, trial: FrozenTrial | None = None) -> Judged:
        """What is thought of every candidate now.

        Raises:
            InputError: the sampler has no pool of its own.
        """
        if self._pool is None:
            raise InputError("only a sampler with a pool can judge its candidates.")
        return self._judged(self._pool, self._seen(study, trial, self._pool), trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Ends ``study.optimize`` where ``stop`` asks for it."""
        self._independent.after_trial(study, trial, state, values)
        if self._stop and self._pool is not None and study._thread_local.in_optimize_loop:
            seen = self._seen(study, trial, self._pool)
            exhausted = len(seen.taken) >= len(self._pool)
            if exhausted or self._judged(self._pool, seen, trial).is_done:
                study.stop()

    def _pool_of(self, space: Mapping[str, BaseDistribution]) -> Pool:
        if self._pool is not None:
            if set(space) != set(self._pool.space):
                raise InputError("a pool cannot be sampled in part; fix parameters by enqueueing.")
            return self._pool
        key = tuple(sorted((name, repr(distribution)) for name, distribution in space.items()))
        if key not in self._pools:
            self._pools[key] = enumerated(space, self._legal, seed=self._seed)
        return self._pools[key]

    def _seen(self, study: Study, trial: FrozenTrial | None, pool: Pool) -> Seen:
        trials = study.get_trials(deepcopy=False)
        own = -1 if trial is None else trial.number
        others = [t for t in trials if t.number != own or t.state.is_finished()]
        signs = [1.0 if d == StudyDirection.MAXIMIZE else -1.0 for d in study.directions]
        return seen_of(pool, others, signs, self._memory_constraint, self._pool is not None)

    def _choice(self, study: Study, trial: FrozenTrial, pool: Pool) -> int:
        """The row to evaluate."""
        seen = self._seen(study, trial, pool)
        fixed = trial.system_attrs.get("fixed_params", {})
        fixed = {name: value for name, value in fixed.items() if name in pool.space}
        allowed = pool.matching(fixed) if fixed else np.arange(len(pool))
        if not len(allowed):
            raise InputError(f"no candidate has the enqueued parameters {fixed}.")
        if len(allowed) == 1 and fixed:
            return int(allowed[0])
        open_rows = np.setdiff1d(allowed, seen.taken)
        if not len(open_rows):
            if self._pool is not None:
                raise InputError("every candidate of the pool was tried; there is nothing left.")
            open_rows = allowed  # a space that was only inferred may be sampled again
        if pool.belief is None and len(seen.value) < STARTERS:
            generator = np.random.default_rng([self._seed, trial.number])
            return int(generator.choice(open_rows))
        judged = self._judged(pool, seen, trial)
        return int(open_rows[np.argmax(judged.scores.score[open_rows])])

    def _judged(self, pool: Pool, seen: Seen, trial: FrozenTrial | None) -> Judged:
        number = trial.number if trial is not None else 0
        model = modelled(pool, seen, np.random.default_rng([self._seed, number, 1]))
        evidence = evidence_of(pool, seen, model, self._sources)
        models = Models.of(evidence, model.prior)
        weights = None
        if self._expert is not None:
            weights = log_weights(self._expert(pool), seen.row, model.value, len(seen.value))
        judged = scores(models, model.candidates, model.log_share, pool.cost, weights)
        open_rows = np.setdiff1d(np.arange(len(pool)), seen.taken)
        return Judged(judged, models, open_rows)
