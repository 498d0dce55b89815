"""``foretune plan``: many workloads on many clusters, what each costs and which is big enough."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from studies.cli.common import GpuFileOption, JsonOption, OutOption, Output
from studies.cli.validate import CalibrationOption

if TYPE_CHECKING:
    from studies.plan.run import PlanResult

PlanArgument = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", help="Plan YAML, or the name of a shipped plan.", show_default=False
    ),
]
SpaceOption = Annotated[
    str | None,
    typer.Option(
        "--space",
        metavar="core|full",
        help="Vary the core axes (the others stay at the baseline) or all; as the plan says, or "
        "full, without it.",
        show_default=False,
    ),
]
JobsOption = Annotated[
    int | None,
    typer.Option("--jobs", min=1, max=1024, help="Worker processes; one a core without it."),
]
CsvOption = Annotated[
    Path | None,
    typer.Option(
        "--csv", metavar="FILE", help="Where the table goes as CSV; DIR/NAME/plan.csv without it."
    ),
]


def plan_command(
    source: PlanArgument,
    gpu_file: GpuFileOption = None,
    space: SpaceOption = None,
    jobs: JobsOption = None,
    csv_file: CsvOption = None,
    calibration: CalibrationOption = None,
    out: OutOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Weigh many workloads on many clusters: speed, days, money, energy, smallest cluster.

    Finished pairs are kept: killed at any moment, the same command goes on where it stopped.
    """
    from specs.errors import InputError
    from studies.files import checked_file
    from studies.plan.files import find_plan, plan_file, write_files
    from studies.plan.run import run_plan

    output = Output(as_json)
    if space not in (None, "core", "full"):
        raise InputError(f"--space {space} is neither core nor full.")
    if csv_file is not None:
        checked_file(csv_file, "--csv", [plan_file(source), gpu_file, calibration])
    plan = find_plan(source, gpu_file)
    full = None if space is None else space == "full"
    result = run_plan(plan, out, full, jobs, output.progress, calibration)
    files = write_files(result, csv_file)
    if as_json:
        output.result({**result.as_json(), "files": [str(path) for path in files]})
        return
    _show(output, result)
    output.say("", *(f"wrote {path}" for path in files))


def _show(output: Output, result: PlanResult) -> None:
    """Prints two tables a workload, its best configs, what is weak, and the smallest clusters."""
    from studies.plan.table import (
        COST_HEADER,
        SPEED_HEADER,
        by_workload,
        config_lines,
        cost_rows,
        remarks,
        smallest_sentence,
        speed_rows,
    )

    for name, rows in by_workload(result.rows).items():
        output.table(name, SPEED_HEADER, speed_rows(rows))
        costs = list(cost_rows(rows))
        if costs:
            output.table("", COST_HEADER, costs)
        output.say(*config_lines(rows))
        output.notes(remarks(rows))
        output.say("")
    output.notes(result.notes)
    if result.changed:
        output.say(f"{result.changed} pairs whose inputs changed were projected again.")
    if result.resumed:
        output.say(f"{result.resumed} of {len(result.rows)} pairs were known already.")
    output.say(*(smallest_sentence(found) for found in result.smallest))
