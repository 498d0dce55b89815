"""Config tables as search problems: axes from the columns that vary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.problem import Axis, Codes
from specs.config import AXES, ConfigTable


def varying_axes(table: ConfigTable) -> tuple[tuple[Axis, ...], Codes]:
    """(axes, codes) of a table: every column with more than one value; sizes are ordered."""
    axes, codes = [], []
    for name, column in table.columns().items():
        unique, code = np.unique(column, return_inverse=True)
        if len(unique) > 1:
            axes.append(Axis(name, len(unique), AXES[name].kind is int))
            codes.append(code)
    if not axes:
        return (), np.zeros((len(table), 0), dtype=np.int64)
    return tuple(axes), np.stack(codes, axis=1).astype(np.int64)


def distinct(codes: Codes) -> NDArray[np.int64]:
    """The number of the distinct row that each row equals."""
    return np.asarray(np.unique(codes, axis=0, return_inverse=True)[1]).ravel()
