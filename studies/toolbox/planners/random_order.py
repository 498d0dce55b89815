"""Bundles at random."""

from __future__ import annotations

import numpy as np

from studies.toolbox.search import Progress, Suggestion


class RandomPlanner:
    """Every open bundle is equally likely."""

    name = "random"

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng([seed, 9])

    def suggest(self, progress: Progress) -> Suggestion | None:
        """An open bundle."""
        bundles = progress.open()
        if not bundles:
            return None
        return Suggestion(bundles[self._generator.integers(len(bundles))], "drawn at random")
