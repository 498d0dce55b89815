"""Measured tables played back: every ComparisonSet of a file of runs is a search problem.

What is believed of a set comes from a surrogate that was fitted without its Folds. Runs whose
stated config is the same count as one candidate with their mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.search.problem import Problem
from benchmarks.search.tables import distinct, varying_axes
from specs.models_json import models_json
from specs.runs import RunTable, comparison_sets, read_runs
from surrogate.learned import Learned
from surrogate.learning import learn
from surrogate.projection import project
from surrogate.run_cases import cases_of

SMALLEST, LEAST_SPREAD = 4, 0.05
"""Sets need this many distinct configs, and a best that is this much faster than the worst."""


def replays(runs: Path, models: Path, most: int | None = None) -> list[Problem]:
    """The problems of a file, the largest first.

    Args:
        runs: CSV of measured runs.
        models: their models.json.
        most: problems at most.
    """
    table = read_runs(runs, models_json(models).find)
    known = np.isin(table.throughput_from, ("tokens", "step"))
    table = table.take(known | table.out_of_memory)
    sets = [(key, rows) for key, rows in comparison_sets(table, SMALLEST).items()]
    sets.sort(key=lambda item: -len(item[1]))
    return list(islice(_problems(table, sets), most))


def _problems(table: RunTable, sets: list[tuple[str, np.ndarray]]) -> Iterator[Problem]:
    """A problem of each set that has something to find; one fit for each set of Folds left out."""
    fitted: dict[frozenset[str], Learned] = {}
    for key, rows in sets:
        part = table.take(rows)
        axes, codes = varying_axes(part.config)
        same = distinct(codes)
        count = int(same.max()) + 1 if len(same) else 0
        speed = np.array([_mean(part.tokens_per_s_per_gpu[same == k]) for k in range(count)])
        if count < SMALLEST or np.isnan(speed).all():
            continue
        if np.nanmin(speed) > (1 - LEAST_SPREAD) * np.nanmax(speed):
            continue
        folds = frozenset(part.fold.tolist())
        if folds not in fitted:
            fitted[folds] = learn(table.take(~np.isin(table.fold, list(folds))))
        learned = fitted[folds]
        cases = cases_of(part)
        seen = project(cases, learned.constants, learned)
        first = np.array([int(np.flatnonzero(same == k)[0]) for k in range(count)])
        fits = np.isfinite(speed)
        share = seen.device_gib / np.broadcast_to(cases.cluster.hbm_gib, (len(part),))
        yield Problem(
            name=key,
            axes=axes,
            codes=codes[first],
            speed=seen.tokens_per_s_per_gpu[first],
            memory=share[first],
            true_speed=np.where(fits, speed, np.nanmin(speed)),
            true_memory=np.where(fits, np.minimum(share[first], 1.0), 1.01),
            noise=0.0,
            start=-1,
            reads_memory=False,
        )


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
