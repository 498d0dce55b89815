"""A run that a log holds into one row of the table of measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collectors.gpu_names import gpu_of
from collectors.logs.format import Description, LogFormat
from collectors.logs.run_log import Peak, RunLog
from collectors.logs.steady_state import SteadyState, steady_state
from specs import catalog
from specs.errors import InputError
from specs.gpu import Gpu
from specs.model import Model

NEEDED = ("gpu", "model", "num_gpus", "tp", "pp", "seq_len")
SMALLEST_RATE = 1e-9
"""Samples per second below this are no rate."""
LARGEST_DISAGREEMENT = 0.03
"""Printed and computed tokens/s may differ by this much before it is worth a word."""


class Measured(NamedTuple):
    """Results of a run; None where the log does not tell."""

    step_time_s: float | None
    tokens_per_s_per_gpu: float | None
    tflops_per_gpu: float | None


@dataclass
class MeasuredRun:
    """One row of measured runs and how it was found.

    ``row`` maps columns of ``specs.run_columns.COLUMNS`` to text, ``missing`` names the columns
    that a projection needs and the log does not state. ``model`` is None where it is unknown.
    """

    row: dict[str, str]
    format: str
    model: Model | None
    iterations: int
    warm_up: int
    steady: SteadyState | None
    counted: list[int]
    memory: dict[str, dict[str, float]]
    out_of_memory: bool
    missing: list[str]
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The run as JSON: results as numbers, the row as text."""
        steady = self.steady
        return {
            "row": self.row,
            "format": self.format,
            "step_time_s": number_of(self.row, "step_time_s"),
            "tokens_per_s_per_gpu": number_of(self.row, "tokens_per_s_per_gpu"),
            "tflops_per_gpu": number_of(self.row, "tflops_per_gpu"),
            "memory": self.memory,
            "out_of_memory": self.out_of_memory,
            "iterations": {
                "read": self.iterations,
                "counted": len(self.counted),
                "first_counted": self.counted[0] if self.counted else None,
                "last_counted": self.counted[-1] if self.counted else None,
                "set_apart_as_warm_up": self.warm_up,
                "set_apart_as_outliers": steady.outliers if steady else 0,
                "set_apart_as_other_levels": (
                    self.iterations - self.warm_up - (steady.stop - steady.start) if steady else 0
                ),
                "relative_spread": steady.spread if steady else None,
            },
            "missing": self.missing,
            "notes": self.notes,
        }


def measured_run(
    run: RunLog,
    log_format: LogFormat | None,
    name: str,
    source: str,
    stated: Mapping[str, str],
    path_gpu: str,
    gpus: Mapping[str, Gpu] | None = None,
) -> MeasuredRun:
    """One row from one run.

    Args:
        run: what the log said.
        log_format: the format it is in; None for memory tables and errors without a run.
        name: run_id of the row.
        source: what the source column names.
        stated: columns that the user states; they win over the log.
        path_gpu: GPU that the path of the file names, or empty.
        gpus: GPUs beside the catalog's, by name.

    Raises:
        InputError: the log or the user states a contradictory configuration.
    """
    found = log_format.describe(run, source) if log_format else Description()
    found.columns |= {column: text for column, text in stated.items() if text}
    _name_gpu(run, found, path_gpu, gpus)
    if found.model is not None and "model" in stated and stated["model"] != found.model.name:
        found.model = None
    if run.devices_per_node > 1:
        found.columns.setdefault("gpus_per_node", str(run.devices_per_node))
    selected, index = _selected(run, found)
    steady = steady_state(selected) if len(selected) else None
    kept = index[steady.keep] if steady else index[:0]
    measured = _results(run, found, kept)
    memory = _memory(run, found, gpus)
    oom = bool(run.out_of_memory)
    run_id = found.columns.pop("run_id", name)
    row = {"source": source, "source_date": _date(run)} | found.columns
    row["run_id"] = f"{run_id}-oom" if oom and not run_id.endswith("-oom") else run_id
    row |= _result_columns(measured)
    row |= _memory_columns(run, memory, oom, row)
    if row.get("gpu"):
        row["vendor"] = catalog.gpu(row["gpu"], gpus).vendor
    row["notes"] = "; ".join([*found.words, *_how(steady, len(selected))])
    numbers = [int(run.iterations.number[i]) for i in kept]
    missing = [column for column in NEEDED if not row.get(column)]
    if not (row.get("gbs") or row.get("mbs")):
        missing.append("gbs")
    unstated = [column for column in ("precision", "recompute") if not row.get(column)]
    if log_format and unstated:
        found.notes.append(
            f"the log does not state {' and '.join(unstated)}: a reader of the row takes its "
            "default unless --set COLUMN=VALUE states it"
        )
    return MeasuredRun(
        row={column: text for column, text in row.items() if text},
        format=log_format.name if log_format else "memory",
        model=found.model,
        iterations=len(selected),
        warm_up=steady.start if steady else 0,
        steady=steady,
        counted=numbers,
        memory=memory,
        out_of_memory=oom,
        missing=missing,
        notes=[*found.notes, *run.notes],
    )


def _name_gpu(
    run: RunLog, found: Description, path_gpu: str, gpus: Mapping[str, Gpu] | None
) -> None:
    """Writes the GPU that is known, and what a reader must know of it."""
    gpu, note = gpu_of(found.columns.get("gpu", ""), run.facts.get("gpu", ""), path_gpu, gpus)
    if gpu:
        found.columns["gpu"] = gpu
    if note:
        found.notes.append(note)


def _selected(run: RunLog, found: Description) -> tuple[Any, Any]:
    """Step times (or seconds a sample or token) of the iterations at the run's batch, and their
    indices.

    While the batch ramps up, an iteration is another workload: those are left out.
    """
    its = run.iterations
    times = np.array(its.step_time_s)
    for rates in map(np.array, (its.samples_per_s, its.tokens_per_s_per_gpu)):
        if np.isfinite(times).any():
            break
        times = np.full(len(rates), np.nan)
        np.divide(1.0, rates, out=times, where=rates > SMALLEST_RATE)
    usable = np.isfinite(times) & (times > 0)
    batches = np.array(its.global_batch_size)
    known = batches[usable & np.isfinite(batches)]
    if known.size:
        last = float(known[-1])
        other = usable & np.isfinite(batches) & (batches != last)
        if other.any():
            found.notes.append(
                f"{int(other.sum())} iterations at another global batch size than {last:g} were "
                "left out"
            )
            usable &= ~other
        if last >= 1:
            found.columns["gbs"] = f"{last:.0f}"
    index = np.flatnonzero(usable)
    return times[index], index


def _results(run: RunLog, found: Description, kept: Any) -> Measured:
    """Medians over the steady iterations."""
    if not len(kept):
        return Measured(None, None, None)
    its, columns = run.iterations, found.columns
    batch, seq_len = number_of(columns, "gbs"), number_of(columns, "seq_len")
    gpus = number_of(columns, "num_gpus")
    step_time_s = _median(its.step_time_s, kept)
    samples_per_s = _median(its.samples_per_s, kept)
    if step_time_s is None and samples_per_s and batch:
        step_time_s = batch / samples_per_s
    printed = _median(its.tokens_per_s_per_gpu, kept)
    tokens = printed
    if not step_time_s and printed and batch and seq_len and gpus:
        step_time_s = batch * seq_len / printed / gpus
    if step_time_s and batch and seq_len and gpus:
        tokens = batch * seq_len / step_time_s / gpus
        if printed and abs(printed / tokens - 1) > LARGEST_DISAGREEMENT:
            found.notes.append(
                f"the log prints {printed:,.1f} tokens/s/GPU, but batch, sequence and step time "
                f"give {tokens:,.1f}; the latter counts"
            )
    return Measured(step_time_s, tokens, _median(its.tflops, kept))


def _median(values: Any, kept: Any) -> float | None:
    """Median of the kept values that are there."""
    column = np.array(values)[kept]
    column = column[np.isfinite(column)]
    return float(np.median(column)) if column.size else None


def _memory(
    run: RunLog, found: Description, gpus: Mapping[str, Gpu] | None
) -> dict[str, dict[str, float]]:
    """Counter -> highest and lowest peak over ranks in GiB, and on how many ranks."""
    summary: dict[str, dict[str, float]] = {}
    peaks = dict(run.memory)
    fraction = peaks.pop("device_fraction", None)
    if fraction is not None and "device" not in peaks:
        capacity = run.capacity_gib
        if not capacity and found.columns.get("gpu"):
            capacity = catalog.gpu(found.columns["gpu"], gpus).hbm_gib.value
        if capacity and fraction.highest[1] > 0:
            peaks["device"] = Peak({-1: fraction.highest[1] * capacity})
            found.notes.append("device memory is read from rocm-smi in whole percent of VRAM")
    for counter, peak in peaks.items():
        if peak.by_rank:
            rank, highest = peak.highest
            values = list(peak.by_rank.values())
            summary[counter] = {
                "max_gib": highest,
                "min_gib": min(values),
                "max_rank": rank,
                "ranks": len(values),
            }
    return summary


def _memory_columns(
    run: RunLog, memory: dict[str, dict[str, float]], oom: bool, row: Mapping[str, str]
) -> dict[str, str]:
    """Peak, counter and unit; of an OOM the largest lower bound of what was needed."""
    if oom:
        needed = [e.needed_gib for e in run.out_of_memory if e.needed_gib is not None]
        if not needed:
            return {}
        return _peak(max(needed), "allocated")
    for counter in ("allocated", "reserved", "device"):
        if counter in memory and memory[counter]["max_gib"] > 0:
            label: str = counter
            only_last = memory[counter]["ranks"] == 1 and row.get("num_gpus", "").isdigit()
            if counter == "allocated" and only_last:
                rank = int(memory[counter]["max_rank"])
                if rank > 0 and rank == int(row["num_gpus"]) - 1:
                    label = "allocated-last-rank"
            return _peak(memory[counter]["max_gib"], label)
    return {}


def _peak(gib: float, counter: str) -> dict[str, str]:
    return {"peak_mem_gb": f"{gib:.6g}", "memory_counter": counter, "memory_unit": "GiB"}


def _result_columns(measured: Measured) -> dict[str, str]:
    """Results as text with six significant digits."""
    values = measured._asdict()
    return {name: f"{value:.6g}" for name, value in values.items() if value is not None}


def _how(steady: SteadyState | None, count: int) -> list[str]:
    """How the results were found, for the notes column."""
    if steady is None:
        return []
    return [
        f"median of {int(steady.keep.sum())} of {count} logged iterations, relative spread "
        f"{steady.spread:.2g}"
    ]


def _date(run: RunLog) -> str:
    """Day of the run as the log prints it."""
    if "date" in run.facts:
        return run.facts["date"]
    if "compact_date" in run.facts:
        day = run.facts["compact_date"]
        return f"{day[:4]}-{day[4:6]}-{day[6:]}"
    if "mlperf time" in run.facts:
        import datetime

        seconds = int(run.facts["mlperf time"]) / 1000
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()
    return ""


def number_of(columns: Mapping[str, str], name: str) -> float | None:
    """A column as a number; None where it is empty.

    Raises:
        InputError: it is no positive number.
    """
    text = columns.get(name, "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not 0 < number < float("inf"):
        raise InputError(f"{name} is {text!r}; use a positive number.")
    return number
