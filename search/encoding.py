"""Axes as coordinates in which a Gaussian process compares configs.

Every value of an axis becomes a vector so that the product of two vectors is how alike the values
are: 1 for the same, 0 for unordered choices, ``exp(-steps / STEPS)`` for sizes some doublings (or
other steps) apart. A weighted sum of such products over axes is a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEPS = 2.0
"""Steps (doublings) after which two sizes are still exp(-1) alike (assumed)."""
FINEST = 48
"""Most places that an ordered axis keeps apart; closer ones count as one."""


@dataclass(frozen=True)
class AxisValues:
    """One axis: where its values lie in steps, or None for choices without order.

    ``places`` (m,) are the places of the m values of an ordered axis; ``size`` is m.
    """

    name: str
    size: int
    places: Floats | None

    def vectors(self) -> Floats:
        """A vector for each value, shape (m, r): their products are how alike the values are."""
        if self.places is None:
            return np.eye(self.size)
        places, place_of = np.unique(self.places, return_inverse=True)
        if len(places) > FINEST:
            first, width = float(places[0]), float(np.ptp(places)) / (FINEST - 1)
            place_of = np.rint((self.places - first) / width).astype(np.int64)
            places = np.asarray(first + width * np.arange(FINEST))
        alike = np.exp(-np.abs(places[:, None] - places[None, :]) / STEPS)
        factor = np.linalg.cholesky(alike + 1e-9 * np.eye(len(places)))
        return np.asarray(factor[place_of], dtype=np.float64)


@dataclass(frozen=True)
class Coordinates:
    """n points as vectors side by side; ``axis`` (d,) says which axis each column belongs to."""

    columns: Floats
    axis: NDArray[np.int64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def axes(self) -> int:
        """Number of axes."""
        return len(self.names)

    def take(self, rows: Any) -> Coordinates:
        """The selected points."""
        return Coordinates(self.columns[rows], self.axis, self.names)

    def alike(self, other: Coordinates, weight: Floats) -> Floats:
        """Weighted sum over axes of how alike points are, shape (n, m)."""
        product: Floats = (self.columns * weight[self.axis]) @ other.columns.T
        return product

    def by_axis(self) -> Floats:
        """How alike all pairs of points are on each axis, shape (axes, n, n)."""
        parts = [self.columns[:, self.axis == a] for a in range(self.axes)]
        return np.stack([part @ part.T for part in parts])


def coordinates(axes: Sequence[AxisValues], codes: NDArray[Any]) -> Coordinates:
    """Points whose value on axis ``a`` is number ``codes[:, a]``.

    Args:
        axes: of the space; those with a single value are left out.
        codes: shape (n, axes).
    """
    used = [index for index, axis in enumerate(axes) if axis.size > 1]
    parts = [axes[index].vectors()[codes[:, index]] for index in used]
    widths = [part.shape[1] for part in parts]
    columns = np.concatenate(parts, axis=1) if parts else np.zeros((len(codes), 0))
    return Coordinates(
        columns=columns,
        axis=np.repeat(np.arange(len(used)), widths),
        names=tuple(axes[index].name for index in used),
    )
