"""How probable it is that a config is the best of some candidates, and what it is worth then.

Throughput is drawn jointly (``Learned.joint_draws``), so what the candidates have in common cancels
and only what tells them apart counts. Memory errors are shared by the configs of a study, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from surrogate.cases import Cases
from surrogate.learned import Learned, shipped
from surrogate.memory import memory_log_sd
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
    held = peaks.memory(cases).device_gib
    sd = memory_log_sd(cases)
    error = np.random.default_rng(seed + 1).standard_normal((DRAWS, 1))
    failed = peaks.failed_here(cases)
    if failed is not None:  # of the errors only those with which what ran out does run out
        floor = np.log(cases.cluster.hbm_gib / peaks.memory(failed).device_gib) / sd
        below = min(float(ndtr(np.max(floor))), 1.0 - 1e-12)
        error = ndtri(below + ndtr(error) * (1.0 - below))
    fits = held * np.exp(sd * error) <= cases.cluster.hbm_gib
    return Contest(best_probability(log_speed, fits), log_speed, fits)
