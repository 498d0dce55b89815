"""``foretune tune --oracle measure``: the measured loop on this node, and how it is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from studies.cli.common import Output
    from studies.job import Job
    from studies.measured_loop import Loop

SURROGATE, MEASURE, PRIMUS = "surrogate", "measure", "primus"
PROFILE = "2m"
"""What ``--oracle measure`` profiles for where no time is given."""

OracleOption = Annotated[
    str,
    typer.Option(
        "--oracle",
        metavar="NAME",
        help="What evaluates configs in the end: surrogate; measure, which also profiles this node "
        "and runs the reference trainer on it until no config promises more than noise; or primus, "
        "the projection of an installed Primus.",
    ),
]
MostRunsOption = Annotated[
    int | None,
    typer.Option("--runs", min=1, max=1000, help="Measured runs at most (12).", show_default=False),
]


def is_measured(oracle: str) -> bool:
    """Whether configs are really run.

    Raises:
        InputError: there is no such oracle.
    """
    from specs.errors import InputError

    if oracle not in (SURROGATE, MEASURE, PRIMUS):
        raise InputError(f"there is no oracle {oracle!r}; use {SURROGATE}, {MEASURE} or {PRIMUS}.")
    return oracle == MEASURE


def measured_loop(
    output: Output,
    job: Job,
    storage: str | None,
    out: Path,
    python: str | None,
    most: int | None,
    seed: int,
) -> Loop:
    """Runs the loop of a job; what each run brought is said as it ends."""
    from studies.files import checked_folder, name_from
    from studies.measured_loop import run_loop
    from studies.measured_oracle import MeasuredOracle
    from studies.real_runs import RealRuns
    from studies.storage import storage_address

    name = name_from(job.experiment.name)
    address = storage_address(storage, out / "foretune.db")
    runs = RealRuns.open(job, address, name)
    folder = checked_folder(out) / runs.name
    oracle = MeasuredOracle(job, folder, python=python or sys.executable)
    output.notes([note for note in (runs.note,) if note])
    return run_loop(runs, oracle, lambda text: output.notes([text]), most, seed)


def show_loop(output: Output, loop: Loop) -> None:
    """Prints the runs in the order they were made, and the best of them."""
    from studies.wording import describe, wrapped

    rows = [
        (
            str(run.number),
            run.tokens_per_s_per_gpu if run.tokens_per_s_per_gpu else run.state,
            run.expected.get("tokens_per_s_per_gpu"),
            run.peak_gib,
            describe(run.config),
        )
        for run in loop.runs
    ]
    header = ("run", "tokens/s/GPU", "expected", "GiB", "config")
    output.table("measured on this node", header, rows)
    best = loop.best
    output.say("", f"stopped: {loop.why_stopped}")
    if best is not None and best.tokens_per_s_per_gpu is not None:
        output.say(
            wrapped(
                f"measured best: {best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU, run "
                f"{best.number}, {describe(best.config)}"
            )
        )
