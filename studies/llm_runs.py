"""A model beside the acquisition that chooses real runs: a prior, and one run in three."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from search.config_pool import ConfigPool
from search.llm.advice import Advice, consult
from search.llm.asking import Consultant, Request
from search.llm.messages import INSTRUCTIONS, TrialRow, briefing
from search.llm.opinion import current_opinion
from search.llm.repair import ConfigCandidates
from search.llm.turns import Trials, its_turn, standing_of_model
from search.pool import Pool
from search.pool_sampler import Judged
from search.prior import Opinion
from search.space import Space
from specs.config import TrainingConfig
from studies.llm import (
    PROPOSER,
    LlmOptions,
    advice_key,
    consultant_of,
    ground_of,
    proposal_of,
    read_advice,
    rounds_of,
)
from studies.llm_view import view
from studies.oracles import projection
from studies.real_runs import AskedRun, RealRuns, measured_inputs


@contextmanager
def advisor_of(
    options: LlmOptions | None, runs: RealRuns, space: Space, folder: Path
) -> Iterator[RunAdvisor | None]:
    """The advisor that the options ask for; None where they name no model.

    Args:
        options: which model.
        runs: of the job.
        space: its legal space.
        folder: where the calls are recorded.

    Raises:
        InputError: DSPy or LiteLLM is missing, or the recording belongs to other runs.
    """
    if options is None:
        yield None
        return
    identity = options.identity()
    study = {**measured_inputs(runs.job), "llm": identity}
    with consultant_of(options, study, 0, folder) as consultant:
        yield RunAdvisor(runs, space, identity, consultant)


TOLD = ("measured", "out of memory")


class RunAdvisor:
    """Asks a model about the real runs of a job, at most once for each ``foretune ask``."""

    def __init__(
        self, runs: RealRuns, space: Space, identity: Mapping[str, Any], consultant: Consultant
    ) -> None:
        self._runs, self._space = runs, space
        self._identity, self._consultant = identity, consultant
        self.advice: tuple[Advice, ...] = read_advice(runs.study.user_attrs)

    def consulted(self, pool: ConfigPool) -> list[TrainingConfig]:
        """Asks where anything new is known; gives the model's proposals that the pool lacks."""
        runs = self._runs.runs()
        known = self.advice[-1].known if self.advice else -1
        if not self.advice or any(run.state in TOLD and run.number >= known for run in runs):
            self._ask(pool, runs)
        proposed = [
            TrainingConfig.from_labels(p.config or {}) for a in self.advice for p in a.usable
        ]
        return [config for config in proposed if pool.row_of(config) is None]

    def expert(self, pool: Pool) -> Opinion | None:
        """What the model thinks of the candidates (``search.prior.Expert``)."""
        assert isinstance(pool, ConfigPool)
        rows = self._trials(pool).rows
        return current_opinion(ConfigCandidates(pool.table, pool), self.advice, rows)

    def its_turn(
        self, pool: ConfigPool, judged: Judged, affordable: Any
    ) -> tuple[int, str, str] | None:
        """(row, reason, proposer) of the model's next run; None where it is not its turn."""
        if not self.advice:
            return None
        score = judged.scores.score
        best = float(score[affordable].max())

        def worth(labels: Mapping[str, Any]) -> float | None:
            row = pool.row_of(TrainingConfig.from_labels(labels))
            return float(score[row]) - best if row is not None and row in affordable else None

        candidates = ConfigCandidates(pool.table, pool)
        chosen = its_turn(self.advice, candidates, self._trials(pool), worth)
        if chosen is None:
            return None
        proposal = proposal_of(chosen, self.advice)
        row = pool.row_of(proposal.config)
        assert row is not None
        return row, proposal.reason, PROPOSER

    def summary(self, pool: ConfigPool | None = None) -> dict[str, Any]:
        """What the model cost and contributed, as JSON."""
        runs = self._runs.runs()
        believed = None
        if pool is not None and self.advice:
            candidates = ConfigCandidates(pool.table, pool)
            believed = standing_of_model(self.advice, candidates, self._trials(pool))
        measured = [run for run in runs if run.tokens_per_s_per_gpu]
        best = max(measured, key=lambda run: run.tokens_per_s_per_gpu or 0.0, default=None)
        return {
            **rounds_of(self._consultant, self.advice),
            "trials": [run.number for run in runs if run.proposer == PROPOSER],
            "best_is_its": best is not None and best.proposer == PROPOSER,
            "believed": believed,
        }

    def _ask(self, pool: ConfigPool, runs: Sequence[AskedRun]) -> None:
        number = len(self.advice)
        best = max(
            (run for run in runs if run.tokens_per_s_per_gpu),
            key=lambda run: run.tokens_per_s_per_gpu or 0.0,
            default=None,
        )
        anchor = best.config if best is not None else self._runs.job.baseline
        program = str(self._identity.get("program", ""))
        request = Request(INSTRUCTIONS, self._briefing(runs, anchor), program=program)
        ground = ground_of(
            self._runs.job,
            self._space,
            anchor,
            ConfigCandidates(pool.table, pool),
            [run.config for run in runs],
            self.advice,
        )
        advice = consult(self._consultant, ground, request, number, len(runs))
        self.advice = (*self.advice, advice)
        self._runs.study.set_user_attr(advice_key(number), advice.as_json())

    def _briefing(self, runs: Sequence[AskedRun], best: TrainingConfig) -> str:
        job = self._runs.job
        shown = {} if job.why_illegal(job.baseline) else {"baseline (projected)": job.baseline}
        if best != job.baseline:
            shown["best (projected)"] = best
        return briefing(
            view(
                job,
                self._space.axes,
                [_row(run) for run in runs if run.state in (*TOLD, "crashed")],
                best,
                {name: projection(job, config) for name, config in shown.items()},
                [],
                self.advice,
                self._identity.get("hints", []),
            )
        )

    def _trials(self, pool: ConfigPool) -> Trials:
        found = Trials()
        for run in self._runs.runs():
            row = pool.row_of(run.config)
            value = run.tokens_per_s_per_gpu
            if value is None:
                value = 0.0 if run.state in (*TOLD, "crashed") else np.nan
            found.add(-1 if row is None else row, value, run.proposer == PROPOSER)
        return found


def _row(run: AskedRun) -> TrialRow:
    out_of_memory = run.state == "out of memory"
    return TrialRow(
        config=run.config.as_labels(),
        tokens_per_s_per_gpu=0.0 if out_of_memory else run.tokens_per_s_per_gpu,
        over_gib=1.0 if out_of_memory else 0.0,
        fit_probability=0.0 if out_of_memory else 1.0,
        proposer=run.proposer,
    )
