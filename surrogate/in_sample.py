"""Which runs of a table are among those that the projections were learned from.

Errors on such runs are in-sample: smaller than those on runs that were never seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.runs import RunTable
from surrogate.calibration import Calibration
from surrogate.features import classes, features
from surrogate.fitting import measured_step_s
from surrogate.learned import Learned
from surrogate.residual import Residual
from surrogate.run_cases import cases_of
from surrogate.step_time import step_time

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

SAME_POINT, SAME_ERROR = 1e-4, 1e-4
"""Facts lie in their file with four and five decimals. Of the 1,130 public runs two share their
coordinates with another one and differ by less than this in log(measured / physics)."""


def learned_from(table: RunTable, learned: Learned) -> Mask:
    """Rows that coincide with a fact of the residual: same coordinates, same classes, same error.

    Args:
        table: n runs; those without a measured throughput coincide with nothing.
        learned: what was learned; its calibration aside.

    Returns:
        Shape (n,).
    """
    if not len(table) or not len(learned.residual):
        return np.zeros(len(table), dtype=bool)
    cases = cases_of(table)
    errors = np.log(step_time(cases, learned.constants).step_time_s / measured_step_s(table))
    labels = {name: column.astype(str) for name, column in classes(cases).items()}
    return _coincides(features(cases), labels, errors, learned.residual)


def _coincides(
    points: Floats, labels: Mapping[str, NDArray[Any]], errors: Floats, facts: Residual
) -> Mask:
    """Whether each row is one of the facts; only facts of about its error are compared with it."""
    order = np.argsort(facts.errors, kind="stable")
    known = facts.errors[order]
    first = np.searchsorted(known, errors - SAME_ERROR)
    end = np.searchsorted(known, errors + SAME_ERROR, side="right")
    end = np.where(np.isfinite(errors), end, first)
    found = np.zeros(len(errors), dtype=bool)
    for step in range(int((end - first).max(initial=0))):
        rows = np.flatnonzero(first + step < end)
        fact = order[first[rows] + step]
        same = (np.abs(points[rows] - facts.points[fact]) < SAME_POINT).all(axis=1)
        for name, column in labels.items():
            same &= column[rows] == facts.labels[name][fact].astype(str)
        found[rows] |= same
    return found


def calibrated_with(table: RunTable, learned: Learned) -> tuple[Mask, Mask]:
    """Rows whose throughput, and rows whose peak of memory, the calibration was made from.

    They have the name and the error of a run of the calibration.

    Returns:
        Two columns of shape (n,).
    """
    calibration = learned.calibration
    nobody = np.zeros(len(table), dtype=bool)
    if not len(table) or not (len(calibration) or len(calibration.peaks)):
        return nobody, nobody
    plain = replace(learned, calibration=Calibration.nothing())
    errors = np.log(table.tokens_per_s_per_gpu / plain.predict(table).value)
    peaks = plain.with_peaks(table).peaks()
    run_ids = table.run_id.astype(str)
    of_peaks = dict(zip(peaks.run_ids, peaks.errors, strict=True))
    peak_errors = np.array([of_peaks.get(run, np.nan) for run in run_ids])
    return (
        _same(run_ids, errors, calibration.run_ids, calibration.errors),
        _same(run_ids, peak_errors, calibration.peaks.run_ids, calibration.peaks.errors),
    )


def _same(
    run_ids: NDArray[np.str_], errors: Floats, known: tuple[str, ...], known_errors: Floats
) -> Mask:
    """Which runs have the name and the error of a known one."""
    by_name = dict(zip(known, known_errors, strict=True))
    expected = np.array([by_name.get(str(run), np.nan) for run in run_ids])
    found: Mask = np.abs(errors - expected) < SAME_ERROR
    return found
