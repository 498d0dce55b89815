"""How probable it is that a config is the best of some candidates, over joint draws.

The constants of the physics are drawn once for all candidates, so what they have in common cancels
and only what tells them apart counts. What the physics misses about a single config, and memory,
are drawn on top.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.cases import Cases
from surrogate.memory import memory, memory_log_sd
from surrogate.step_time import step_time
from surrogate.time_constants import RateDesign, TimeConstants, prior_of

Column = NDArray[Any]

DRAWS = 256
DENSE_RESIDUAL_SD, MOE_RESIDUAL_SD = 0.017, 0.051
"""Spread of log throughput that no model explains: identical layouts of different submitters or
releases differ by 1.7% (dense) and 5.1% (MoE) in the median of public runs (measured)."""


def win_probability(cases: Cases, draws: int = DRAWS, seed: int = 0) -> Column:
    """P(best) of every row, shape (n,): the fastest that fits, counted over seeded joint draws.

    The probabilities sum to the share of draws in which any candidate fits.
    """
    generator = np.random.default_rng(seed)
    constants = TimeConstants.shipped()
    design = RateDesign(cases, only=constants.log_values)  # type: ignore[arg-type]
    centre = np.array([constants.log_values[name] for name in design.names])
    spread = np.array([prior_of(name)[1] for name in design.names])
    residual = np.where(cases.model.num_experts > 0, MOE_RESIDUAL_SD, DENSE_RESIDUAL_SD)
    device_gib, memory_sd = memory(cases).device_gib, memory_log_sd(cases)
    wins = np.zeros(len(cases))
    for _ in range(draws):
        rates = design.rates(centre + spread * generator.standard_normal(len(centre)))
        log_speed = -np.log(step_time(cases, rates=rates).step_time_s)
        log_speed += residual * generator.standard_normal(len(cases))
        held = device_gib * np.exp(memory_sd * generator.standard_normal())
        log_speed[held > cases.cluster.hbm_gib] = -np.inf
        winner = int(np.argmax(log_speed))
        wins[winner] += np.isfinite(log_speed[winner])
    return wins / draws
