"""``foretune calibrate``: learn from measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from specs.figures import percent
from studies.cli.common import GpuFileOption, JsonOption, Output
from studies.cli.figures import counted
from studies.cli.validate import ModelsOption

TOLD = 12
"""Moved constants, keys and disagreeing runs that are printed."""
NAMED = 3
"""Runs far off that are named above the tables."""
FAR_OFF = 4.0
"""A run this many sd from what the others say of it is no chance: of Gaussian errors one in 16,000
would be."""
TORN = 1.5
"""Scatter of the runs of a key over the usual one from which it is said that they contradict each
other."""


def calibrate_command(
    out: Annotated[Path, typer.Option("--out", metavar="C.json", help="Calibration to write.")],
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="R.csv", help="Table of measured runs.")
    ] = None,
    models: ModelsOption = None,
    gpu_file: GpuFileOption = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--merge", metavar="C.json", help="A calibration whose runs are added; may be repeated."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Learn from measured runs, from a single one on; --calibration of other commands takes it."""
    from datetime import date

    from specs.errors import InputError
    from studies.accuracy import read_table
    from studies.calibrating import calibrate, merge
    from studies.files import checked_file
    from surrogate.calibration_file import write_calibration

    output, today = Output(as_json), date.today().isoformat()
    # A calibration may take its own place: it holds its runs and the new ones.
    checked_file(out, "--out", [runs, models, gpu_file])
    nodes: dict[str, int] = {}
    if runs is not None:
        table = read_table(runs, models, gpu_file)
        spans = [cluster.num_nodes for cluster in table.clusters]
        nodes = dict(zip(table.run_id.tolist(), spans, strict=True))
        with output.progress(f"learning from {len(table):,} runs", None):
            calibration, report = calibrate(table, runs, today, known or ())
    elif known:
        with output.progress(f"learning from {len(known):,} calibrations", None):
            calibration, report = merge(known, today)
    else:
        raise InputError("there is nothing to learn from: give --runs, --merge or both.")
    write_calibration(out, calibration)
    if as_json:
        output.result({**report, "file": str(out)})
    else:
        show_report(output, report, nodes)
        output.say(f"written to {out}")


def _before_after(words: str, report: Mapping[str, Any]) -> str:
    """Errors before and after in one sentence; a single run cannot be judged by others."""
    before, after = report["before"], report["after"]
    if before["n"] == 1:
        return (
            f"{words} off by {percent(before['mape'])} (bias "
            f"{percent(before['bias'], signed=True)}); a second one would tell how far it helps"
        )
    return (
        f"{words} off by {percent(before['mape'])} on average (bias "
        f"{percent(before['bias'], signed=True)}); after, each judged by the others alone, by "
        f"{percent(after['mape'])} (bias {percent(after['bias'], signed=True)})"
    )


def _worse(what: str, report: Mapping[str, Any]) -> list[str]:
    """One sentence where runs, judged by each other, are further off than before."""
    before, after = (percent(report[name]["mape"]) for name in ("before", "after"))
    if report["after"]["mape"] <= report["before"]["mape"] or before == after:
        return []
    return [
        f"the calibration makes projections of {what} worse by this measure ({after} instead of "
        f"{before}): the runs say little of each other, so tell more of them, correct those that "
        "disagree, or leave it out."
    ]


def far_off(report: Mapping[str, Any], nodes: Mapping[str, int]) -> list[str]:
    """One sentence that names the runs far from what the others say of them.

    Args:
        report: of the calibration.
        nodes: how many each run spans, as far as known.
    """
    runs = [run for run in report["disagree"] if abs(run["sd"]) >= FAR_OFF]
    if not runs:
        return []
    named = ", ".join(
        f"{run['run_id']} (measured {run['measured_over_expected']:.2f} of what is expected, "
        f"{run['sd']:+.1f} sd)"
        for run in runs[:NAMED]
    )
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    causes = "a typing error or a sick node"
    slow = {run["run_id"] for run in runs if run["sd"] < 0}
    far = [count for run_id, count in nodes.items() if run_id in slow]
    near = [count for run_id, count in nodes.items() if run_id not in slow]
    if far and near and median(far) > median(near):
        causes = (
            "a typing error, a sick node or, since they span more nodes than the others, a network "
            "slower than stated"
        )
    return [f"check for {causes}: {named}{more}."]


def doubtful(report: Mapping[str, Any]) -> list[str]:
    """One sentence that names runs out of memory that had much to spare as projected."""
    runs = report["doubtful"]
    if not runs:
        return []
    named = ", ".join(
        f"{run['run_id']} ({run['projected_gib']:.0f} GiB projected of {run['capacity_gib']:.0f})"
        for run in runs[:NAMED]
    )
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    return [
        f"check for another process on the GPU or a wrong row: {named}{more} ran out of memory "
        "where that is least expected."
    ]


def show_report(output: Output, report: dict[str, Any], nodes: Mapping[str, int]) -> None:
    """Prints before, after, what moved and which runs disagree.

    Args:
        output: where to.
        report: of the calibration.
        nodes: how many each run spans, as far as known.
    """
    from studies.run_refusals import by_reason

    if report["runs"]:
        output.say(
            _before_after(f"{counted(report['runs'], 'run')}: before, projections are", report)
        )
        output.say(*far_off(report, nodes), *_worse("throughput", report))
    if report["skipped"]:
        output.say(f"cannot be used ({len(report['skipped']):,} of the rows):")
        output.say(*(f"  {line}" for line in by_reason(report["skipped"])))
    output.table(
        "",
        ("GPU | framework | model", "runs", "before", "after", "scatter", "projections"),
        [
            (k["key"], k["runs"], percent(k["before"]["mape"]),
             percent(k["after"]["mape"]) if k["after"] else "",
             f"x {k['scatter']:.2f}" if k["runs"] > 1 else "", f"x {k['factor']:.2f}")
            for k in sorted(report["keys"], key=lambda k: -k["runs"])[:TOLD]
        ],
    )  # fmt: skip
    memory = report["memory"]
    if memory["peaks"]:
        peaks = counted(memory["peaks"], "peak")
        output.say(_before_after(f"{peaks} of memory: before, projections are", memory))
        output.say(*_worse("memory", memory))
    if memory["out_of_memory"]:
        output.say(
            f"{counted(memory['out_of_memory'], 'run')} out of memory: each peak lies above "
            "capacity, and its very config is known not to fit"
        )
        output.say(*doubtful(report))
    if memory["moved"]:
        output.table(
            "constants of memory that moved",
            ("constants", "framework", "factor"),
            [
                (m["constants"], m["framework"], f"{m['factor']:.3f}")
                for m in sorted(memory["moved"], key=lambda m: -abs(m["factor"] - 1))[:TOLD]
            ],
        )
    torn = [k["key"] for k in report["keys"] if k["scatter"] >= TORN]
    if torn:
        output.say(
            f"runs of {', '.join(torn[:TOLD])} contradict each other: its intervals are wider "
            "than before"
        )
    if report["moved"]:
        output.table(
            "constants that moved, and why: so many runs depend on them",
            ("constant", "GPU", "framework", "factor", "moves a run by up to", "runs"),
            [
                (m["constant"], m["gpu"], m["framework"], f"{m['factor']:.3f}",
                 percent(m["largest_effect"]), m["runs"])
                for m in report["moved"][:TOLD]
            ],
        )  # fmt: skip
    if report["disagree"]:
        output.table(
            "runs that disagree with the others",
            ("run", "measured / expected", "sd"),
            [
                (d["run_id"], f"{d['measured_over_expected']:.2f}", f"{d['sd']:+.1f}")
                for d in report["disagree"][:TOLD]
            ],
        )
