"""Fits one kernel law to profile rows: robust least squares on log time with a prior."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from surrogate.kernels.laws import Law
from surrogate.kernels.profiles import Columns
from surrogate.kernels.sheets import KernelSheet
from surrogate.kernels.transfer import Fitted, carried

MAX_ROWS = 1200
"""Rows per GPU and key that a fit uses, evenly spaced in the sorted table."""

ROW_NOISE = 0.05
INDEPENDENT_ROWS = 25
"""A law's misfit is about 5% a row and shared by rows: more rows than 25 add no evidence, so that
what the profile hardly identifies stays near what other GPUs show."""


def subsample(columns: Columns, limit: int) -> Columns:
    """At most ``limit`` rows, evenly spaced."""
    size = len(columns["time_s"])
    if size <= limit:
        return columns
    at = np.linspace(0, size - 1, limit).astype(np.intp)
    return {name: values[at] for name, values in columns.items()}


def select(columns: Columns, mask: npt.NDArray[np.bool_]) -> Columns:
    """The rows where the mask holds."""
    return {name: values[mask] for name, values in columns.items()}


def _partly_robust(penalties: int) -> Any:
    """Loss of scipy's ``least_squares``: soft L1 on rows, plain squares on the prior's terms."""

    def loss(z: Any) -> Any:
        root = np.sqrt(1.0 + z)
        rho = np.stack([2.0 * (root - 1.0), 1.0 / root, -0.5 / root**3])
        rho[:, -penalties:] = np.stack([z[-penalties:], np.ones(penalties), np.zeros(penalties)])
        return rho

    return loss


def fit_law(
    law: Law, key: str, rows: Columns, sheet: KernelSheet, prior: dict[str, float]
) -> dict[str, float]:
    """Fitted values of one GPU and key; what the rows do not identify stays at ``prior``."""
    from scipy.optimize import least_squares

    rows = subsample(rows, MAX_ROWS)
    size = len(rows["time_s"])
    scale = np.sqrt(min(size, INDEPENDENT_ROWS) / size)
    names = [p.name for p in law.parameters]
    low, high = (np.log([getattr(p, side) for p in law.parameters]) for side in ("low", "high"))
    centre = np.log([prior[name] for name in names])
    spread = np.array([p.spread for p in law.parameters])
    log_time = np.log(rows["time_s"])

    def residuals(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        constants = law.build(sheet, key, dict(zip(names, np.exp(x).tolist(), strict=True)))
        misfit = (np.log(law.time(rows, constants, key)) - log_time) / ROW_NOISE
        # Dividing by scale inside the loss keeps its bend at one ROW_NOISE whatever the size.
        return np.concatenate([misfit * scale, (x - centre) / spread])

    start = np.clip(centre, low + 1e-6, high - 1e-6)
    result = least_squares(
        residuals,
        start,
        bounds=(low, high),
        loss=_partly_robust(len(names)),
        f_scale=float(scale),
        diff_step=np.full(len(names), 1e-3),
        xtol=1e-6,
        ftol=1e-6,
        max_nfev=60,
    )
    return dict(zip(names, np.exp(result.x).tolist(), strict=True))


def fit_operator(
    law: Law, columns: Columns, sheets: Mapping[str, KernelSheet], onset: float
) -> dict[str, dict[str, dict[str, float]]]:
    """Key -> GPU -> fitted values, each pulled towards what its kin shows.

    The first pass starts from the law's own starting values, the second from the first.
    """
    result: dict[str, dict[str, dict[str, float]]] = {}
    start = {p.name: p.start for p in law.parameters}
    for key in np.unique(columns[law.key_column]).tolist():
        at_key = columns[law.key_column] == key
        groups = {
            name: select(columns, at_key & (columns["gpu"] == name))
            for name in np.unique(columns["gpu"][at_key]).tolist()
            if name in sheets
        }
        fitted: Fitted = {
            name: fit_law(law, key, rows, sheets[name], start) for name, rows in groups.items()
        }
        result[key] = {
            name: fit_law(
                law, key, rows, sheets[name], carried(law, key, fitted, sheets, sheets[name], onset)
            )
            for name, rows in groups.items()
        }
    return result
