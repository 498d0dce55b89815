"""``foretune bench toolbox``: keep rules on recorded noise, planners on a measured factorial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.cli.common import JsonOption, Output


def bench_toolbox_command(
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            metavar="FILE",
            help="Measured factorial (JSON lines); the shipped one of a CPU without it.",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            "--measure",
            metavar="STUDY",
            help="Measure every bundle of a toolbox study into --table first; goes on where it "
            "was stopped.",
            show_default=False,
        ),
    ] = None,
    copies: Annotated[
        bool,
        typer.Option(
            "--copies",
            help="Measure copies of the baseline alone: how noisy this machine is.",
        ),
    ] = False,
    blocks: Annotated[
        int, typer.Option("--blocks", min=2, help="Restarts of each bundle that are measured.")
    ] = 3,
    clock: Annotated[
        str, typer.Option("--clock", help="Times to replay: cpu_s or wall_s.")
    ] = "cpu_s",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Bundles a planner may try.")] = 12,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Replays of each planner.")] = 100,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Keep-or-revert trace (CSV) to judge; ROCKET's published one without it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How often keep rules err, and what planners find and cost, without a GPU."""
    from dataclasses import asdict

    from specs.errors import InputError
    from studies.toolbox.bench import bench_toolbox, measure_table
    from studies.toolbox.factorial import shipped_table

    output = Output(as_json)
    if measure is not None:
        if table is None:
            raise InputError("--measure needs --table FILE to write to.")
        measure_table(measure, table, blocks, copies, output.progress, output.step)
    content = bench_toolbox(table or shipped_table(), trace, clock, trials, seeds, output.progress)
    if as_json:
        plain = {
            "trace": [asdict(step) for step in content["trace"]],
            "planners": {
                noise: [asdict(one) for one in scores]
                for noise, scores in content["planners"].items()
            },
        }
        output.result(content | plain)
        return
    output.table(
        "keep rules on recorded noise (1,000 resampled series each)",
        ("noise", "rule", "keeps a copy", "keeps a true +5%", "blocks", "of a copy"),
        [
            (
                n["noise"],
                n["rule"],
                f"{n['copy']:.1%}",
                f"{n['gain']:.1%}",
                n["blocks"],
                n["copy_blocks"],
            )
            for n in content["rules"]
        ],
    )
    output.table(
        f"published trace: {content['stands']} of {len(content['trace'])} decisions stand, "
        f"{content['idle']} measured nothing",
        ("tool", "ratio", "its verdict", "our verdict", "at least"),
        [
            (
                step.tool,
                step.ratio,
                "kept" if step.accepted else "rejected",
                step.verdict.value,
                step.lower,
            )
            for step in content["trace"]
        ],
    )
    best = content["best"]
    output.say(
        "",
        f"factorial: {content['bundles']} bundles, {clock}; best {best['bundle']}: "
        f"{best['ratio']:.3f} times the baseline",
    )
    for noise, scores in content["planners"].items():
        output.table(
            f"planners replayed with {noise}: {trials} trials, {seeds} seeds",
            (
                "planner", "regret", "worst", "95% found", "s to 95%", "s in all", "false keeps",
            ),
            [
                (
                    s.planner, f"{s.regret:.1%}", f"{s.worst_regret:.1%}", f"{s.found:.0%}",
                    s.near_s, s.cost_s, f"{s.false_keep_rate:.1%}",
                )
                for s in scores
            ],
        )  # fmt: skip
    output.say(
        "regret: share of the best bundle's speed that the final stack lacks; false keeps: share "
        "of keep verdicts on bundles that are truly below the threshold."
    )
