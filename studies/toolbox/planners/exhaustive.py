"""Every bundle, small ones first."""

from __future__ import annotations

from studies.toolbox.search import Progress, Suggestion


class ExhaustivePlanner:
    """Leaves nothing out but what is known to be bad."""

    name = "exhaustive"

    def suggest(self, progress: Progress) -> Suggestion | None:
        """The smallest open bundle."""
        bundles = progress.open()
        return Suggestion(bundles[0], f"one of {len(bundles)} left") if bundles else None
