"""Optuna's TPE over one categorical axis a tool."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from studies.toolbox.bundle import OFF, Bundle
from studies.toolbox.search import Progress, Suggestion

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

ASKS = 32
"""Illegal or known proposals in a row before a random open bundle is taken."""


class TpePlanner:
    """Asks a sampler that has been told every outcome; untimed outcomes count as no gain."""

    name = "tpe"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def suggest(self, progress: Progress) -> Suggestion | None:
        """The first proposal of TPE that is an open bundle."""
        import optuna

        bundles = progress.open()
        if not bundles:
            return None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        space = axes_of(progress.legal)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=self._seed + len(progress.outcomes))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for bundle, outcome in progress.outcomes.items():
            study.add_trial(
                optuna.trial.create_trial(
                    params={tool: bundle.get(tool) for tool in space},
                    distributions=space,
                    value=outcome.log_ratio or 0.0,
                )
            )
        free = set(bundles)
        for ask in range(ASKS):
            proposal = Bundle.of(study.ask(space).params)
            if proposal in free:
                return Suggestion(proposal, f"TPE, proposal {ask + 1}")
        generator = np.random.default_rng([self._seed, len(progress.outcomes)])
        chosen = bundles[generator.integers(len(bundles))]
        return Suggestion(chosen, f"at random: {ASKS} proposals of TPE were illegal or known")


def axes_of(bundles: Iterable[Bundle]) -> dict[str, BaseDistribution]:
    """One categorical axis a tool, with ``off`` and the settings that occur."""
    from optuna.distributions import CategoricalDistribution

    settings: dict[str, set[str]] = {}
    for bundle in bundles:
        for tool, setting in bundle:
            settings.setdefault(tool, {OFF}).add(setting)
    return {
        tool: CategoricalDistribution(tuple(sorted(values)))
        for tool, values in sorted(settings.items())
    }
