"""Scatter of measurements that may contradict each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STUDENT_DEGREES = 4.0
"""How soon a measurement that contradicts the others loses weight."""
ROUNDS = 4
"""Of reweighting; the weights then change by less than 1%."""


def student_noise(prior: Floats, errors: Floats, scatter: Floats) -> Floats:
    """Variance of the scatter of each of r measurements, shape (r,): that of a usual one, more
    where it contradicts the others.

    Student-t scatter as a mixture of Gaussians, reweighted (Rasmussen, Williams 2006, section 3.7).

    Args:
        prior: covariance of what lies behind the errors, shape (r, r).
        errors: shape (r,).
        scatter: usual sd of each, shape (r,).
    """
    base = np.square(scatter)
    noise = base.copy()
    for _ in range(ROUNDS):
        unexplained = noise * np.linalg.solve(prior + np.diag(noise), errors)
        surprise = np.square(unexplained) / base
        noise = base * np.maximum(STUDENT_DEGREES + surprise, STUDENT_DEGREES + 1.0)
        noise /= STUDENT_DEGREES + 1.0
    return noise
