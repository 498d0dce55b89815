"""How probable it is that a config is the best of some candidates, and what it is worth then.

Throughput is drawn jointly (``Learned.joint_draws``), so what the candidates have in common cancels
and only what tells them apart counts. Memory errors are shared by the configs of a study, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.cases import Cases
from surrogate.learned import Learned, shipped
from surrogate.memory import fit_probability, memory_log_sd
from surrogate.memory_calibration import MemoryFacts
from surrogate.uncertainty import best_probability, shrunk_winner

Column = NDArray[Any]

DRAWS = 2000


@dataclass(frozen=True)
class Contest:
    """Candidates drawn against each other.

    ``probability_best`` has shape (n,) and sums to the share of draws in which any candidate fits;
    ``log_speed`` are joint draws of log tokens/s/GPU, ``fits`` whether the candidate fits in each,
    both of shape (draws, n).
    """

    probability_best: Column
    log_speed: Column
    fits: Column

    def shrunk(self, winner: int) -> float:
        """Tokens/s/GPU to expect of the candidate that is reported as the best of them.

        The best of many noisy estimates is too good to be true (``shrunk_winner``).
        """
        return float(np.exp(shrunk_winner(self.log_speed, winner)))


def contest(cases: Cases, seed: int = 0, learned: Learned | None = None) -> Contest:
    """Draws the rows of ``cases``, some candidates of one study, against each other.

    ``learned`` is what is believed of them; None: what the package learned from public runs.
    """
    learned = learned or shipped()
    log_speed = learned.joint_draws(cases, DRAWS, seed)
    peaks = learned.peaks()
    chance = _fit_chance(peaks, cases)
    # One error of memory for all candidates of a draw, spread evenly so that each fits as often as
    # it is said to.
    error = (np.random.default_rng(seed + 1).permutation(DRAWS) + 0.5)[:, None] / DRAWS
    failed = peaks.failed_here(cases)
    if failed is not None:  # of the errors only those with which what ran out does run out
        below = min(float(_fit_chance(peaks, failed).max()), 1.0 - 1e-12)
        error = below + error * (1.0 - below)
    fits = error <= chance
    return Contest(best_probability(log_speed, fits), log_speed, fits)


def _fit_chance(peaks: MemoryFacts, cases: Cases) -> Column:
    """Probability that each row fits, shape (n,)."""
    held = peaks.memory(cases).device_gib
    return fit_probability(held, cases.cluster.hbm_gib, memory_log_sd(cases))
