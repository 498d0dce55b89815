"""Nominal levels of repeated looks at growing evidence: alpha is spent late, none is wasted.

Group-sequential bounds by alpha spending (Lan and DeMets 1983, Biometrika 70:659): the spending
function says how much of alpha may be used up to each look; the bound of a look is what uses that
much, given that no earlier look crossed. Sums of independent blocks are followed on a grid.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import stats

POWER = 2.0
"""Alpha is spent with this power of the share of looks: few blocks know their own noise badly."""
_GRID_POINTS = 2401
_GRID_SDS = 6.0


@lru_cache(maxsize=64)
def look_levels(first: int, last: int, alpha: float) -> tuple[float, ...]:
    """One-sided levels of the looks after ``first``, ``first + 1`` ... ``last`` equal blocks.

    Under no effect the chance that any look crosses the bound of its level is ``alpha`` in all.
    """
    looks = last - first + 1
    spent = alpha * (np.arange(looks + 1) / looks) ** POWER
    limit = _GRID_SDS * math.sqrt(last)
    sums, width = np.linspace(-limit, limit, _GRID_POINTS, retstep=True)
    one_block = stats.norm.pdf(sums) * width
    density = stats.norm.pdf(sums, scale=math.sqrt(first))
    levels = []
    for look, allowed in enumerate(np.diff(spent)):
        if look:
            density = np.convolve(density, one_block, "same")
        beyond = np.cumsum(density[::-1])[::-1] * width
        bound = float(np.interp(-allowed, -beyond, sums))
        levels.append(float(stats.norm.sf(bound / math.sqrt(first + look))))
        density = np.where(sums < bound, density, 0.0)
    return tuple(levels)
