"""The reference: the config that the best one is compared with, in the words of every page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specs.config import TrainingConfig
from studies.ledger import Trial
from studies.wording import change_in_words


@dataclass(frozen=True, slots=True)
class Reference:
    """The config that the best one is compared with, and what it is in words.

    It is the baseline where that fits; else the fastest trial that fits and differs least from it.
    """

    tokens_per_s_per_gpu: float
    words: str
    is_baseline: bool

    def gain(self, tokens_per_s_per_gpu: float) -> float:
        """Gain of a throughput over the reference as a fraction."""
        return tokens_per_s_per_gpu / self.tokens_per_s_per_gpu - 1


def reference(
    baseline: TrainingConfig, tokens_per_s_per_gpu: float, fits: bool, trials: Iterable[Trial]
) -> Reference | None:
    """What the best config is compared with; None where the baseline and no trial fits.

    Args:
        baseline: of the study, legal.
        tokens_per_s_per_gpu: what is projected of it.
        fits: whether it fits as likely as not.
        trials: of the study.
    """
    if fits:
        return Reference(tokens_per_s_per_gpu, "the baseline", True)
    before = baseline.as_labels()
    fitting = []
    for trial in trials:
        if trial.fits:
            after = trial.config.as_labels()
            changes = {n: (before[n], after[n]) for n in before if before[n] != after[n]}
            fitting.append((len(changes), -(trial.tokens_per_s_per_gpu or 0.0), changes))
    if not fitting:
        return None
    _, speed, changes = min(fitting, key=lambda found: found[:2])
    return Reference(-speed, f"the baseline with {change_in_words(changes)}", False)
