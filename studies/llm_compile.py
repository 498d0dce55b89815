"""``foretune llm compile``: the regret of proposals on a job, for compiling the program."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from search.companions import with_companions
from search.llm.compiling import Example, Regret, compiled, recorded_examples
from search.llm.repair import ConfigCandidates, ConfigGround
from search.llm.schema import Reply
from search.space import Space
from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from studies.job import Job
from studies.llm import LlmOptions, fit_of, why_not_tried
from studies.training import rank_space

BEST_SECTION = "# best so far, as changes of the baseline\n"
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)')


def compile_program(
    job: Job, recordings: list[Path], good: float, options: LlmOptions | None
) -> dict[str, Any]:
    """A compiled program from recordings of studies of one job.

    Args:
        job: what the recordings are about.
        recordings: files.
        good: regret up to which an answer is an example to follow.
        options: a model that answers the questions again; None uses what was recorded alone.

    Raises:
        InputError: a recording cannot be used, or no answer is good enough.
        InfeasibleError: no config of the job fits.
    """
    examples = recorded_examples(recordings)
    regret = regret_on(job)
    if options is None:
        return compiled(examples, regret, good)
    from search.llm.client import check_installed

    check_installed()
    import os

    from search.llm.program import language_model
    from search.llm.worker import KEY_VARIABLE, REPLY_TOKENS, RETRIES

    lm = language_model(
        options.model,
        options.url,
        os.environ.get(KEY_VARIABLE),
        max_tokens=REPLY_TOKENS,
        num_retries=RETRIES,
        timeout=options.deadline_s,
    )
    return compiled(examples, regret, good, lm)


def regret_on(job: Job) -> Regret:
    """Regret of a reply on a job: how far its best proposal that fits is below the optimum."""
    space = Space.of(job.experiment, job.cluster, full=True)
    ranking = rank_space(job, space)
    best = float(ranking.expected[0])
    candidates = ConfigCandidates(ranking.table)
    expected = lru_cache(4096)(_expected_of(job))

    def regret(example: Example, reply: Reply) -> float:
        ground = ConfigGround(
            anchor=anchor_in(job, example.briefing),
            axes=space.axes,
            candidates=candidates,
            why_illegal=lambda config: why_not_tried(job, space, config),
            fit=lambda config: fit_of(job, config),
            tried=(),
        )
        found = [ground.judge(proposal.config) for proposal in reply.proposals]
        values = [
            expected(TrainingConfig.from_labels(finding.config))
            for finding in found
            if finding.config is not None
        ]
        return max(1.0 - max(values, default=0.0) / best, 0.0)

    return regret


def _expected_of(job: Job) -> Callable[[TrainingConfig], float]:
    def expected(config: TrainingConfig) -> float:
        seen = job.project(ConfigTable.from_configs([config]))
        return float(seen.tokens_per_s_per_gpu[0] * seen.fit_probability[0])

    return expected


def anchor_in(job: Job, briefing: str) -> TrainingConfig:
    """The best config that a briefing names; the baseline where it names none that can be read."""
    _, found, rest = briefing.partition(BEST_SECTION)
    line = rest.partition("\n")[0] if found else ""
    labels = {
        axis: json.loads(value) if value.startswith('"') else value
        for axis, value in _PAIR.findall(line)
    }
    try:
        values = TrainingConfig.from_labels(labels)
    except InputError:
        return job.baseline
    return with_companions(job.baseline, {axis: getattr(values, axis) for axis in labels})
