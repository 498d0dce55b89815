"""``foretune calibrate``: learn from measured runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from studies.cli.common import JsonOption, Output
from studies.cli.validate import ModelsOption

TOLD = 12
"""Moved constants, keys and disagreeing runs that are printed."""
TORN = 1.5
"""Scatter of the runs of a key over the usual one from which it is said that they contradict each
other."""


def calibrate_command(
    out: Annotated[Path, typer.Option("--out", metavar="C.json", help="Calibration to write.")],
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="R.csv", help="Table of measured runs.")
    ] = None,
    models: ModelsOption = None,
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
    from surrogate.calibration import write_calibration

    output, today = Output(as_json), date.today().isoformat()
    if runs is not None:
        table = read_table(runs, models)
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
        show_report(output, report)
        output.say(f"written to {out}")


def _before_after(words: str, report: Mapping[str, Any]) -> str:
    """Errors before and after in one sentence."""
    before, after = report["before"], report["after"]
    return (
        f"{words} off by {before['mape']:.1%} on average (bias {before['bias']:+.1%}); after, each "
        f"judged by the others alone, by {after['mape']:.1%} (bias {after['bias']:+.1%})"
    )


def show_report(output: Output, report: dict[str, Any]) -> None:
    """Prints before, after, what moved and which runs disagree."""
    if report["runs"]:
        output.say(_before_after(f"{report['runs']} runs: before, projections are", report))
    if report["skipped"]:
        output.say(f"{len(report['skipped'])} rows cannot be used, for example:")
        output.say(*(f"  {e['run_id']}: {e['reason']}" for e in report["skipped"][:5]))
    output.table(
        "",
        ("GPU | framework | model", "runs", "before", "after", "scatter"),
        [
            (k["key"], k["runs"], f"{k['before']['mape']:.1%}",
             f"{k['after']['mape']:.1%}" if k["after"] else "",
             f"x {k['scatter']:.2f}" if k["runs"] > 1 else "")
            for k in sorted(report["keys"], key=lambda k: -k["runs"])[:TOLD]
        ],
    )  # fmt: skip
    memory = report["memory"]
    if memory["peaks"]:
        output.say(_before_after(f"{memory['peaks']} peaks of memory: before, they are", memory))
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
