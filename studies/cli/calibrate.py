"""``foretune calibrate``: learn from measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from studies.cli.common import JsonOption, Output
from studies.cli.validate import ModelsOption

TOLD = 12
"""Moved constants, keys and disagreeing runs that are printed."""


def calibrate_command(
    runs: Annotated[Path, typer.Option("--runs", metavar="R.csv", help="Table of measured runs.")],
    out: Annotated[Path, typer.Option("--out", metavar="C.json", help="Calibration to write.")],
    models: ModelsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Learn from measured runs, from a single one on; --calibration of other commands takes it."""
    from datetime import date

    from studies.accuracy import read_table
    from studies.calibrating import calibrate
    from surrogate.calibration import write_calibration

    output = Output(as_json)
    calibration, report = calibrate(read_table(runs, models), runs, date.today().isoformat())
    write_calibration(out, calibration)
    if as_json:
        output.result({**report, "file": str(out)})
    else:
        show_report(output, report)
        output.say(f"written to {out}")


def show_report(output: Output, report: dict[str, Any]) -> None:
    """Prints before, after, what moved and which runs disagree."""
    before, after = report["before"], report["after"]
    output.say(
        f"{report['runs']} runs: before, projections are off by {before['mape']:.1%} on average "
        f"(bias {before['bias']:+.1%}); after, each run judged by the others alone, by "
        f"{after['mape']:.1%} (bias {after['bias']:+.1%})"
    )
    if report["skipped"]:
        output.say(f"{len(report['skipped'])} rows cannot be used, for example:")
        output.say(*(f"  {e['run_id']}: {e['reason']}" for e in report["skipped"][:5]))
    output.table(
        "",
        ("GPU | framework | model", "runs", "before", "after"),
        [
            (k["key"], k["runs"], f"{k['before']['mape']:.1%}",
             f"{k['after']['mape']:.1%}" if k["after"] else "")
            for k in sorted(report["keys"], key=lambda k: -k["runs"])[:TOLD]
        ],
    )  # fmt: skip
    if report["moved"]:
        output.table(
            "constants that moved, and why: so many runs depend on them",
            ("constant", "GPU", "framework", "factor", "moves a run by up to", "runs"),
            [
                (m["constant"], m["gpu"], m["framework"], f"{m['factor']:.3f}",
                 f"{m['largest_effect']:.1%}", m["runs"])
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
