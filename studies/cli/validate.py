"""``foretune validate``: errors of the projections against measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specs.figures import percent
from studies.cli.common import GpuFileOption, JsonOption, Output, SeedOption
from studies.cli.figures import components_in_words, counted, shortened

ModelsOption = Annotated[
    Path | None,
    typer.Option(
        "--models",
        metavar="M.json",
        help="Architectures of the models that the catalog does not know.",
        show_default=False,
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        "--calibration",
        metavar="C.json",
        help="What foretune calibrate learned from runs.",
        show_default=False,
    ),
]


METRIC_HEADER = ("n", "MAPE", "median", "p90", "bias", "in 90%", "half-width")
SHOWN_PEAKS = 5
SHOWN_FOLDS = 3
"""Folds too small to be calibrated that are named; the JSON names all."""
SMALLEST_GIB = 0.05
"""Smaller components are not printed."""
LABEL_WIDTH = 30
"""Characters of a slice's name that leave room for the numbers on 80 columns."""


def validate_command(
    runs: Annotated[Path, typer.Argument(metavar="R.csv", help="Table of measured runs.")],
    models: ModelsOption = None,
    gpu_file: GpuFileOption = None,
    calibrate: Annotated[
        int,
        typer.Option(
            "--calibrate",
            metavar="K",
            min=0,
            help="Reveal K runs of each fold first: 20 seeded draws, folds weighted equally.",
        ),
    ] = 0,
    calibration: CalibrationOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Errors of throughput, memory and ranking against measured runs."""
    from studies.accuracy import read_table, validation_json
    from studies.calibrating import calibrated_by

    output = Output(as_json)
    table = read_table(runs, models, gpu_file)
    content = validation_json(table, calibrated_by(calibration), calibrate, seed)
    if as_json:
        output.result(content)
    else:
        show_validation(output, content)


def show_validation(output: Output, content: dict[str, Any]) -> None:
    """Prints the errors by slice, the ranking and what was left out."""
    from studies.accuracy import defaults_in_words
    from studies.run_refusals import by_reason

    if content["defaults"]:
        output.say(defaults_in_words(content["defaults"]))
    refused = content["refused"]
    if refused:
        output.say(f"cannot be used ({len(refused):,} of the rows):")
        output.say(*(f"  {line}" for line in by_reason(refused)))
    unusable = {entry["run_id"] for entry in refused}
    for what in ("throughput", "memory"):
        found = content[what]
        rows = [_cells("all", found)]
        for name in ("vendor", "family", "gpu", "source"):
            rows += [_cells(f"{name} {label}", part) for label, part in found["by"][name].items()]
        if found["n"]:
            output.table("", (what, *METRIC_HEADER), [row for row in rows if row[1]])
        if what == "throughput" and found["from_tflops"]["n"]:
            header = ("scored apart", *METRIC_HEADER)
            output.table("", header, [_cells("a printed TFLOP/s alone", found["from_tflops"])])
        skipped = [entry for entry in found["skipped"] if entry["run_id"] not in unusable]
        if skipped:
            output.say(f"no {what} to compare with ({len(skipped):,} of the rows):")
            output.say(*(f"  {line}" for line in by_reason(skipped)))
    output.say(*in_sample_in_words(content["in_sample"], content["memory"]["n"]))
    memory, groups = content["memory"], content["groups"]
    if memory["n"]:
        output.say(f"memory more than 10% too low: {percent(memory['unsafe'])} of rows")
    oom = memory["out_of_memory"]
    if oom["n"]:
        output.say(
            f"{oom['called_fitting']} of {oom['n']} runs out of memory would be called fitting"
        )
    _show_worst_peaks(output, memory["worst"])
    if groups["n"]:
        output.say(
            f"ranking in {groups['n']} sets that differ only in config: Kendall tau "
            f"{groups['kendall_tau']:.2f}, regret of the first choice "
            f"{percent(groups['top1_regret'])}"
        )
    if "calibration" in content["throughput"]:
        told = content["throughput"]["calibration"]
        folds = counted(told["folds"], "fold")
        output.say(
            f"throughput after {counted(told['runs'], 'run')} of each of {folds} "
            f"({told['draws']} draws)"
        )
        output.say(*_smaller_folds_in_words(told["smaller_folds"], told["runs"]))


def in_sample_in_words(known: dict[str, int], peaks: int) -> list[str]:
    """What has to be said of errors on runs that taught what projects them.

    Args:
        known: how many they are, as in the JSON.
        peaks: measured peaks of memory.
    """
    lines = []
    if known["learned"]:
        lines.append(
            f"{known['learned']:,} of {known['runs']:,} runs are among those that were learned "
            "from: these are in-sample errors; docs/accuracy.md has those on runs left out"
        )
        if peaks:
            lines.append(
                "which peaks the constants of memory were learned from is not recorded: peaks of "
                "these runs may be in-sample too"
            )
    if known["calibrated"] or known["calibrated_peaks"]:
        lines.append(
            f"{known['calibrated']:,} of {known['runs']:,} runs and "
            f"{known['calibrated_peaks']:,} of {peaks:,} peaks are those that the calibration was "
            "made from: these are in-sample errors; calibrate tells those of each run judged by "
            "the others"
        )
    return lines


def _smaller_folds_in_words(names: list[str], runs: int) -> list[str]:
    """Which folds have no run left to judge once ``runs`` of theirs are revealed; the first few."""
    if not names:
        return []
    told = [f"  {name}" for name in names[:SHOWN_FOLDS]]
    if len(names) > SHOWN_FOLDS:
        told.append(f"  and {len(names) - SHOWN_FOLDS:,} more")
    count = counted(len(names), "fold")
    return [f"left out with {counted(runs, 'run')} or fewer: {count} (publisher | model | GPU):",
            *told]  # fmt: skip


def _show_worst_peaks(output: Output, worst: list[dict[str, Any]]) -> None:
    """Prints what the projections with the largest errors consist of, largest part first."""
    if worst:
        output.say("peaks projected worst, GiB by component in the reading of their counter:")
    for peak in worst[:SHOWN_PEAKS]:
        error = peak["projected_gib"] / peak["measured_gib"] - 1
        output.say(
            f"  {peak['run_id']}: {peak['measured_gib']:.1f} {peak['counter']}, projected "
            f"{peak['projected_gib']:.1f} ({percent(error, signed=True, digits=0)}) = "
            + components_in_words(peak["components"], SMALLEST_GIB)
        )


def _cells(label: str, found: dict[str, Any]) -> tuple[Any, ...]:
    """One row of the table; empty cells where nothing was measured."""
    names = ("mape", "median_ape", "p90_ape", "bias", "coverage90", "half_width90")
    values = [found[name] for name in names]
    return (
        shortened(label, LABEL_WIDTH),
        found["n"],
        *("" if value is None else percent(value) for value in values),
    )
