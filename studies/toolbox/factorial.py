"""A full factorial: every bundle of a small toolbox measured once, with raw repeats, for replays.

One line a bundle and block. Within a block all bundles are measured beside the same two copies of
the baseline; every block starts all processes anew. The baseline as the only bundle gives three
copies of one program: the noise of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np

from specs.errors import InputError
from studies.progress import Tell
from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.decision import Floats, contrasts
from studies.toolbox.measurement import ARMS, interleaved
from studies.toolbox.process import Launch, Worker, WorkerError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Cell:
    """A bundle's runs in one block, under one clock, and what it cost to get there.

    ``seconds`` holds the paired times of base, control and candidate; ``preparing_s`` is starting,
    compiling and warming up.
    """

    seconds: dict[str, Floats]
    preparing_s: float

    @property
    def ratios(self) -> Floats:
        """Log ratios of both copies of the base over the candidate."""
        return contrasts(*(self.seconds[arm] for arm in ARMS))[0]

    @property
    def control(self) -> Floats:
        """Log ratios of the base over its copy."""
        return contrasts(*(self.seconds[arm] for arm in ARMS))[1]

    @property
    def cost_s(self) -> float:
        """Seconds that measuring this block took."""
        return self.preparing_s + float(sum(times.sum() for times in self.seconds.values()))


Table = dict[Bundle, list[Cell]]


def shipped_table() -> Traversable:
    """The factorial that was measured on a CPU; how is in docs/toolbox.md."""
    return resources.files("studies.toolbox") / "data" / "factorial_cpu.jsonl"


def shipped_copies() -> Traversable:
    """Three copies of one baseline in each block, on a CPU that others use."""
    return resources.files("studies.toolbox") / "data" / "copies_cpu.jsonl"


def read_table(path: Path | Traversable, clock: str) -> Table:
    """Reads a factorial under one clock (``wall_s`` or ``cpu_s``).

    Raises:
        InputError: it is no such table.
    """
    table: Table = {}
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if "failure" in row:
                    continue
                seconds = {arm: np.asarray(row[clock][arm], float) for arm in ARMS}
                cell = Cell(seconds, float(row["preparing_s"]))
                table.setdefault(Bundle.of(row["bundle"]), []).append(cell)
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} is no factorial of the toolbox: {error}.") from None
    if not table:
        raise InputError(f"{path} holds no measured bundle.")
    return table


def measure_factorial(
    launch: Launch,
    bundles: Iterable[Bundle],
    blocks: int,
    pairs: int,
    path: Path,
    advance: Callable[[int], None],
    tell: Tell,
) -> None:
    """Measures what the file does not hold yet and appends it, one line a bundle and block."""
    held = _held(path)
    generator = np.random.default_rng([launch.seed, 11])
    chosen = list(bundles)
    for block in range(blocks):
        left = [b for b in chosen if (str(b), block) not in held]
        advance(len(chosen) - len(left))
        if not left:
            continue
        with Worker(launch, BASELINE) as base, Worker(launch, BASELINE) as control:
            for worker in (base, control):
                worker.ask("warm_up")
            for index in generator.permutation(len(left)):
                tell(f"block {block + 1} of {blocks}: {left[index]}")
                row = _cell(launch, left[index], base, control, pairs, generator)
                _append(path, row | {"block": block})
                advance(1)


def _cell(
    launch: Launch,
    bundle: Bundle,
    base: Worker,
    control: Worker,
    pairs: int,
    generator: np.random.Generator,
) -> dict[str, Any]:
    """One bundle beside the running baselines."""
    row: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "bundle": bundle.as_json()}
    try:
        with Worker(launch, bundle) as candidate:
            warm_up = candidate.ask("warm_up")
            arms = {"base": base, "control": control, "candidate": candidate}
            runs, _ = interleaved(arms, pairs, generator)
            row["preparing_s"] = round(candidate.facts["start_s"] + sum(warm_up["times_s"]), 3)
    except WorkerError as error:
        return row | {"failure": str(error)}
    row["load_average"] = round(float(np.mean([r["load_average"] for r in runs["base"]])), 2)
    for clock in ("wall_s", "cpu_s"):
        row[clock] = {arm: [round(r[clock], 6) for r in runs[arm]] for arm in ARMS}
    return row


def _held(path: Path) -> set[tuple[str, int]]:
    """Bundles and blocks that a file holds."""
    if not path.exists():
        return set()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(str(Bundle.of(row["bundle"])), row["block"]) for row in rows}


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
