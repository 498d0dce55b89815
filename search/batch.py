"""Which config to add to runs that are out together: the one that adds most to the best of them.

What a projection is unsure of is shared by configs that are alike, so the error of a near-duplicate
of a run that is out is the error of that run: drawn together with it, it hardly ever comes out
ahead. The expected improvement of ``search.acquisition`` does not see this, because its process
gives every axis an effect of its own, also one that the physics knows to do next to nothing.

Expected best of a batch: Ginsbourger et al.: Kriging is well-suited to parallelize optimization
(2010); draws given what was measured: Wilson et al.: Pathwise conditioning of Gaussian processes
(2021), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from search.config_pool import ConfigPool
from search.pool_sampler import Judged
from search.shortlist import characters

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

DRAWS = 2000
"""Joint draws: the expected best is right to about 0.2% where a batch is unsure by 10%."""
CANDIDATES = 1024
"""Configs that are drawn: the most promising one of each character, so many at most."""
SMALLEST_GAIN = 1e-4
"""Share of throughput below which draws no longer tell candidates apart (chosen)."""


def next_of_batch(
    pool: ConfigPool,
    judged: Judged,
    measured: Sequence[int],
    out: Sequence[int],
    allowed: Rows,
    seed: int = 0,
) -> tuple[int, float]:
    """(row, expected gain) of the candidate to run beside those that are out.

    The gain is by how much the log of the best throughput of all of them is expected to rise, times
    the probability that the candidate fits.

    Args:
        pool: the candidates; without loadings they are taken by their score alone.
        judged: what is thought of them.
        measured: rows whose throughput was measured.
        out: rows that are being run.
        allowed: rows to choose from, at least one.
        seed: of the draws.
    """
    scores, loadings = judged.scores, None if pool.belief is None else pool.belief.loadings
    by_score = int(allowed[np.argmax(scores.score[allowed])])
    held = [*measured, *out]
    if loadings is None or not held:
        return by_score, float(scores.gain[by_score])
    rows = most_promising(pool, scores.score, allowed)
    generator = np.random.default_rng([seed, 2])
    noise_sd = judged.models.value.hyper.noise_sd
    draws = shared_errors(loadings[list(measured)], noise_sd, generator)
    # Errors of memory are shared by the configs of a study, as in search.winner.
    luck = generator.random((DRAWS, 1))
    believed = scores.mean[held] + draws @ loadings[held].T
    best = np.where(luck < scores.fit_probability[held], believed, -np.inf).max(axis=1)
    best = np.maximum(best, believed.min(axis=1))  # should none fit, the least is still to beat
    ahead = scores.mean[rows] + draws @ loadings[rows].T - best[:, None]
    gain = np.maximum(ahead, 0.0).mean(axis=0)
    if gain.max() < SMALLEST_GAIN:
        return by_score, float(scores.gain[by_score])
    place = int(np.argmax(np.log(np.maximum(gain, 1e-300)) + scores.log_weight[rows]))
    row = int(rows[place])
    return row, float(gain[place] * scores.fit_probability[row])


def most_promising(pool: ConfigPool, score: Floats, allowed: Rows) -> Rows:
    """The best row of each character, best first, at most ``CANDIDATES``."""
    order = allowed[np.argsort(-score[allowed], kind="stable")]
    _, first = np.unique(characters(pool.table.take(order)), axis=0, return_index=True)
    return np.asarray(order[np.sort(first)][:CANDIDATES], dtype=np.int64)


def shared_errors(known: Floats, noise_sd: float, generator: np.random.Generator) -> Floats:
    """Draws of the coefficients of the loadings given measured runs, shape (DRAWS, k).

    They have mean 0: what was measured moves the mean elsewhere and here takes away uncertainty.

    Args:
        known: loadings of the measured runs, shape (n, k).
        noise_sd: of log throughput between repeats of a run.
        generator: of the draws.
    """
    drawn = generator.standard_normal((DRAWS, known.shape[1]))
    if not len(known):
        return drawn
    covariance = known @ known.T + noise_sd**2 * np.eye(len(known))
    seen = drawn @ known.T + noise_sd * generator.standard_normal((DRAWS, len(known)))
    taught: Floats = drawn - np.linalg.solve(covariance, seen.T).T @ known
    return taught
