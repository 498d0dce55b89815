"""``foretune ingest``: logs and traces that people already have, read into rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from studies.cli.common import GpuFileOption, JsonOption, Output, axis_values

if TYPE_CHECKING:
    from collectors.ingestion import Ingested, TraceReading
    from collectors.logs.rows import MeasuredRun
    from collectors.traces.breakdown import Breakdown
    from specs.errors import InputError
    from specs.gpu import Gpu

FilesArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE...",
        help="Training logs (Megatron-LM, Primus, Megatron-DeepSpeed, MLPerf), rocm-smi and "
        "nvidia-smi output, PyTorch profiler traces (.json, .json.gz).",
        show_default=False,
    ),
]
CsvOption = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="OUT",
        help="Write measured runs whose model is known to OUT, their models to OUT.models.json "
        "where the catalog lacks them, operator rows of traces to OUT.operators.csv (OUT itself "
        "without a log).",
        show_default=False,
    ),
]
StatedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="COLUMN=VALUE",
        help="State what the log does not: gpu=MI300X, tp=1, precision=fp8 ...; repeat for more.",
        show_default=False,
    ),
]
SHOWN_OPERATORS = 12


def ingest_command(
    files: FilesArgument,
    csv_file: CsvOption = None,
    settings: StatedOption = None,
    gpu_file: GpuFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read logs and traces into measured runs, memory peaks and operator rows."""
    from collectors.ingestion import give_own_ids, ingest
    from specs import catalog
    from specs.errors import InputError
    from studies.files import checked_file, keep_inputs

    output = Output(as_json)
    stated = axis_values(settings or [], "--set")
    if csv_file is not None:
        checked_file(csv_file, "--csv", [*files, gpu_file])
        keep_inputs(_beside(csv_file), [*files, gpu_file], "--csv")
    gpus = catalog.read_gpus(gpu_file)
    readings: list[Ingested] = []
    failures: list[tuple[Path, InputError]] = []
    with output.progress("reading", len(files)) as advance:
        for path in files:
            try:
                readings.append(ingest(path, stated, gpus))
            except InputError as error:
                failures.append((path, error))
            advance(1)
    if not readings:
        raise failures[0][1]
    give_own_ids([run for reading in readings for run in reading.runs])
    refused = _refused([run for reading in readings for run in reading.runs], gpus)
    unusable = _why_unusable(readings, refused) if csv_file else ""
    written = _write(csv_file, readings) if csv_file and not unusable else []
    if as_json:
        output.result(_json(readings, failures, refused, written))
    else:
        for reading in readings:
            _show(output, reading, refused)
        output.notes([str(error) for _, error in failures])
        output.say(*(f"wrote {path}" for path in written))
    if unusable:
        raise InputError(f"{csv_file} was not written: {unusable}")


def _why_unusable(readings: list[Ingested], refused: dict[str, str]) -> str:
    """Why no row for a table was read, as a sentence; empty where there is one."""
    if any(reading.trace for reading in readings):
        return ""
    runs = [run.row for reading in readings for run in reading.runs if run.row.get("model")]
    if not runs:
        return "no run with a known model was read; state what is missing with --set."
    if any(row["run_id"] not in refused for row in runs):
        return ""
    first = runs[0]["run_id"]
    return f"none of its {len(runs)} rows could be used; {first}: {refused[first]}"


def _refused(runs: list[MeasuredRun], gpus: Mapping[str, Gpu]) -> dict[str, str]:
    """run_id -> why the reader of tables of runs refuses the row."""
    from collectors.ingestion import refusals

    return {refusal.run_id: refusal.reason for refusal in refusals(runs, gpus)}


def _write(csv_file: Path, readings: list[Ingested]) -> list[str]:
    """Writes the tables that there is something for; returns their paths."""
    from collectors.ingestion import operators_csv
    from specs.models_json import models_text
    from specs.run_columns import runs_csv
    from studies.files import write_atomically

    runs = [run for reading in readings for run in reading.runs if run.row.get("model")]
    written = []
    if runs:
        written.append(write_atomically(csv_file, runs_csv(run.row for run in runs)))
        models = {run.model.name: run.model for run in runs if run.model is not None}
        unknown = [model for model in models.values() if not _in_catalog(model)]
        if unknown:
            path = _beside(csv_file)[0]
            written.append(write_atomically(path, models_text(unknown)))
    if any(reading.trace for reading in readings):
        path = _beside(csv_file)[1] if runs else csv_file
        written.append(write_atomically(path, operators_csv(readings)))
    return [str(path) for path in written]


def _beside(csv_file: Path) -> tuple[Path, Path]:
    """Where models that the catalog lacks and operator rows go."""
    name = csv_file.name
    return csv_file.with_name(f"{name}.models.json"), csv_file.with_name(f"{name}.operators.csv")


def _in_catalog(model: Any) -> bool:
    from specs import catalog
    from specs.errors import InputError

    try:
        return bool(catalog.model(model.name) == model)
    except InputError:
        return False


def _json(
    readings: list[Ingested],
    failures: list[tuple[Path, InputError]],
    refused: dict[str, str],
    written: list[str],
) -> dict[str, Any]:
    """Everything that was read."""
    runs, traces = [], []
    for reading in readings:
        for run in reading.runs:
            reason = refused.get(run.row["run_id"])
            runs.append({"file": str(reading.path), **run.as_json(), "refused": reason})
        if reading.trace is not None:
            rows = [row._asdict() for row in reading.trace.operators]
            traces.append({"file": str(reading.path), **reading.trace.as_json(), "operators": rows})
    return {
        "runs": runs,
        "traces": traces,
        "failed": [{"file": str(path), "reason": str(error)} for path, error in failures],
        "files": written,
    }


def _show(output: Output, reading: Ingested, refused: dict[str, str]) -> None:
    """Prints what one file gave."""
    for run in reading.runs:
        _show_run(output, reading.path, run)
        reason = refused.get(run.row["run_id"])
        if run.format == "memory":
            output.notes(["no run is in this file: --set model=... and so on makes it a row"])
        elif run.missing:
            stated = " ".join(f"--set {name}=..." for name in run.missing)
            output.notes([f"to project this run, state {', '.join(run.missing)}: {stated}"])
        elif reason:
            output.notes([f"the row cannot be projected: {reason}"])
    if reading.trace is not None:
        _show_trace(output, reading.path, reading.trace)


_AXES = (
    *("tp", "pp", "vpp", "cp", "ep", "etp", "mbs", "gbs", "seq_len", "precision", "sharding"),
    *("schedule", "recompute"),
)


def _show_run(output: Output, path: Path, run: MeasuredRun) -> None:
    row = run.row
    what = "out of memory" if run.out_of_memory else "run"
    output.say("", f"{path} ({run.format}): {what} {row['run_id']}")
    place = f"{row.get('num_gpus', '?')}x{row.get('gpu', 'unknown GPU')}"
    output.say(f"  {row.get('model', 'unknown model')} on {place}")
    axes = "  ".join(f"{name}={row[name]}" for name in _AXES if row.get(name))
    if axes:
        output.say(f"  {axes}")
    results = (
        ("step time", "step_time_s", "s"),
        ("throughput", "tokens_per_s_per_gpu", "tokens/s/GPU"),
        ("as printed", "tflops_per_gpu", "TFLOP/s/GPU"),
    )
    for label, column, unit in results:
        if row.get(column):
            output.say(f"  {label:<12}{row[column]} {unit}")
    for counter, peak in run.memory.items():
        ranks, highest = int(peak["ranks"]), int(peak["max_rank"])
        lowest = f" (rank {highest}; lowest of {ranks} ranks {peak['min_gib']:.2f})"
        output.say(f"  {counter:<12}{peak['max_gib']:.2f} GiB{lowest if ranks > 1 else ''}")
    if run.out_of_memory and row.get("peak_mem_gb"):
        output.say(f"  needs more than {float(row['peak_mem_gb']):.2f} GiB allocated")
    if run.steady is not None:
        after = run.iterations - run.steady.stop
        output.say(
            f"  steady      {len(run.counted)} of {run.iterations} logged iterations "
            f"(set apart: {run.warm_up} before, {run.steady.outliers} outliers, {after} after), "
            f"spread {run.steady.spread:.2%}"
        )
    output.notes(run.notes)


def _show_trace(output: Output, path: Path, trace: TraceReading) -> None:
    output.say("", f"{path} (profiler trace): {trace.gpu or trace.device_name}")
    rows: list[tuple[Any, ...]] = []
    for device in trace.devices:
        rows.append((f"device {device.device}, whole trace", *_times(device.whole)))
        if device.median_step is not None:
            label = f"device {device.device}, step {device.median_step}"
            more = f" (median of {len(device.steady)})" if len(device.steady) > 1 else ""
            rows.append((label + more, *_times(device.steps[device.median_step])))
    times = ("total ms", "compute", "communication", "exposed comm.", "exposed copies", "idle")
    output.table("", ("", *times), rows)
    shown = [
        (
            row.category,
            row.operator or row.kernel[:40],
            row.shape[:40],
            row.calls,
            row.time_us,
            row.tflops,
            f"{row.share:.1%}",
        )
        for row in trace.operators[:SHOWN_OPERATORS]
    ]
    columns = ("category", "operator", "shape", "calls", "median us", "TFLOP/s", "of kernels")
    output.table("", columns, shown)
    unshown = len(trace.operators) - len(shown)
    if unshown > 0:
        output.say(f"{unshown} more operator rows (--csv or --json)")
    output.notes(trace.notes)


def _times(part: Breakdown) -> tuple[float, ...]:
    """Milliseconds in the order of the table's header."""
    times = (
        *(part.total_us, part.compute_us, part.communication_us),
        *(part.exposed_communication_us, part.exposed_copy_us, part.idle_us),
    )
    return tuple(time / 1000 for time in times)
