"""What runs of a Fold teach of its other runs: the calibrated part of ``foretune bench surrogate``.

Runs are drawn at random, Folds weigh the same, and widths of intervals are measured on the other
batches, so that coverage is honest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.runs import RunTable
from surrogate.uncertainty import GAUSSIAN_90, conformal_width
from surrogate.validation import (
    CalibrationDraws,
    Predictor,
    Projected,
    calibration_draws,
    calibration_metrics,
)

Column = NDArray[Any]

DRAWS = 20
RUNS = (1, 3, 8)
"""Runs of a Fold that are revealed."""


def after_runs(
    table: RunTable,
    predictors: Sequence[tuple[Column, Predictor]],
    zero_shot: Projected,
    folds: Column,
) -> dict[str, Any]:
    """``after_K`` for each K of RUNS: ``calibration_metrics`` of all Folds, and of dense, MoE, AMD
    and NVIDIA ones.

    Args:
        table: rows with measured throughput.
        predictors: (rows, what was learned without them) of each batch.
        zero_shot: projections of the rows without calibration; ``mape_before`` is their error on
            the very rows that are judged.
        folds: Fold of each row, whose runs are revealed.
    """
    drawn = {runs: calibration_draws(table, predictors, runs, DRAWS, folds=folds) for runs in RUNS}
    batch = np.empty(len(table), dtype=np.int64)
    for number, (rows, _) in enumerate(predictors):
        batch[rows] = number
    return {
        f"after_{runs}": _metrics(table, found, zero_shot, folds)
        for runs, found in _with_measured_widths(table, drawn, batch).items()
    }


def family_slices(table: RunTable) -> dict[str, Column]:
    """Which rows are dense, MoE, AMD and NVIDIA ones, shape (n,) each."""
    return {
        "dense": ~table.is_moe,
        "moe": table.is_moe,
        "amd": table.vendor == "amd",
        "nvidia": table.vendor == "nvidia",
    }


def _metrics(
    table: RunTable, drawn: CalibrationDraws, zero_shot: Projected, folds: Column
) -> dict[str, Any]:
    """Metrics of all Folds and of slices; a slice counts its own Folds the same."""
    result = _slice_metrics(table, drawn, zero_shot, folds, np.ones(len(table), dtype=bool))
    result |= {"folds": drawn.folds, "smaller_folds": len(drawn.smaller_folds)}
    for name, members in family_slices(table).items():
        result[name] = _slice_metrics(table, drawn, zero_shot, folds, members)
    return result


def _slice_metrics(
    table: RunTable, drawn: CalibrationDraws, zero_shot: Projected, folds: Column, members: Column
) -> dict[str, Any]:
    here = np.flatnonzero(members[drawn.rows])
    part = replace(
        drawn,
        rows=drawn.rows[here],
        draw=drawn.draw[here],
        weight=drawn.weight[here],
        projected=drawn.projected.take(here),
    )
    measured = table.tokens_per_s_per_gpu
    metrics = calibration_metrics(measured, part)
    before = calibration_metrics(measured, replace(part, projected=zero_shot.take(part.rows)))
    metrics["mape_before"] = before["mape"]
    metrics["folds"] = len(set(folds[part.rows].tolist()))
    del metrics["smaller_folds"]
    return metrics


def _with_measured_widths(
    table: RunTable, drawn: dict[int, CalibrationDraws], batch: Column
) -> dict[int, CalibrationDraws]:
    """The draws with intervals whose width the draws of other batches tell, by family."""
    together = np.concatenate([found.rows for found in drawn.values()])
    value = np.concatenate([found.projected.value for found in drawn.values()])
    upper = np.concatenate([found.projected.hi90 for found in drawn.values()])
    errors = np.log(table.tokens_per_s_per_gpu[together] / value)
    spread = np.log(upper / value) / GAUSSIAN_90
    half = np.empty(len(together))
    for moe in (False, True):
        family = table.is_moe[together] == moe
        for number in np.unique(batch[together[family]]):
            asked = family & (batch[together] == number)
            known = family & ~asked
            if not known.any():
                half[asked] = np.nan
                continue
            width = conformal_width(errors[known], spread[known])
            half[asked] = width * spread[asked]
    intervals = Projected(value, value * np.exp(-half), value * np.exp(half))
    ends = np.cumsum([len(found.rows) for found in drawn.values()])
    return {
        runs: replace(found, projected=intervals.take(slice(end - len(found.rows), end)))
        for (runs, found), end in zip(drawn.items(), ends, strict=True)
    }
