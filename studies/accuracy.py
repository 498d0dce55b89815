"""How right the projections are on a table of measured runs: the JSON of ``foretune validate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import catalog
from specs.models_json import models_json
from specs.runs import RunTable, read_runs
from studies.impossible_runs import impossible_peaks, impossible_speeds, rows_with_speed
from studies.run_refusals import check_some_usable
from surrogate.calibration import Calibration
from surrogate.in_sample import calibrated_with, learned_from
from surrogate.learned import Learned
from surrogate.memory import fit_probability, interval_half_width, memory_doubt, memory_log_sd
from surrogate.memory_calibration import MemoryFacts
from surrogate.run_cases import cases_of
from surrogate.validation import (
    Projected,
    calibration_draws,
    calibration_metrics,
    error_metrics,
    ranking_metrics,
    slice_labels,
    sliced_metrics,
)

Column = NDArray[Any]

DRAWS = 20
"""Draws of ``--calibrate K``."""
WORST_PEAKS = 10


def read_table(
    runs: Path, models: Path | None, gpus: Path | None = None, with_results: bool = True
) -> RunTable:
    """A table of runs whose models come from a ``models.json`` or else from the catalog; so do its
    GPUs, after those of the YAML file ``gpus``.

    Without results, as for projections alone, a table may have refused rows only: they are answered
    one by one.

    Raises:
        InputError: a file cannot be used, or no row of it.
    """
    find = models_json(models).find if models else catalog.model
    find_gpu = partial(catalog.gpu, extra=catalog.read_gpus(gpus))
    table = read_runs(runs, find, find_gpu, with_results=with_results)
    if with_results:
        check_some_usable(table, runs)
    return table


def defaults_in_words(defaults: Mapping[str, int]) -> str:
    """Which columns rows were silent of (name -> number of rows), as one sentence."""
    silent = ", ".join(
        f"{name}{f' ({_ASSUMED[name]})' if name in _ASSUMED else ''} in {count:,}"
        for name, count in defaults.items()
    )
    return f"rows that state no value took the default: {silent} (number of rows)"


_ASSUMED = {
    "sequence_parallel": "off, but on with tp above 1 in NeMo, Megatron-Bridge, Primus, TorchTitan "
    "and with experts",
    "vpp": "1, or two layers a chunk where the schedule is interleaved",
    "recompute": "the least with which it fits",
    "sharding": "none",
    "precision": "bf16",
    "overlap": "as the recipes of its framework",
    "framework": "Megatron-LM",
}
"""What a row is taken to do where it does not say; other columns are 1 or follow from the rest."""


def validation_json(
    table: RunTable, learned: Learned, calibrate: int = 0, seed: int = 0
) -> dict[str, Any]:
    """Errors of throughput, memory and ranking.

    Args:
        table: measured runs.
        learned: what projects them.
        calibrate: runs of each Fold that are revealed first, in seeded draws; 0 for none.
        seed: of the draws.
    """
    told = rows_with_speed(table)
    projected = learned.predict(table.take(told))
    impossible = _impossible_speeds(table, told, projected, learned)
    possible = ~np.isin(told, list(impossible))
    printed = table.throughput_from[told] == "tflops"
    measured, apart = told[possible & ~printed], told[possible & printed]
    judged, projected_apart = table.take(measured), projected.take(possible & printed)
    projected = projected.take(possible & ~printed)
    throughput = {
        **sliced_metrics(judged, judged.tokens_per_s_per_gpu, projected),
        "skipped": _skipped(table, measured, _no_throughput(table, impossible)),
        "from_tflops": error_metrics(table.tokens_per_s_per_gpu[apart], projected_apart),
    }
    if calibrate:
        zero_shot = {name: throughput[name] for name in _METRICS}
        throughput |= _calibrated(judged, learned, calibrate, seed)
        throughput["zero_shot"] = zero_shot
    return {
        "throughput": throughput,
        "memory": memory_json(table, learned.peaks(), impossible),
        "groups": ranking_metrics(judged, judged.tokens_per_s_per_gpu, projected.value),
        "in_sample": _in_sample(table, measured, learned),
        "refused": [{"run_id": r.run_id, "reason": r.reason} for r in table.refused],
        "defaults": dict(table.defaults),
    }


def _impossible_speeds(
    table: RunTable, told: Column, projected: Projected, learned: Learned
) -> dict[int, str]:
    """Rows of the table whose throughput is impossible, each with why.

    Args:
        table: n runs.
        told: indices of those that state a throughput, shape (t,).
        projected: their projections, shape (t,).
        learned: what made them; a calibration of it has no say in what is impossible.
    """
    runs = table.take(told)
    if len(learned.calibration):
        projected = replace(learned, calibration=Calibration.nothing()).predict(runs)
    found = impossible_speeds(runs, projected.value)
    return {int(told[row]): why for row, why in found.items()}


def _in_sample(table: RunTable, measured: Column, learned: Learned) -> dict[str, int]:
    """How many of the ``measured`` rows, and of those with a peak, taught what projects them.

    ``learned`` counts runs that the package learned from; those that a calibration was made from
    are ``calibrated``, and its peaks ``calibrated_peaks``.
    """
    speeds, peaks = calibrated_with(table, learned)
    return {
        "runs": len(measured),
        "learned": int(learned_from(table.take(measured), learned).sum()),
        "calibrated": int(speeds[measured].sum()),
        "calibrated_peaks": int(peaks.sum()),
    }


_METRICS = ("n", "mape", "median_ape", "p90_ape", "bias", "coverage90", "half_width90")


def memory_json(
    table: RunTable, known: MemoryFacts, impossible: Mapping[int, str]
) -> dict[str, Any]:
    """Errors of peak memory, projected with ``known`` peaks, in the reading of each row's counter;
    OOM rows apart.

    Rows whose throughput is ``impossible`` and peaks that cannot be those of their config are not
    judged. ``stated`` are the rows whose recompute is stated; ``worst`` the rows with the largest
    errors and what their projections consist of.
    """
    wrong = {**impossible_peaks(table), **impossible}
    believed = np.ones(len(table), dtype=bool)
    believed[list(wrong)] = False
    held = np.flatnonzero(np.isfinite(table.peak_memory_gib) & ~table.out_of_memory & believed)
    peaks = table.take(held)
    projected = memory_projected(peaks, known)
    truth = peaks.peak_memory_gib
    stated = np.flatnonzero(~peaks.recompute_unknown)
    reasons = np.full(len(table), "no peak memory is stated", dtype=object)
    reasons[table.out_of_memory] = "ran out of memory"
    for row, why in wrong.items():
        reasons[row] = why
    return {
        **sliced_metrics(peaks, truth, projected, memory=True),
        "stated": error_metrics(truth[stated], projected.take(stated)),
        "worst": _worst_peaks(peaks, projected, known),
        "out_of_memory": _out_of_memory(table.take(table.out_of_memory & believed), known),
        "skipped": _skipped(table, held, reasons),
    }


def memory_projected(table: RunTable, known: MemoryFacts) -> Projected:
    """Peak memory in GiB in the reading of each row's counter, with its 90% interval: wider where
    the row leaves unsaid what decides its memory."""
    if not len(table):
        return Projected.empty(0)
    cases = cases_of(table)
    counters = np.where(table.memory_counter == "", "device", table.memory_counter)
    peak = known.reading(cases, counters)
    half = interval_half_width(memory_log_sd(cases) * memory_doubt(table.unstated != ""))
    return Projected(peak, peak * np.exp(-half), peak * np.exp(half))


def _worst_peaks(peaks: RunTable, projected: Projected, known: MemoryFacts) -> list[dict[str, Any]]:
    """The rows with the largest errors: projection and gap in GiB, by component."""
    error = np.abs(projected.value / peaks.peak_memory_gib - 1)
    rows = np.argsort(-error, kind="stable")[:WORST_PEAKS]
    chosen = peaks.take(rows)
    if not len(chosen):
        return []
    counters = chosen.memory_counter.astype(str)
    gaps = known.gaps(cases_of(chosen), chosen.peak_memory_gib, counters)
    return [
        {"run_id": str(run_id), "counter": str(counter), **gap._asdict()}
        for run_id, counter, gap in zip(chosen.run_id, chosen.memory_counter, gaps, strict=True)
    ]


def _out_of_memory(failed: RunTable, known: MemoryFacts) -> dict[str, Any]:
    """How many OOM rows would have been called fitting."""
    if not len(failed):
        return {"n": 0, "called_fitting": 0, "run_ids": []}
    cases = cases_of(failed)
    probability = fit_probability(
        known.memory(cases).device_gib, cases.cluster.hbm_gib, memory_log_sd(cases)
    )
    fits = np.flatnonzero(probability >= 0.5)
    return {
        "n": len(failed),
        "called_fitting": len(fits),
        "run_ids": [str(failed.run_id[row]) for row in fits],
    }


def _no_throughput(table: RunTable, impossible: Mapping[int, str]) -> Column:
    """Why each row has no throughput to compare with, or an ``impossible`` one."""
    reasons = np.full(len(table), "no throughput is stated", dtype=object)
    reasons[table.throughput_from == "tflops"] = "only a TFLOP/s is printed: scored apart"
    assumed = table.batch_assumed & (table.config.pp > 1)
    reasons[assumed] = "gbs is missing: the pipeline's share of idle time is unknown"
    no_step = np.setdiff1d(np.flatnonzero(table.throughput_from != ""), rows_with_speed(table))
    reasons[no_step] = "gbs is not a multiple of mbs*dp: no step has that batch"
    for row, why in impossible.items():
        reasons[row] = why
    return reasons


def _skipped(table: RunTable, used: Column, reasons: Column) -> list[dict[str, str]]:
    """Refused rows and rows without this measurement, in file order."""
    entries = [(refusal.row, refusal.run_id, refusal.reason) for refusal in table.refused]
    for row in np.setdiff1d(np.arange(len(table)), used):
        entries.append((int(table.row[row]), str(table.run_id[row]), str(reasons[row])))
    return [{"run_id": run_id, "reason": reason} for _, run_id, reason in sorted(entries)]


def _calibrated(timed: RunTable, learned: Learned, runs: int, seed: int) -> Mapping[str, Any]:
    """Metrics after ``runs`` runs of each Fold, Folds weighted equally, in all and by slice."""
    measured = timed.tokens_per_s_per_gpu
    everything = np.arange(len(timed))
    drawn = calibration_draws(timed, [(everything, learned)], runs, DRAWS, seed)
    metrics = calibration_metrics(measured, drawn)
    result = {name: metrics[name] for name in _METRICS}
    result["by"] = {
        name: {
            str(label): error_metrics(
                measured[drawn.rows[here]], drawn.projected.take(here), drawn.weight[here]
            )
            for label in sorted(set(labels[drawn.rows].tolist()))
            for here in [np.flatnonzero(labels[drawn.rows] == label)]
        }
        for name, labels in slice_labels(timed).items()
    }
    result["calibration"] = {
        "runs": runs,
        "seed": seed,
        **{name: metrics[name] for name in ("draws", "folds", "mape_sd", "smaller_folds")},
    }
    return result
