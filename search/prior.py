"""What an expert thinks of the candidates, and how far that is to be believed.

An expert (a language model, a colleague, a rule) gives every candidate a score. The score enters
the acquisition as a weight that decays as evidence grows (piBO: Hvarfner et al., 2022), times the
rank agreement of the expert's earlier scores with what was measured since: an expert who is wrong
loses the word, and one who was never right never gets it for long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from search.pool import Pool

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Opinion:
    """Scores of all candidates now, shape (n,), and what the expert said of rows before they were
    evaluated: an expert who has seen results since is judged by what was foretold alone."""

    scores: Floats
    foretold: Mapping[int, float]


Expert = Callable[["Pool"], "Floats | Opinion | None"]
"""Scores of all candidates, shape (n,): only their order counts; None: no opinion."""

STRENGTH = 5.0
"""Log weight of a candidate one sd above the expert's average, before it decays (tuned on synthetic
tasks with experts of known quality)."""
DECAY = 10.0
"""Evaluations after which the expert's weight has halved."""
DOUBT = 4.0
"""Evaluations of imagined rank agreement ``FIRST_AGREEMENT`` that the real ones are added to."""
FIRST_AGREEMENT = 0.25
CAUTION = 0.5
"""Standard errors of the measured agreement that an expert must do better than."""


def log_weights(
    opinion: Floats | Opinion | None, row: Rows, value: Floats, evaluated: int
) -> Floats | None:
    """Log weight of each candidate, shape (n,); None where the expert has lost the word.

    Args:
        opinion: the expert's scores, shape (n,); not finite means no opinion.
        row: candidates that were evaluated, shape (k,); -1 for one beside the pool.
        value: what was measured, higher is better, shape (k,).
        evaluated: evaluations so far.
    """
    if opinion is None:
        return None
    if isinstance(opinion, Opinion):
        standing = standings(opinion.scores)
        said = np.array([opinion.foretold.get(int(r), np.nan) for r in row], dtype=np.float64)
    else:
        standing = standings(opinion)
        said = np.where(row >= 0, standing[row], np.nan)
    known = np.isfinite(said)
    agreement = trust(said[known], value[known])
    if agreement <= 0.0:
        return None
    weights: Floats = STRENGTH * agreement / (1.0 + evaluated / DECAY) * standing
    return weights


def trust(opinion: Floats, value: Floats) -> float:
    """How far an opinion is to be believed, 0 to 1: rank agreement with what was measured since.

    Starts at ``FIRST_AGREEMENT`` and is moved by every evaluation; an opinion that says nothing, or
    the opposite, gets 0.
    """
    count = len(value)
    agreement = 0.0
    if count >= 3 and np.ptp(opinion) > 0 and np.ptp(value) > 0:
        from scipy.stats import spearmanr

        agreement = float(spearmanr(opinion, value).statistic)
    elif count < 3:
        return FIRST_AGREEMENT
    mixed = (DOUBT * FIRST_AGREEMENT + count * agreement) / (DOUBT + count)
    mixed -= CAUTION * count / (DOUBT + count) / np.sqrt(max(count - 1, 1))
    return float(np.clip(mixed, 0.0, 1.0))


def standings(opinion: Floats) -> Floats:
    """Scores as normal quantiles of their ranks; candidates without an opinion stand at 0."""
    from scipy.stats import norm, rankdata

    known = np.isfinite(opinion)
    standing = np.zeros(len(opinion))
    if known.any():
        standing[known] = norm.ppf((rankdata(opinion[known]) - 0.5) / known.sum())
    return standing
