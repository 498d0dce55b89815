"""Any log or trace into rows: what ``foretune ingest`` does with each file."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from collectors.gpu_names import gpu_of
from collectors.logs.formats import format_of
from collectors.logs.reader import read_log
from collectors.logs.rows import MeasuredRun, measured_run
from collectors.text import Truncation, read_blocks
from collectors.traces.breakdown import DeviceTime, device_times
from collectors.traces.events import read_trace
from collectors.traces.operators import COLUMNS, OperatorRow, operator_rows
from specs import catalog
from specs.csv_files import write_rows
from specs.errors import InputError
from specs.files import is_folder
from specs.formats.primus.reader import gpu_of_path
from specs.gpu import Gpu
from specs.models_json import ModelsFile
from specs.run_columns import CONFIG_COLUMNS, EXTRA_COLUMNS
from specs.runs import Refusal, table_of

STATABLE = (*CONFIG_COLUMNS, *EXTRA_COLUMNS)
"""Columns that a user may state where a log is silent."""

_TRACE_START = re.compile(rb'\s{0,1000}[\[{]\s{0,1000}["{}\]]')
_TRACE_WORDS = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"ph"')


@dataclass
class TraceReading:
    """What a trace holds: the time of each device and its operator rows, longest first."""

    gpu: str
    device_name: str
    events: int
    devices: list[DeviceTime]
    operators: list[OperatorRow]
    versions: dict[str, str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        """The trace as JSON, without the operator rows."""
        by_category: dict[str, float] = {}
        for row in self.operators:
            by_category[row.category] = by_category.get(row.category, 0.0) + row.total_us
        return {
            "gpu": self.gpu,
            "device_name": self.device_name,
            "events": self.events,
            "versions": self.versions,
            "devices": [_device_json(device) for device in self.devices],
            "kernel_time_us": dict(sorted(by_category.items(), key=lambda item: -item[1])),
            "notes": self.notes,
        }


@dataclass
class Ingested:
    """What one file gave: runs of a log, or a trace."""

    path: Path
    runs: list[MeasuredRun] = field(default_factory=list)
    trace: TraceReading | None = None


def ingest(
    path: Path, stated: Mapping[str, str], gpus: Mapping[str, Gpu] | None = None
) -> Ingested:
    """Reads one log or trace.

    Args:
        path: the file; its format is told from its content.
        stated: columns of the table of runs that the user states, by name.
        gpus: GPUs beside the catalog's, by name.

    Raises:
        InputError: the file cannot be read, or holds nothing that is known.
    """
    unknown = [name for name in stated if name not in STATABLE]
    if unknown:
        raise InputError(
            f"--set: a table of runs has no column {unknown[0]!r}; use {', '.join(STATABLE)}."
        )
    if is_folder(path):
        raise InputError(f"{path} is a folder; name the logs or traces in it.")
    if is_trace(path):
        return Ingested(path, trace=_trace(path, stated, gpus))
    runs = read_log(path)
    stem = path.name.split(".")[0] or "run"
    found = []
    for place, run in enumerate(runs):
        name = stem if len(runs) == 1 else f"{stem}-{place + 1}"
        hint = gpu_of_path(path)
        found.append(measured_run(run, format_of(run), name, path.name, stated, hint, gpus))
    return Ingested(path, runs=found)


def is_trace(path: Path) -> bool:
    """Whether a file is a profiler trace rather than a log.

    Raises:
        InputError: the file cannot be opened.
    """
    head = next(read_blocks(path, Truncation()), b"").removeprefix(b"\xef\xbb\xbf")
    if not _TRACE_START.match(head):
        return False
    named = path.name.lower().removesuffix(".gz").endswith(".json")
    return any(word in head for word in _TRACE_WORDS) or (named and b"VRAM" not in head)


def _trace(path: Path, stated: Mapping[str, str], gpus: Mapping[str, Gpu] | None) -> TraceReading:
    trace = read_trace(path)
    gpu, note = gpu_of(stated.get("gpu", ""), trace.device_name, gpu_of_path(path), gpus)
    if not gpu and not note:
        note = "no GPU is named; --set gpu=NAME states which it is"
    return TraceReading(
        gpu=gpu,
        device_name=trace.device_name,
        events=trace.events,
        devices=device_times(trace),
        operators=operator_rows(trace),
        versions=trace.versions,
        notes=[*trace.notes, *([note] if note else [])],
    )


def _device_json(device: DeviceTime) -> dict[str, Any]:
    return {
        "device": device.device,
        "kernels": device.kernels,
        "streams": device.streams,
        "whole_trace": device.whole.as_json(),
        "steps": {str(number): step.as_json() for number, step in device.steps.items()},
        "steady_steps": list(device.steady),
        "median_step": device.median_step,
    }


def give_own_ids(runs: list[MeasuredRun]) -> None:
    """Numbers the later of runs with the same ``run_id``: logs of one name in several folders."""
    taken = {run.row["run_id"] for run in runs}
    seen: set[str] = set()
    for run in runs:
        first = run.row["run_id"]
        if first in seen:
            own = (f"{first}-{number}" for number in count(2))
            run.row["run_id"] = next(name for name in own if name not in taken)
            taken.add(run.row["run_id"])
        seen.add(run.row["run_id"])


def refusals(runs: list[MeasuredRun], gpus: Mapping[str, Gpu] | None = None) -> list[Refusal]:
    """Rows that the reader of tables of runs refuses, with the field that is why; ``gpus`` are
    GPUs beside the catalog's, by name."""
    models = {run.model.name: run.model for run in runs if run.model is not None}
    file = ModelsFile(models, {}, {}, "the log")
    rows = [dict(run.row) for run in runs]
    return list(table_of(rows, file.find, partial(catalog.gpu, extra=gpus)).refused)


def operators_csv(readings: list[Ingested]) -> str:
    """Operator rows of all traces as CSV text."""
    text = io.StringIO()
    rows = (
        operator.as_row(reading.trace.gpu or reading.trace.device_name, reading.path.name)
        for reading in readings
        if reading.trace is not None
        for operator in reading.trace.operators
    )
    write_rows(text, COLUMNS, rows)
    return text.getvalue()
