"""What an expert thinks of the candidates, and how far that is to be believed.

An expert (a language model, a colleague, a rule) gives every candidate a score. The score enters
the acquisition as a weight that decays as evidence grows (piBO: Hvarfner et al., 2022), times the
rank agreement of the expert's earlier scores with what was measured since: an expert who is wrong
loses the word, and one who was never right never gets it for long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from search.pool import Pool

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

Expert = Callable[["Pool"], Floats]
"""Scores of all candidates, shape (n,): only their order counts."""

STRENGTH = 8.0
"""Log weight between the expert's best and middle candidate, divided by the evaluations so far."""
DOUBT = 4.0
"""Evaluations of imagined rank agreement ``FIRST_AGREEMENT`` that the real ones are added to."""
FIRST_AGREEMENT = 0.25


def log_weights(opinion: Floats, row: Rows, value: Floats, evaluated: int) -> Floats | None:
    """Log weight of each candidate, shape (n,); None where the expert has lost the word.

    Args:
        opinion: the expert's scores, shape (n,); not finite means no opinion.
        row: candidates that were evaluated, shape (k,); -1 for one beside the pool.
        value: what was measured, higher is better, shape (k,).
        evaluated: evaluations so far.
    """
    standing = ranks(opinion)
    inside = row >= 0
    agreement = trust(standing[row[inside]], value[inside])
    if agreement <= 0.0:
        return None
    weights: Floats = STRENGTH * agreement / (evaluated + 1) ** 0.5 * (standing - 0.5)
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
    return float(np.clip(mixed, 0.0, 1.0))


def ranks(opinion: Floats) -> Floats:
    """Scores as ranks between 0 and 1; candidates without an opinion stand in the middle."""
    from scipy.stats import rankdata

    known = np.isfinite(opinion)
    standing = np.full(len(opinion), 0.5)
    if known.sum() > 1:
        standing[known] = (rankdata(opinion[known]) - 1) / (known.sum() - 1)
    return standing
