"""Expected improvement under effects of single tools and of pairs of tools.

The log speed ratio of a bundle is the sum of an effect for each of its settings and of an
interaction for each pair of them, all normal around 0. Two bundles that share s settings therefore
covary by ``single_var * s + pair_var * s (s - 1) / 2``: linear regression with interactions as a
kernel (Rasmussen, Williams 2006, section 2.1), which needs no list of features.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specs.figures import percent
from studies.toolbox.bundle import Bundle
from studies.toolbox.search import Progress, Suggestion
from studies.toolbox.tools import TOOLBOX

Floats = NDArray[np.float64]

SINGLE_SD = 0.25
"""Log sd of the effect of one setting (assumed: tools bring between -20% and +60% or so)."""
PAIR_SD = 0.12
"""Log sd of an interaction (assumed; measured ones on a CPU lie between -21% and +7%)."""
NOISE_SD = 0.01
"""Log sd by which a measured bundle may be off beyond its standard error (assumed)."""
NEW_SETTINGS = 2
"""Settings never measured before that a suggestion may hold: two, to see pairs that only work
together, and no more, so that a failure has a culprit."""

PREPARING_COST = 5.0
"""Cost of bundles that compile or tune over that of others, before any is known (measured on a
CPU: 2 to 9)."""
COST_POWER = 0.5
"""Weight of cost: 0 counts trials, 1 counts seconds (expected improvement per second, Snoek 2012,
section 3.2); a half serves both."""


class AcquisitionPlanner:
    """Suggests the open bundle with the highest expected improvement for its cost."""

    name = "acquisition"

    def suggest(self, progress: Progress) -> Suggestion | None:
        """The bundle and what is expected of it."""
        bundles = _reachable(progress)
        if not bundles:
            return None
        mean, sd = posterior(progress, bundles)
        timed = [o.log_ratio for o in progress.outcomes.values() if o.log_ratio is not None]
        gain = expected_improvement(mean, sd, max([0.0, *timed]))
        at = int(np.argmax(gain / expected_cost(progress, bundles) ** COST_POWER))
        low, high = np.expm1(mean[at] - sd[at]), np.expm1(mean[at] + sd[at])
        return Suggestion(
            bundles[at],
            f"expected improvement {gain[at]:.1%} of {len(bundles)} bundles; "
            f"believed {percent(low, signed=True, digits=0)} to "
            f"{percent(high, signed=True, digits=0)}",
        )


def _reachable(progress: Progress) -> list[Bundle]:
    """Open bundles with few settings that were never timed."""
    known = {
        pair
        for bundle, outcome in progress.outcomes.items()
        if outcome.log_ratio is not None
        for pair in bundle
    }
    return [b for b in progress.open() if len(set(b.pairs) - known) <= NEW_SETTINGS]


def kernel(first: list[Bundle], second: list[Bundle]) -> Floats:
    """Prior covariance of the log ratios of two lists of bundles."""
    settings = {pair: i for i, pair in enumerate({p for b in [*first, *second] for p in b})}

    def rows(bundles: list[Bundle]) -> Floats:
        matrix = np.zeros((len(bundles), max(len(settings), 1)))
        for row, bundle in enumerate(bundles):
            matrix[row, [settings[pair] for pair in bundle]] = 1
        return matrix

    shared = rows(first) @ rows(second).T
    return SINGLE_SD**2 * shared + PAIR_SD**2 * shared * (shared - 1) / 2


def posterior(progress: Progress, bundles: list[Bundle]) -> tuple[Floats, Floats]:
    """Mean and sd of the log ratio of bundles given the timed outcomes."""
    timed = [o for o in progress.outcomes.values() if o.log_ratio is not None]
    prior = np.array([kernel([bundle], [bundle])[0, 0] for bundle in bundles])
    if not timed:
        return np.zeros(len(bundles)), np.sqrt(prior)
    known = [outcome.bundle for outcome in timed]
    values = np.array([outcome.log_ratio for outcome in timed], dtype=np.float64)
    noise = np.array([(o.standard_error or 0.0) ** 2 + NOISE_SD**2 for o in timed])
    cross = kernel(bundles, known)
    solved = np.linalg.solve(
        kernel(known, known) + np.diag(noise), np.column_stack([values[:, None], cross.T])
    )
    variance = prior - (cross * solved[:, 1:].T).sum(axis=1)
    return cross @ solved[:, 0], np.sqrt(np.clip(variance, 1e-12, None))


def expected_cost(progress: Progress, bundles: list[Bundle]) -> Floats:
    """Cost of evaluating bundles in units of those that prepare nothing: means of what was seen."""
    seen: dict[bool, list[float]] = {False: [], True: []}
    for outcome in progress.outcomes.values():
        if outcome.log_ratio is not None:
            seen[prepares(outcome.bundle)].append(outcome.cost_s)
    ratio = PREPARING_COST
    if seen[True] and seen[False]:
        usual = max(float(np.mean(seen[False])), 1e-9)
        ratio = max(float(np.mean(seen[True])) / usual, 1.0)
    return np.array([ratio if prepares(bundle) else 1.0 for bundle in bundles])


def prepares(bundle: Bundle) -> bool:
    """Whether a tool of the bundle compiles or tunes."""
    return any(tool in TOOLBOX and TOOLBOX[tool].prepares for tool, _ in bundle)


def expected_improvement(mean: Floats, sd: Floats, best: float) -> Floats:
    """Expected excess over ``best`` of normal values."""
    z = (mean - best) / sd
    gain = (mean - best) * stats.norm.cdf(z) + sd * stats.norm.pdf(z)
    return np.asarray(np.maximum(gain, 0.0))
