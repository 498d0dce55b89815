"""How alike the log errors of two runs are before either is measured.

The covariance of a Gaussian process: exponential in the squared distance of the coordinates of
``features``, times one factor a class of hardware and software that differs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from surrogate.cases import Column
from surrogate.features import CLASSES
from surrogate.posterior import UNTHREADED, blocks

Floats = NDArray[np.float64]

SIGNAL_SD = 0.10
"""Prior sd of the log error that the physics leaves in a dense run and that others share."""
MOE_SIGNAL_FACTOR = 1.6
"""The same for MoE runs, times this."""


def signal_sd(moe: Column) -> Floats:
    """Prior sd of what the physics leaves, by row."""
    sd: Floats = SIGNAL_SD * np.where(moe, MOE_SIGNAL_FACTOR, 1.0)
    return sd


def covariance(
    points: Floats,
    labels: Mapping[str, Column],
    other_points: Floats,
    other_labels: Mapping[str, Column],
) -> Floats:
    """Prior covariance of log errors between rows and other rows, shape (n, m)."""
    shared: Floats = likeness(points, other_points) * class_covariance(labels, other_labels)
    return shared


def likeness(points: Floats, others: Floats) -> Floats:
    """Likeness by coordinates alone, shape (n, m): 1 for equal ones."""
    alike = np.empty((len(points), len(others)))
    squared, other_squared = (0.5 * np.square(x).sum(axis=1) for x in (points, others))
    for some in blocks(len(points), max(UNTHREADED // max(others.size, 1), 1)):
        exponent = np.matmul(points[some], others.T, out=alike[some])
        exponent -= squared[some, None]
        exponent -= other_squared
        np.exp(exponent, out=exponent)
    return alike


def class_covariance(labels: Mapping[str, Column], other_labels: Mapping[str, Column]) -> Floats:
    """``covariance`` of rows that differ in their classes only, shape (n, m)."""
    exponent = np.zeros((len(labels["moe"]), len(other_labels["moe"])))
    for name, length in CLASSES.items():
        own, own_code = np.unique(labels[name].astype(str), return_inverse=True)
        code_of = {label: code for code, label in enumerate(own.tolist())}
        other_code = np.array([code_of.get(str(x), -1) for x in other_labels[name]], dtype=np.int64)
        exponent -= length**2 * (own_code[:, None] != other_code[None, :])
    sd = signal_sd(labels["moe"] == "moe")
    other_sd = signal_sd(other_labels["moe"] == "moe")
    shared: Floats = np.exp(exponent) * sd[:, None] * other_sd[None, :]
    return shared
