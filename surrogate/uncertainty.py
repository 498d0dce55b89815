"""How sure a projection is: conformal intervals, trust grades and joint draws.

The spread of a projection says which rows are hard; how wide 90% must be is measured on runs of
Folds that were left out (split conformal prediction, arXiv 2107.07511, normalised scores), apart
for dense and MoE models and apart for runs whose key was calibrated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from surrogate.cases import Column

Floats = NDArray[np.float64]

COVERAGE = 0.9
FAMILIES = ("dense", "moe")
KNOWLEDGE = ("zero_shot", "calibrated")
GAUSSIAN_90 = 1.645
"""Two-sided 90% of a normal distribution: the width where nothing was measured."""

UNSTATED_WIDTH = (1.4, 1.7)
"""How much wider intervals of dense and of MoE runs are that leave their recomputation open: such
runs leave dispatcher, CUDA graphs and kernels open as well. Of 1,130 public runs, 90% of the dense
ones lie within 1.5 times as many spreads as those that state it with Folds left out and within 1.2
times after one run of the Fold, of the MoE ones within 1.65 and 1.7 times."""

TRUST = ("physics only", "extrapolated", "interpolated", "calibrated", "measured")
"""Trust grades from the weakest to the strongest."""
INTERPOLATED_FROM = 0.5
"""Share of the prior variance that like runs explain from which a row is an interpolation."""


@dataclass(frozen=True)
class Intervals:
    """Half-widths of 90% intervals in spreads of log tokens/s, by family and knowledge."""

    widths: Mapping[str, Mapping[str, float]]

    @classmethod
    def gaussian(cls) -> Intervals:
        """Widths where no Fold was left out yet."""
        return cls({f: dict.fromkeys(KNOWLEDGE, GAUSSIAN_90) for f in FAMILIES})

    @classmethod
    def from_json(cls, content: Any) -> Intervals:
        """Intervals from ``as_json``.

        Raises:
            InputError: a width is missing or no positive number.
        """
        try:
            widths = {f: {k: float(content[f][k]) for k in KNOWLEDGE} for f in FAMILIES}
        except (KeyError, TypeError, ValueError):
            raise InputError("the interval widths are unusable; calibrate again.") from None
        if min(w for by in widths.values() for w in by.values()) <= 0:
            raise InputError("an interval width is not positive; calibrate again.")
        return cls(widths)

    def as_json(self) -> dict[str, dict[str, float]]:
        """The widths, three digits."""
        return {f: {k: round(self.widths[f][k], 3) for k in KNOWLEDGE} for f in FAMILIES}

    def half_width(self, spread: Column, moe: Column, calibrated: Column) -> Floats:
        """Half-width of the 90% interval in log space, shape (n,).

        Args:
            spread: sd of each row's log error as the model believes it.
            moe: whether the model has experts.
            calibrated: whether runs of its key are known.
        """
        table = np.array([[self.widths[f][k] for k in KNOWLEDGE] for f in FAMILIES])
        width: Floats = table[moe.astype(np.int64), calibrated.astype(np.int64)] * spread
        return width


def conformal_width(errors: Column, spread: Column, coverage: float = COVERAGE) -> float:
    """The multiple of ``spread`` that covers this share of errors on Folds left out.

    The share is raised by one run in all, as exchangeable runs demand of finite samples. Runs count
    alike: were small Folds to count for more, MoE intervals would be a fifth to a third wider and
    cover 1% more of Folds that count alike (84 to 85%).

    Args:
        errors: log errors of rows projected without their Fold, shape (n,).
        spread: what the model believed of each, shape (n,).
        coverage: share to cover.
    """
    scores = np.abs(errors) / spread
    share = min(coverage * (1.0 + 1.0 / len(errors)), 1.0)
    return float(np.quantile(scores, share, method="inverted_cdf"))


def doubt(moe: Column, unstated: Column) -> Floats:
    """Factor on the spread of each run, shape (n,): above 1 where recomputation is not stated."""
    dense_width, moe_width = UNSTATED_WIDTH
    factor: Floats = np.where(unstated, np.where(moe, moe_width, dense_width), 1.0)
    return factor


def trust_grades(
    explained: Column, facts: int, calibrated: Column, measured: Column
) -> NDArray[np.object_]:
    """Trust grade of every row.

    Args:
        explained: share of the prior variance of the residual that like runs explain, shape (n,).
        facts: runs that the residual was fitted to.
        calibrated: whether measured runs of the row's own key are known.
        measured: whether one of them is this very config.
    """
    grade = np.where(explained >= INTERPOLATED_FROM, 2, 1) if facts else np.zeros(len(explained))
    grade = np.where(measured, 4, np.where(calibrated, 3, grade)).astype(np.int64)
    return np.array(TRUST, dtype=object)[grade]


def correlated_draws(covariance: Floats, draws: int, generator: np.random.Generator) -> Floats:
    """Draws of a zero-mean Gaussian, shape (draws, n), from a covariance that may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn: Floats = generator.standard_normal((draws, len(values))) @ root.T
    return drawn


def best_probability(log_speed: Floats, fits: NDArray[np.bool_]) -> Floats:
    """P(best) of every candidate, shape (n,): how often it is the fastest that fits.

    Args:
        log_speed: joint draws of log tokens/s, shape (draws, n).
        fits: whether each candidate fits in each draw, shape (draws, n).

    The probabilities sum to the share of draws in which any candidate fits.
    """
    candidates = np.where(fits, log_speed, -np.inf)
    winner = candidates.argmax(axis=1)
    counted = fits[np.arange(len(winner)), winner]
    wins: Floats = np.bincount(winner[counted], minlength=log_speed.shape[1]) / len(winner)
    return wins


def shrunk_winner(log_speed: Floats, winner: int) -> float:
    """Log tokens/s to expect of the config that looks best among candidates.

    What lifts a candidate above the others is partly merit and partly an error of its own; the best
    of many has more of both. Its excess over the candidates' mean is shrunk by the share of merit
    in the spread (empirical Bayes: Efron, Morris 1973); errors that all share cancel and are not.

    Args:
        log_speed: joint draws of the candidates, shape (draws, n).
        winner: column of the config that is reported.
    """
    mean = log_speed.mean(axis=0)
    own = log_speed - log_speed.mean(axis=1, keepdims=True)
    error = float(np.var(own, axis=0).mean())
    spread = float(np.var(mean))
    merit = spread / (spread + error) if spread + error > 0 else 1.0
    centre = float(mean.mean())
    return centre + merit * (float(mean[winner]) - centre)
