"""Runs the projection of an installed Primus and reads what it prints.

``primus-cli direct -- projection memory|performance`` (AMD-AGI/Primus, primus/cli/subcommands/
projection.py). In simulate mode it needs no GPU; in benchmark mode it measures layers on this node
and scales them up. Nothing of Primus is imported here.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from collectors.launchers.launch import Ended, Ending, Launch
from collectors.launchers.local import Local
from collectors.launchers.watching import run
from collectors.text import grouped_number
from specs.errors import InputError

PROGRAM, CHECKOUT = "primus-cli", "PRIMUS_PATH"
"""The program, and the variable that names the checkout it lies in."""
TAIL_BYTES = 4 << 20
"""Of a log that is read: the numbers stand at its end."""
LARGEST_DISAGREEMENT = 0.05
"""Its tokens/s and its iteration time are rounded; further apart they are of two configs."""
POLL_S = 0.2
ARCHITECTURES = {"MI300X": "mi300x", "MI325X": "mi325x", "MI355X": "mi355x"}
"""GPUs that it has a compute profile for (simulation_backends/origami_backend.py)."""

_NUMBER = r"(\d[\d,]{0,20}(?:\.\d{1,9})?)"
_ITERATION = re.compile(rf"Iteration Time:\s{{0,9}}{_NUMBER}\s{{0,9}}ms")
_SPEED = re.compile(rf"Tokens/s/GPU:\s{{0,9}}{_NUMBER}")
_MEASURED_MEMORY = re.compile(rf"Point estimate \(per rank\):\s{{0,9}}{_NUMBER} GB")
_MEMORY = re.compile(rf"Projected Total Memory:\s{{0,9}}{_NUMBER} GB")
_ERROR = re.compile(r"^\s*(\w{1,60}(?:Error|Exception)\b.*)$", re.MULTILINE)


class Mode(StrEnum):
    """Where its layer times come from: a model of the GPU, or this node."""

    SIMULATE = "simulate"
    BENCHMARK = "benchmark"

    @property
    def time_limit_s(self) -> float:
        """Seconds after which a call hangs: simulating takes seconds, benchmarking minutes."""
        return 300.0 if self is Mode.SIMULATE else 3600.0


class PrimusError(Exception):
    """Primus gave no projection; one sentence says why."""


@dataclass(frozen=True, slots=True)
class PrimusProjection:
    """What Primus projects for a config, before any correction.

    ``peak_gib`` is that of rank 0; ``measured`` tells whether it rests on a benchmark of this node.
    """

    tokens_per_s_per_gpu: float
    step_time_s: float
    peak_gib: float
    measured: bool


@dataclass(frozen=True, slots=True)
class PrimusRequest:
    """A config to project.

    Attributes:
        experiment: its Primus YAML.
        folder: of the logs.
        gpu: catalog name of the GPU.
        nodes, gpus_per_node: the cluster.
        tokens_per_step: global batch size times sequence length.
        options: further options of ``projection performance``.
    """

    experiment: Path
    folder: Path
    gpu: str
    nodes: int
    gpus_per_node: int
    tokens_per_step: int
    options: tuple[str, ...] = ()


def find_primus() -> Path:
    """The program ``primus-cli``: on the path, or in the checkout that PRIMUS_PATH names.

    Raises:
        InputError: it is not installed.
    """
    found = shutil.which(PROGRAM)
    checkout = os.environ.get(CHECKOUT)
    candidates = [Path(checkout) / PROGRAM, Path(checkout) / "runner" / PROGRAM] if checkout else []
    for path in (*([Path(found)] if found else []), *candidates):
        if path.is_file() and os.access(path, os.X_OK):
            return path.absolute()
    raise InputError(
        f"{PROGRAM} is neither on the PATH nor in the checkout that {CHECKOUT} names; install "
        "Primus, or leave out --oracle primus."
    )


def project(program: Path, request: PrimusRequest, mode: Mode) -> PrimusProjection:
    """What Primus projects for a config.

    Raises:
        PrimusError: it crashed, hung, ran out of memory, or printed no projection.
    """
    if request.gpu not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise PrimusError(f"Primus projects {known}, not {request.gpu}.")
    artifact = request.folder / "primus_benchmark.json"
    speed = _output(program, request, mode, "performance", _performance(request, mode, artifact))
    memory = _output(program, request, mode, "memory", _memory(mode, artifact))
    step_time_s = _last(_ITERATION, speed, "iteration time") / 1e3
    tokens_per_s_per_gpu = _last(_SPEED, speed, "tokens/s/GPU")
    gpus = request.nodes * request.gpus_per_node
    implied = request.tokens_per_step / step_time_s / gpus
    if abs(tokens_per_s_per_gpu / implied - 1) > LARGEST_DISAGREEMENT:
        raise PrimusError(
            f"Primus prints {tokens_per_s_per_gpu:,.0f} tokens/s/GPU, but its iteration time means "
            f"{implied:,.0f} for {gpus} GPUs: it projected another batch or cluster."
        )
    measured = mode is Mode.BENCHMARK
    peak_gib = _last(_MEASURED_MEMORY if measured else _MEMORY, memory, "memory")
    return PrimusProjection(tokens_per_s_per_gpu, step_time_s, peak_gib, measured)


def _performance(request: PrimusRequest, mode: Mode, artifact: Path) -> list[str]:
    options = ["--profiling-mode", mode, "--gpu-arch", ARCHITECTURES[request.gpu]]
    if mode is Mode.BENCHMARK:
        options += ["--benchmark-gpus", str(request.gpus_per_node)]
        options += ["--save-benchmark", str(artifact.absolute())]
    return [*options, *request.options]


def _memory(mode: Mode, artifact: Path) -> list[str]:
    """One benchmark serves both: the memory is projected from what the first call saved."""
    options = ["--memory-mode", str(mode)]
    if mode is Mode.BENCHMARK:
        options += ["--load-benchmark", str(artifact.absolute())]
    return options


def _output(
    program: Path, request: PrimusRequest, mode: Mode, suite: str, options: list[str]
) -> str:
    """What ``projection SUITE`` prints.

    Raises:
        PrimusError: it did not finish.
    """
    # Without the nodes of the target its dp becomes 0 and it divides by it; a benchmark runs here.
    nodes = 1 if mode is Mode.BENCHMARK else request.nodes
    launch = Launch(
        name=f"primus-{suite}",
        folder=request.folder.absolute(),
        command=(
            *(str(program), "direct", "--", "projection", suite),
            *("--config", str(request.experiment.absolute())),
            *("--target-nodes", str(request.nodes), *options),
        ),
        time_limit_s=mode.time_limit_s,
        environment={
            "NNODES": str(nodes),
            "GPUS_PER_NODE": str(request.gpus_per_node),
            "PRIMUS_GPU_ARCH": ARCHITECTURES[request.gpu],
        },
    )
    request.folder.mkdir(parents=True, exist_ok=True)
    end = run(Local(), launch, POLL_S)
    text = _tail(end.log)
    if end.ending is not Ending.FINISHED:
        raise PrimusError(_why(suite, end, text))
    return text


def _tail(log: Path) -> str:
    """The end of a log as text; empty where there is none."""
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - TAIL_BYTES, 0))
        return file.read().decode("utf-8", "replace")


def _why(suite: str, end: Ended, text: str) -> str:
    """Why a call failed: the last error that it printed, or how it ended."""
    errors = _ERROR.findall(text)
    said = f": {errors[-1].strip()[:200]}" if errors else ""
    return f"Primus' projection of {suite} {end.ending}{said} ({end.reason.rstrip('.')})."


def _last(pattern: re.Pattern[str], text: str, what: str) -> float:
    """The last number of its kind: that of the target cluster.

    Raises:
        PrimusError: there is none, or it is not above 0.
    """
    found = pattern.findall(text)
    number = grouped_number(found[-1]) if found else 0.0
    if not number > 0:
        raise PrimusError(f"Primus finished without a line that tells its {what}.")
    return number
