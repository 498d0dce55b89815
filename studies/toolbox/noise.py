"""How often a keep rule errs, on recorded noise: series are resampled from raw repeats.

A table of noise holds, for each operating point, the raw times of several processes that run the
same program. A resampled series draws for every arm of every block one of the processes and from it
the runs, so that the difference between processes is in it. A true gain divides the candidate's
times.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from studies.toolbox.decision import Rule, contrasts, judge
from studies.toolbox.verdicts import Verdict

Floats = NDArray[np.float64]
Block = Callable[[], Floats]
"""Draws the log times of base, control and candidate in one block, shape (3, rounds)."""

ROCKET_RUNS = 3
ROCKET_KEEPS_AT = 1.02
"""Rule of KMaruthi2002/rocket, orchestrator.py: the mean of 3 runs at 1.02 of a stored baseline."""


@dataclass(frozen=True, slots=True)
class KeepRates:
    """Shares of the series in which a rule keeps, drops, or ends otherwise, and blocks it took."""

    keep: float
    drop: float
    other: float
    blocks: float


def null_knob() -> dict[str, list[Floats]]:
    """Raw latencies of vLLM on one MI300X at two ``gpu_mem_util`` that change nothing.

    Operating point to the runs of its processes. Source: column ``source`` of the table.
    """
    return read_null_knob(resources.files("studies.toolbox") / "data" / "mi300x_null_knob.csv")


def read_null_knob(path: Path | resources.abc.Traversable) -> dict[str, list[Floats]]:
    """Reads a table with the columns batch, isl, osl and raw_s (times joined by ``;``).

    Raises:
        InputError: a column is missing or a time is not above 0.
    """
    points: dict[str, list[Floats]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not {"batch", "isl", "osl", "raw_s"} <= set(row):
                raise InputError(f"{path} needs the columns batch, isl, osl and raw_s.")
            times = np.array([float(text) for text in row["raw_s"].split(";")])
            if times.min() <= 0:
                raise InputError(f"{path} has a time that is not above 0.")
            point = f"batch {row['batch']}, {row['isl']}+{row['osl']} tokens"
            points.setdefault(point, []).append(times)
    return points


def keep_rates(
    noise: Mapping[str, Sequence[Floats]], gain: float, rule: Rule, series: int, seed: int
) -> KeepRates:
    """What the rule does with candidates that are truly ``gain`` faster (0: identical copies)."""
    generator = np.random.default_rng(seed)
    points = list(noise.values())

    def one_series() -> Block:
        processes = points[generator.integers(len(points))]
        return lambda: np.log([_runs(processes, rule.pairs, generator) for _ in range(3)])

    return _rates([_judged(one_series(), gain, rule) for _ in range(series)])


def copies_keep_rates(
    copies: Sequence[Floats], gain: float, rule: Rule, series: int, seed: int
) -> KeepRates:
    """The same where three copies were recorded in rounds: times (3, rounds), one array a block.

    A series draws for every block one that was recorded and rounds of it; which copy plays the
    base, the control or the candidate is drawn too. What disturbed a round disturbs all three.
    """
    generator = np.random.default_rng(seed)

    def block() -> Floats:
        recorded = generator.permutation(copies[int(generator.integers(len(copies)))])
        chosen = generator.integers(recorded.shape[1], size=rule.pairs)
        return np.asarray(np.log(recorded[:, chosen]))

    return _rates([_judged(block, gain, rule) for _ in range(series)])


def paired_keep_rates(
    ratios: Sequence[Floats], gain: float, rule: Rule, series: int, seed: int
) -> KeepRates:
    """The same where two copies were recorded: their log ratios, one array a block.

    A series draws for every block the rounds of one recorded block as its candidate and those of
    another as its control, in either direction: harder than it is, for the candidate then shares
    nothing with the copies that it is compared with.
    """
    generator = np.random.default_rng(seed)

    def drawn() -> Floats:
        chosen = ratios[int(generator.integers(len(ratios)))]
        return np.asarray(generator.choice(chosen, rule.pairs) * generator.choice([-1.0, 1.0]))

    def block() -> Floats:
        return np.stack([np.zeros(rule.pairs), drawn(), drawn()])

    return _rates([_judged(block, gain, rule) for _ in range(series)])


def _judged(block: Block, gain: float, rule: Rule) -> tuple[Verdict, int]:
    """The verdict on one series and the blocks it took; ``block`` draws log times of three arms."""
    blocks: list[Floats] = []
    control: list[Floats] = []
    verdict = None
    while verdict is None:
        base, copy, other = np.exp(block())
        ratios, copies = contrasts(base, copy, other / (1 + gain))
        blocks.append(ratios)
        control.append(copies)
        verdict = judge(blocks, control, rule).verdict
    return verdict, len(blocks)


def _rates(ends: Sequence[tuple[Verdict, int]]) -> KeepRates:
    verdicts = np.array([verdict for verdict, _ in ends])
    keep = float((verdicts == Verdict.KEEP).mean())
    drop = float((verdicts == Verdict.DROP).mean())
    return KeepRates(keep, drop, 1 - keep - drop, float(np.mean([blocks for _, blocks in ends])))


def _runs(processes: Sequence[Floats], runs: int, generator: np.random.Generator) -> Floats:
    """Runs of one process, drawn at random."""
    process = processes[int(generator.integers(len(processes)))]
    return generator.choice(process, runs)


def rocket_keep_rate(
    noise: Mapping[str, Sequence[Floats]], gain: float, series: int, seed: int
) -> float:
    """How often ROCKET's rule keeps the same candidates."""
    generator = np.random.default_rng(seed)
    points = list(noise.values())
    kept = 0
    for _ in range(series):
        processes = points[int(generator.integers(len(points)))]
        base = _runs(processes, ROCKET_RUNS, generator).mean()
        other = _runs(processes, ROCKET_RUNS, generator).mean() / (1 + gain)
        kept += bool(base / other >= ROCKET_KEEPS_AT)
    return kept / series
