"""Learns a calibration from measured runs and says what changed and why: ``foretune calibrate``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from specs.runs import RunTable
from surrogate.calibration import LARGEST_LOG_ERROR, Calibration, read_calibration
from surrogate.learned import Learned, shipped

Floats = NDArray[np.float64]

DISAGREES_FROM = 2.0
"""A run disagrees with the others if its error is this many sd from what they say."""
NOTEWORTHY = 0.005
"""Effects on throughput below this are not told."""


def calibrated_by(path: Path | None) -> Learned:
    """What ships, with the calibration of a file where one is given.

    Raises:
        InputError: the file is no calibration of this version.
    """
    if path is None:
        return shipped()
    return replace(shipped(), calibration=read_calibration(path))


def calibrate(table: RunTable, source: Path, fit_date: str) -> tuple[Calibration, dict[str, Any]]:
    """A calibration from the runs of a table and its report.

    Args:
        table: measured runs.
        source: the file that they come from, for the provenance.
        fit_date: ISO date to write into the file.

    Raises:
        InputError: no run has a throughput to learn from, or one that is possible.
    """
    used = table.take(np.flatnonzero(np.isin(table.throughput_from, ("tokens", "step"))))
    if not len(used):
        raise InputError(
            f"{source} has no run to calibrate with: tokens_per_s_per_gpu or step_time_s, and the "
            "config, must be stated."
        )
    calibration = shipped().calibrated(used).calibration
    impossible = np.abs(calibration.errors) > LARGEST_LOG_ERROR
    skipped = [refusal._asdict() for refusal in table.refused]
    skipped += [_impossible(used, calibration, int(row)) for row in np.flatnonzero(impossible)]
    if impossible.all():
        raise InputError(f"{source} has no run to calibrate with: {skipped[-1]['reason']}.")
    if impossible.any():
        used = used.take(np.flatnonzero(~impossible))
        calibration = shipped().calibrated(used).calibration
    report = report_of(calibration, used)
    about = {
        "fitted_on": str(source),
        "fit_date": fit_date,
        "data_hash": hashlib.sha256(source.read_bytes()).hexdigest(),
        "before": report["before"],
        "after": report["after"],
    }
    return replace(calibration, about=about), {**report, "skipped": skipped}


def _impossible(used: RunTable, calibration: Calibration, row: int) -> dict[str, Any]:
    """The refusal of a run whose throughput cannot be that of its config."""
    measured = float(used.tokens_per_s_per_gpu[row])
    projected = measured / float(np.exp(calibration.errors[row]))
    reason = (
        f"{measured:.3g} tokens/s/GPU were measured where {projected:.3g} are projected; "
        "check the unit and the config"
    )
    return {"row": int(used.row[row]), "run_id": str(used.run_id[row]), "reason": reason}


def report_of(calibration: Calibration, used: RunTable) -> dict[str, Any]:
    """Before, after (each run judged by the others), what moved and which runs disagree."""
    left, sd = calibration.leave_one_out()
    score = left / sd
    keys = np.array(
        [
            " | ".join(calibration.labels[name][row] for name in ("gpu", "framework", "model"))
            for row in range(len(calibration))
        ],
        dtype=object,
    )
    order = np.argsort(-np.abs(score))
    return {
        "runs": len(calibration),
        "before": _errors(calibration.errors),
        "after": _errors(left),
        "keys": [
            {
                "key": key,
                "runs": int((keys == key).sum()),
                "before": _errors(calibration.errors[keys == key]),
                "after": _errors(left[keys == key]) if (keys == key).sum() > 1 else None,
            }
            for key in dict.fromkeys(keys.tolist())
        ],
        "moved": [
            moved._asdict()
            for moved in calibration.moved_constants()
            if moved.largest_effect >= NOTEWORTHY
        ],
        "disagree": [
            {
                "run_id": calibration.run_ids[row],
                "measured_over_expected": float(np.exp(left[row])),
                "sd": float(score[row]),
            }
            for row in order
            if abs(score[row]) >= DISAGREES_FROM
        ],
        "vendors": sorted(set(used.vendor.tolist())),
    }


def _errors(log_errors: Floats) -> Mapping[str, float | int]:
    """Errors of projections from log(measured / projected)."""
    ratio = np.exp(-log_errors) - 1.0
    return {
        "n": len(ratio),
        "mape": float(np.abs(ratio).mean()),
        "median_ape": float(np.median(np.abs(ratio))),
        "bias": float(ratio.mean()),
    }
