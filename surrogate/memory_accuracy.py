"""How right the memory model is on runs that no constant was fitted to.

Whole Folds, then whole publishers, are left out and the constants fitted again without them. The
same readings give the spread that ships with the constants, so that there is one evaluation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.constants import ConstantFile
from surrogate.memory import fit_probability, interval_half_width, memory_doubt
from surrogate.memory_fitting import MemoryRuns, judged, left_out_readings, left_out_spreads
from surrogate.validation import Projected, error_metrics, unsafe_share

Column = NDArray[Any]

PROBABILITY_BINS = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Edges between which P(fits) is compared with the share of runs that did fit."""
SURE = 0.9
"""P(fits) from which a config counts as one that will fit."""


def memory_left_out(
    runs: MemoryRuns, publishers: Column, learned: ConstantFile
) -> dict[str, dict[str, Any]]:
    """Errors with Folds (``fold``) and publishers (``source``) left out.

    Args:
        runs: n rows.
        publishers: publisher of each row, (n,).
        learned: constants from whose values the fits start.

    Returns:
        Per line the error metrics with ``unsafe``, of all rows, of those that say all that decides
        their memory (``stated``) and the others (``unstated``), ``amd``, ``nvidia`` and each stack
        (``stacks``); ``out_of_memory`` {n, called_fitting, surely: P(fits) of 90% or more};
        ``ran`` {n, called_too_large} and ``reliability``, see ``reliability_table``. Intervals and
        P(fits) are those of spreads that other groups taught, wider where a row is ``unstated``.
    """
    lines = {"fold": runs.fold.astype(str), "source": publishers}
    found = {}
    for name, labels in lines.items():
        reading = left_out_readings(runs, labels, learned)
        spread = left_out_spreads(runs, labels, reading, learned)
        found[name] = _metrics(runs, reading, spread * memory_doubt(~runs.stated))
    return found


def _metrics(runs: MemoryRuns, reading: Column, sd: Column) -> dict[str, Any]:
    """Metrics of readings and their spread that were learned without the group of their row."""
    has_peak = judged(runs)
    is_amd = np.broadcast_to(runs.cases.cluster.is_amd, has_peak.shape)
    half = interval_half_width(sd)

    def of(rows: Column) -> dict[str, Any]:
        measured, value = runs.measured_gib[rows], reading[rows]
        lo, hi = value * np.exp(-half[rows]), value * np.exp(half[rows])
        found: dict[str, Any] = error_metrics(measured, Projected(value, lo, hi))
        found["unsafe"] = unsafe_share(measured, value)
        return found

    # Rows without a peak are compared with the capacity, by what the driver would report.
    capacity = runs.cases.cluster.hbm_gib
    failed, ran = runs.bound > 0, runs.bound < 0
    probability = fit_probability(reading, capacity, sd)
    bounds = failed | ran
    return {
        **of(has_peak),
        "stated": of(has_peak & runs.stated),
        "unstated": of(has_peak & ~runs.stated),
        "amd": of(has_peak & is_amd),
        "nvidia": of(has_peak & ~is_amd),
        "stacks": {
            str(name): of(has_peak & (runs.stack_names == name))
            for name in sorted(set(runs.stack_names[has_peak].tolist()))
        },
        "out_of_memory": {
            "n": int(failed.sum()),
            "called_fitting": int((reading <= capacity)[failed].sum()),
            "surely": int((probability >= SURE)[failed].sum()),
        },
        "ran": {
            "n": int(ran.sum()),
            "called_too_large": int((reading > capacity)[ran].sum()),
        },
        "reliability": reliability_table(probability[bounds], ran[bounds]),
    }


def reliability_table(probability: Column, fits: Column) -> list[dict[str, Any]]:
    """Projected P(fits) against what happened, by bins of the probability.

    Args:
        probability: projected, (n,).
        fits: whether the run did fit, (n,).

    Returns:
        Per bin that holds rows: ``above``, ``n``, mean ``projected`` and the share that ``fits``.
    """
    place = np.digitize(probability, PROBABILITY_BINS[1:-1])
    return [
        {
            "above": above,
            "n": int((place == index).sum()),
            "projected": float(probability[place == index].mean()),
            "fits": float(fits[place == index].mean()),
        }
        for index, above in enumerate(PROBABILITY_BINS[:-1])
        if (place == index).any()
    ]
