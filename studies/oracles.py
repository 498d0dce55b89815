"""Oracles: what evaluates a trial. The surrogate is the first; others adapt real measurements."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

import numpy as np

from specs.config import ConfigTable, TrainingConfig
from studies.job import Job
from surrogate.projection import projection_json

UNKNOWN_OVER_GIB = 1.0
"""Constraint of an OOM: how much was missing is not known, only that it is above 0."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an oracle says of one config.

    ``tokens_per_s_per_gpu`` is the value of the trial; ``memory_gib`` is the constraint, GiB above
    what the GPU holds (0 or less: it fits); ``fit_probability`` is 1 or 0 where it was measured;
    ``details`` is readable JSON: the projection or the
    measurement behind the two; ``cost_s`` is what it took to find out.
    """

    tokens_per_s_per_gpu: float
    memory_gib: float
    fit_probability: float
    details: dict[str, Any]
    cost_s: float


@dataclass(frozen=True, slots=True)
class Crash:
    """The oracle itself failed on a config; ``reason`` is one sentence."""

    reason: str
    cost_s: float


class Oracle(Protocol):
    """Evaluates one config at a time.

    ``name`` is what ``--oracle`` calls it. ``fingerprint`` changes whenever the same config could
    get another value: trials of different fingerprints never share a study.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def evaluate(self, config: TrainingConfig) -> Evaluation | Crash:
        """What the config is worth; a failure of the oracle itself is a Crash, never raised."""
        ...


def data_fingerprint() -> str:
    """A hash of the fitted facts that ship with the surrogate: another fit, other values."""
    digest = hashlib.sha256()
    folder = resources.files("surrogate") / "data"
    for entry in sorted(folder.iterdir(), key=lambda item: item.name):
        if entry.is_file():
            digest.update(entry.name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class SurrogateOracle:
    """The surrogate as an oracle: what it projects is what the trial is worth."""

    name = "surrogate"

    def __init__(self, job: Job) -> None:
        self._job = job
        self.fingerprint = data_fingerprint() + learned_fingerprint(job)

    def evaluate(self, config: TrainingConfig) -> Evaluation:
        """The projection of the config, with breakdown and memory by stage."""
        started = time.perf_counter()
        content = projection(self._job, config)
        over_gib = content["memory"]["peak_gib"] - content["memory"]["capacity_gib"]
        if over_gib <= 0 and not content["memory"]["fits"]:  # as runs out of memory showed
            over_gib = UNKNOWN_OVER_GIB
        return Evaluation(
            tokens_per_s_per_gpu=content["throughput"]["tokens_per_s_per_gpu"],
            memory_gib=over_gib,
            fit_probability=content["memory"]["fit_probability"],
            details={"projection": content, **at_a_glance(content)},
            cost_s=time.perf_counter() - started,
        )


def learned_fingerprint(job: Job) -> str:
    """A hash of what a job's node or runs taught beyond the package; empty where nothing did."""
    if job.learned is None:
        return ""
    runs = job.learned.calibration
    constants = sorted(job.learned.constants.log_values.items())
    peaks = runs.peaks.errors.tolist()
    facts = [constants, runs.run_ids, runs.errors.tolist(), runs.peaks.run_ids, peaks]
    if runs.peaks.out_of_memory:
        facts.append(runs.peaks.out_of_memory_json())
    return "-" + hashlib.sha256(repr(tuple(facts)).encode()).hexdigest()[:8]


def at_a_glance(content: Mapping[str, Any]) -> dict[str, float | str]:
    """The few numbers of a projection that tables of trials show, rounded for reading."""
    speed, memory = content["throughput"], content["memory"]
    low, high = speed["interval90"]
    return {
        "interval90": f"{low:,.0f} to {high:,.0f}",
        "step_time_s": float(f"{speed['step_time_s']:.4g}"),
        "mfu": round(speed["mfu"], 3),
        "peak_gib": round(memory["peak_gib"], 1),
        "trust": str(speed["trust"]),
    }


def projection(job: Job, config: TrainingConfig) -> dict[str, Any]:
    """Memory and throughput of one config as the JSON of ``project`` holds them.

    The probability to fit is given what ran out of memory on this very job.
    """
    cases = job.cases(ConfigTable.from_configs([config]))
    content = projection_json(cases, 0, job.belief.constants, job.belief)
    memory = content["memory"]
    fits = job.belief.peaks().fit_probability(cases, np.array([memory["peak_gib"]]))
    memory |= {"fits": bool(fits[0] >= 0.5), "fit_probability": float(fits[0])}
    return {"memory": memory, "throughput": content["throughput"]}
