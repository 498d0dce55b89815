"""``foretune validate``: errors of the projections against measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from studies.cli.common import JsonOption, Output, SeedOption

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


SHOWN_PEAKS = 5
SMALLEST_GIB = 0.05
"""Smaller components are not printed."""


def validate_command(
    runs: Annotated[Path, typer.Argument(metavar="R.csv", help="Table of measured runs.")],
    models: ModelsOption = None,
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
    table = read_table(runs, models)
    content = validation_json(table, calibrated_by(calibration), calibrate, seed)
    if as_json:
        output.result(content)
    else:
        show_validation(output, content)


def show_validation(output: Output, content: dict[str, Any]) -> None:
    """Prints the errors by slice, the ranking and what was left out."""
    from studies.accuracy import defaults_in_words

    if content["defaults"]:
        output.say(defaults_in_words(content["defaults"]))
    for what in ("throughput", "memory"):
        found = content[what]
        rows = [_cells("all", found)]
        for name in ("vendor", "family", "gpu", "source"):
            rows += [_cells(f"{name} {label}", part) for label, part in found["by"][name].items()]
        header = (what, "n", "MAPE", "median", "p90", "bias", "in 90%", "half-width")
        output.table("", header, [row for row in rows if row[1]])
        skipped = found["skipped"]
        if skipped:
            output.say(f"{len(skipped)} rows without {what}, for example:")
            output.say(*(f"  {entry['run_id']}: {entry['reason']}" for entry in skipped[:5]))
    memory, groups = content["memory"], content["groups"]
    if memory["n"]:
        oom = memory["out_of_memory"]
        output.say(
            f"memory more than 10% too low: {memory['unsafe']:.1%} of rows; "
            f"{oom['called_fitting']} of {oom['n']} runs out of memory would be called fitting"
        )
        _show_worst_peaks(output, memory["worst"])
    if groups["n"]:
        output.say(
            f"ranking in {groups['n']} sets that differ only in config: Kendall tau "
            f"{groups['kendall_tau']:.2f}, regret of the first choice {groups['top1_regret']:.1%}"
        )
    if "calibration" in content["throughput"]:
        told = content["throughput"]["calibration"]
        output.say(
            f"throughput after {told['runs']} runs of each of {told['folds']} folds "
            f"({told['draws']} draws); smaller folds: {len(told['smaller_folds'])}"
        )


def _show_worst_peaks(output: Output, worst: list[dict[str, Any]]) -> None:
    """Prints what the projections with the largest errors consist of, largest part first."""
    if worst:
        output.say("peaks projected worst, GiB by component in the reading of their counter:")
    for peak in worst[:SHOWN_PEAKS]:
        error = peak["projected_gib"] / peak["measured_gib"] - 1
        parts = sorted(peak["components"].items(), key=lambda part: -part[1])
        output.say(
            f"  {peak['run_id']}: {peak['measured_gib']:.1f} {peak['counter']}, projected "
            f"{peak['projected_gib']:.1f} ({error:+.0%}) = "
            + ", ".join(f"{name} {gib:.1f}" for name, gib in parts if abs(gib) >= SMALLEST_GIB)
        )


def _cells(label: str, found: dict[str, Any]) -> tuple[Any, ...]:
    """One row of the table; empty cells where nothing was measured."""
    names = ("mape", "median_ape", "p90_ape", "bias", "coverage90", "half_width90")
    values = [found[name] for name in names]
    return (label, found["n"], *("" if v is None else f"{v:.1%}" for v in values))
