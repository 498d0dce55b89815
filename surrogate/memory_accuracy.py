"""How right the memory model is on runs that no constant was fitted to.

Whole Folds, then whole publishers, are left out and the constants fitted again without them. The
same readings give the spread that ships with the constants, so that there is one evaluation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from surrogate.constants import ConstantFile
from surrogate.memory import fit_probability, memory_log_sd
from surrogate.memory_constants import MemoryConstants
from surrogate.memory_fitting import MemoryRuns, judged, left_out_readings
from surrogate.validation import Projected, error_metrics, unsafe_share

Column = NDArray[Any]

PROBABILITY_BINS = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Edges between which P(fits) is compared with the share of runs that did fit."""


def memory_left_out(
    runs: MemoryRuns, publishers: Column, learned: ConstantFile
) -> dict[str, dict[str, Any]]:
    """Errors with Folds (``fold``) and publishers (``source``) left out.

    Args:
        runs: n rows.
        publishers: publisher of each row, (n,).
        learned: constants from whose values the fits start.

    Returns:
        Per line the error metrics with ``unsafe``, of all rows, ``amd``, ``nvidia`` and each stack
        (``stacks``); ``out_of_memory`` {n, called_fitting}; ``ran`` {n, called_too_large} and
        ``reliability``, see ``reliability_table``.
    """
    lines = {"fold": runs.fold.astype(str), "source": publishers}
    return {
        name: _metrics(runs, left_out_readings(runs, labels, learned), learned)
        for name, labels in lines.items()
    }


def _metrics(runs: MemoryRuns, reading: Column, learned: ConstantFile) -> dict[str, Any]:
    """Metrics of readings that were projected without the group of their row."""
    stated = judged(runs)
    is_amd = np.broadcast_to(runs.cases.cluster.is_amd, stated.shape)

    def of(rows: Column) -> dict[str, Any]:
        measured, value = runs.measured_gib[rows], reading[rows]
        found: dict[str, Any] = error_metrics(measured, Projected(value, value, value))
        del found["coverage90"], found["half_width90"]
        found["unsafe"] = unsafe_share(measured, value)
        return found

    # Rows without a peak are compared with the capacity, by what the driver would report.
    capacity = runs.cases.cluster.hbm_gib
    failed, ran = runs.bound > 0, runs.bound < 0
    constants = MemoryConstants.from_values(learned.values())
    sd = np.broadcast_to(memory_log_sd(runs.cases, constants), stated.shape)
    bounds = failed | ran
    return {
        **of(stated),
        "amd": of(stated & is_amd),
        "nvidia": of(stated & ~is_amd),
        "stacks": {
            str(name): of(stated & (runs.stack_names == name))
            for name in sorted(set(runs.stack_names[stated].tolist()))
        },
        "out_of_memory": {
            "n": int(failed.sum()),
            "called_fitting": int((reading <= capacity)[failed].sum()),
        },
        "ran": {
            "n": int(ran.sum()),
            "called_too_large": int((reading > capacity)[ran].sum()),
        },
        "reliability": reliability_table(
            fit_probability(reading, capacity, sd)[bounds], ran[bounds]
        ),
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
