"""Runs whose results cannot be those of their config: neither learned from nor judged.

A wrong unit, the tokens of all GPUs or the peak of another rank are errors of the table, not of the
projections.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specs.runs import RunTable
from surrogate.calibration import LARGEST_LOG_ERROR
from surrogate.memory_calibration import LARGEST_LOG_ERROR as LARGEST_LOG_ERROR_OF_PEAKS
from surrogate.memory_calibration import MemoryFacts
from surrogate.run_cases import cases_of
from surrogate.speed_of_light import fastest_tokens_per_s_per_gpu

Floats = NDArray[np.float64]


def rows_with_speed(table: RunTable) -> NDArray[np.int64]:
    """Rows whose throughput can be compared with a projection: it is stated, and the batch falls on
    the data-parallel ranks, without which no speed is projected."""
    whole = np.array(["dp" not in facts.split(", ") for facts in table.unstated], dtype=bool)
    return np.flatnonzero((table.throughput_from != "") & whole)


def impossible_speeds(runs: RunTable, projected: Floats) -> dict[int, str]:
    """Rows whose throughput cannot be that of their config, each with why.

    Args:
        runs: n runs with a throughput.
        projected: tokens/s/GPU of each without calibration, shape (n,).
    """
    if not len(runs):
        return {}
    measured, fastest = runs.tokens_per_s_per_gpu, fastest_tokens_per_s_per_gpu(cases_of(runs))
    far = np.abs(np.log(measured / projected)) > LARGEST_LOG_ERROR
    found = {}
    for row in np.flatnonzero((measured > fastest) | far):
        if measured[row] > fastest[row]:
            why = f"more than a {runs.gpu[row]} can multiply: its peak allows {fastest[row]:,.0f}"
        else:
            why = f"beyond reason where {projected[row]:,.0f} are projected"
        found[int(row)] = (
            f"{measured[row]:,.7g} tokens/s/GPU is {why}; check the unit and the config"
        )
    return found


def impossible_peaks(runs: RunTable) -> dict[int, str]:
    """Rows whose peak of memory is not that of their config, each with why."""
    held = np.flatnonzero(np.isfinite(runs.peak_memory_gib) & ~runs.out_of_memory)
    if not len(held):
        return {}
    peaks = runs.take(held)
    projected = MemoryFacts.nothing().reading(cases_of(peaks), peaks.memory_counter)
    errors = np.log(peaks.peak_memory_gib / projected)
    return {
        int(held[row]): (
            f"a peak of {peaks.peak_memory_gib[row]:,.5g} GiB is not that of its config, which is "
            f"projected to read {projected[row]:,.1f}; check the unit and the counter"
        )
        for row in np.flatnonzero(np.abs(errors) > LARGEST_LOG_ERROR_OF_PEAKS)
    }
