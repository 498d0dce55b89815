"""What facts say of points, given how each point covaries with each fact, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

UNTHREADED = 1 << 18
"""Multiplications of a matrix product up to which OpenBLAS starts no threads: on so little they
would wait for each other longer than they work."""


def blocks(count: int, at_once: int) -> list[slice]:
    """Consecutive slices of ``count`` rows."""
    return [slice(start, min(start + at_once, count)) for start in range(0, count, at_once)]


def ratio_within_domain(leaves: float, theirs: Floats) -> Floats:
    """Likeness to each fact within a scale-up domain over that outside of it, shape (r,).

    One coordinate of a product of exponentials, ``leaves``, is exchanged for 0.
    """
    ratio: Floats = np.exp(0.5 * (np.square(leaves - theirs) - np.square(theirs)))
    return ratio


def explained(
    parts: Sequence[slice],
    shared: Callable[[slice], Floats],
    weights: Floats,
    whitened: Callable[[Floats], Floats] | None,
) -> tuple[Floats, Floats, Floats]:
    """Sums, shape (n, 2), largest covariance and explained variance of n points, shape (n,).

    Args:
        parts: ``blocks`` of the n points.
        shared: covariance of the points of a part with r facts, shape (some, r).
        weights: of the sums, shape (r, 2).
        whitened: makes covariance with the facts that with uncorrelated ones, shape (r, some); None
            where the variance is not asked for (NaN then).
    """
    count = parts[-1].stop if parts else 0
    sums, closest, known = np.empty((count, 2)), np.empty(count), np.full(count, np.nan)
    for some in parts:
        block = shared(some)
        sums[some] = block @ weights
        closest[some] = block.max(axis=1)
        if whitened:
            known[some] = np.square(whitened(block)).sum(axis=0)
    return sums, closest, known


def credited(mean: Floats, inside: Floats, closest: Floats, own_sd: Floats) -> Floats:
    """Mean of rows, where leaving the scale-up domain is credited as far as runs like them say.

    Clusters whose runs came out faster than single nodes, against the physics, were other clusters:
    carried over whole, a GPU would gain by sharing its work with other nodes. Of what a row would
    gain over the same row within a domain, the part stays that its likest fact vouches for.

    Args:
        mean: of all facts, shape (n,).
        inside: the same for the row within a domain.
        closest: largest covariance with a fact.
        own_sd: prior sd of the row.
    """
    likeness = np.minimum(closest / np.square(own_sd), 1.0)
    gain = np.maximum(mean - inside, 0.0)
    credited: Floats = mean - gain * (1.0 - np.square(likeness))
    return credited


def left_sd(known: Floats, own_sd: Floats) -> Floats:
    """What is left of a prior sd once ``known`` of its variance is explained."""
    left: Floats = np.sqrt(np.maximum(np.square(own_sd) - known, 1e-12))
    return left
