"""The reference: the config that the best one is compared with, in the words of every page.

Where the baseline does not fit, it is the nearest config that does, which ``ask`` asks first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from search.seed_sweep import seed_sweep
from search.space import Space
from specs.config import ConfigTable, TrainingConfig
from studies.wording import change_in_words

if TYPE_CHECKING:
    from studies.job import Job

SURE = 0.9
"""Fit probability of a config that stands in for a baseline that does not fit (chosen)."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The config that the best one is compared with, and what it is in words.

    It is the baseline where that fits; else the nearest config that surely does.
    """

    tokens_per_s_per_gpu: float
    words: str
    is_baseline: bool

    def gain(self, tokens_per_s_per_gpu: float) -> float:
        """Gain of a throughput over the reference as a fraction."""
        return tokens_per_s_per_gpu / self.tokens_per_s_per_gpu - 1


def nearest_that_fits(
    baseline: TrainingConfig,
    table: ConfigTable,
    tokens_per_s_per_gpu: NDArray[np.float64],
    fit_probability: NDArray[np.float64],
) -> int | None:
    """The row that changes fewest axes of the baseline and surely fits; of several the fastest.

    The number format stays that of the baseline: another one is another training, not a way to fit.
    None where no such row is there.

    Args:
        baseline: of the study.
        table: n configs to choose from; to be sure of the nearest, with ``near``.
        tokens_per_s_per_gpu, fit_probability: of every row, shape (n,).
    """
    same_format = np.asarray(table.precision) == int(baseline.precision)
    fits = np.flatnonzero(same_format & (fit_probability >= SURE))
    if not len(fits):
        return None
    changed = table.axes_changed(baseline)[fits]
    close = fits[changed == changed.min()]
    return int(close[np.argmax(tokens_per_s_per_gpu[close])])


def near(job: Job, space: Space) -> list[TrainingConfig]:
    """The legal configs that differ from the baseline in one axis and what that entails."""
    found = dict.fromkeys(step.config for step in seed_sweep(job.baseline, space.axes))
    found.pop(job.baseline, None)
    return [config for config in found if not job.why_illegal(config)]


def changed_in_words(baseline: TrainingConfig, config: TrainingConfig) -> str:
    """What a config changes of the baseline."""
    before, after = baseline.as_labels(), config.as_labels()
    return change_in_words(
        {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    )


def reference(
    job: Job, tokens_per_s_per_gpu: float, fits: bool, space: Space, others: ConfigTable
) -> Reference | None:
    """What the best config is compared with; None where neither the baseline nor another fits.

    Args:
        job: what is trained; its baseline is legal.
        tokens_per_s_per_gpu: what is projected of the baseline.
        fits: whether the baseline fits as likely as not.
        space: legal configs.
        others: of them, those to choose from where none next to the baseline fits.
    """
    if fits:
        return Reference(tokens_per_s_per_gpu, "the baseline", True)
    failed = set(job.failed)
    steps = [config for config in near(job, space) if config not in failed]
    table = ConfigTable.concat([ConfigTable.from_configs(steps), others])
    seen = job.project(table)
    speed = np.asarray(seen.tokens_per_s_per_gpu, dtype=np.float64)
    row = nearest_that_fits(job.baseline, table, speed, seen.fit_probability)
    if row is None:
        return None
    words = changed_in_words(job.baseline, table.config(row))
    return Reference(float(speed[row]), f"the baseline with {words}", False)
