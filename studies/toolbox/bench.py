"""The benchmark of the toolbox: keep rules on recorded noise, planners on a measured factorial."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from studies.files import checked_file
from studies.progress import Progress, Tell, untold
from studies.toolbox.bundle import BASELINE
from studies.toolbox.decision import Rule
from studies.toolbox.experts import EXPERTS
from studies.toolbox.factorial import Table, measure_factorial, read_table, shipped_copies
from studies.toolbox.noise import (
    KeepRates,
    copies_keep_rates,
    keep_rates,
    null_knob,
    paired_keep_rates,
    rocket_keep_rate,
)
from studies.toolbox.planners import PLANNERS
from studies.toolbox.process import Worker
from studies.toolbox.replay import ROCKET, control_ratios, copies, score, three_copies, truth
from studies.toolbox.request import read_request
from studies.toolbox.rocket import judge_trace, published_trace
from studies.toolbox.runtime import Host
from studies.toolbox.space import ToolSpace
from studies.toolbox.study import check_torch, launch_of
from studies.toolbox.verdicts import Verdict

SERIES = 1000
OurRates = Callable[[float, int], KeepRates]
RocketRate = Callable[[float, int], float]
GAIN = 0.05
"""True gain that a rule should see."""


def bench_toolbox(
    table: Path | Traversable,
    trace: Path | None,
    clock: str,
    trials: int,
    seeds: int,
    progress: Progress,
) -> dict[str, Any]:
    """Everything the benchmark finds; ``planners`` (by noise) and ``trace`` hold dataclasses.

    Raises:
        InputError: a file cannot be read.
    """
    measured, rule = read_table(table, clock), Rule()
    # No model is asked here: experts of known quality take its place.
    names = (*(name for name in PLANNERS if name != "llm"), *EXPERTS, ROCKET)
    noises = {"a quiet GPU (MI300X null knob)": null_knob(), f"its own noise, {clock}": None}
    with progress("replaying", len(noises) * len(names) * seeds) as advance:
        planners = {
            noise: [
                score(
                    measured,
                    name,
                    rule,
                    len(measured) if name == "exhaustive" else trials,
                    seeds,
                    advance,
                    recorded,
                )
                for name in names
            ]
            for noise, recorded in noises.items()
        }
    steps = judge_trace(trace or published_trace(), rule)
    known = truth(measured)
    best = max(known, key=lambda bundle: known[bundle])
    return {
        "rules": _rules(rule, measured, clock),
        "trace": steps,
        "stands": sum(step.stands for step in steps),
        "idle": sum(step.verdict is Verdict.NO_EFFECT for step in steps),
        "bundles": len(known),
        "best": {"bundle": str(best), "ratio": math.exp(known[best])},
        "planners": planners,
    }


def _rules(rule: Rule, table: Table, clock: str) -> list[dict[str, Any]]:
    """Keep rates of our rule and of ROCKET's on recorded noise of identical programs."""
    knob, pairs, raw = null_knob(), control_ratios(table), copies(table)
    busy = read_table(shipped_copies(), clock)
    three, raw_busy = three_copies(busy), copies(busy)
    rows = []
    sources: tuple[tuple[str, OurRates, RocketRate], ...] = (
        (
            "MI300X null knob",
            lambda gain, seed: keep_rates(knob, gain, rule, SERIES, seed),
            lambda gain, seed: rocket_keep_rate(knob, gain, SERIES, seed),
        ),
        (
            f"three copies on a busy CPU, {clock}",
            lambda gain, seed: copies_keep_rates(three, gain, rule, SERIES, seed),
            lambda gain, seed: rocket_keep_rate(raw_busy, gain, SERIES, seed),
        ),
        (
            f"copies in the table, {clock}",
            lambda gain, seed: paired_keep_rates(pairs, gain, rule, SERIES, seed),
            lambda gain, seed: rocket_keep_rate(raw, gain, SERIES, seed),
        ),
    )
    for noise, ours, rocket in sources:
        copy, gained = ours(0.0, 1), ours(GAIN, 2)
        known = {"noise": noise, "rule": "ours", "copy": copy.keep, "gain": gained.keep}
        rows.append(known | {"copy_blocks": copy.blocks, "blocks": gained.blocks})
        known = {"noise": noise, "rule": "mean of 3 at 1.02"}
        rows.append(
            known
            | {"copy": rocket(0.0, 1), "gain": rocket(GAIN, 2), "copy_blocks": 1.0, "blocks": 1.0}
        )
    return rows


def measure_table(
    study: str, path: Path, blocks: int, copies: bool, progress: Progress, tell: Tell = untold
) -> None:
    """Measures every legal bundle of a study into a table, or a third copy of its baseline alone.

    Raises:
        InputError: the study cannot be used, the file not written, or torch is missing.
    """
    check_torch()
    checked_file(path, "--table", [study])
    request = read_request(study, {})
    launch = launch_of(request, path.parent / f"{path.stem}_workers")
    with Worker(launch, BASELINE) as worker:
        host = Host(**worker.facts["host"])
    space = ToolSpace(request.axes, host, request.work, request.lossy_budget)
    bundles = [BASELINE] if copies else space.bundles
    with progress("measuring", len(bundles) * blocks) as advance:
        measure_factorial(launch, bundles, blocks, request.pairs, path, advance, tell)
    shutil.rmtree(launch.compiled, ignore_errors=True)
