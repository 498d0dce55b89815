"""Primus' own projection as the oracle of a study, with its known optimism taken off."""

from __future__ import annotations

import hashlib
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collectors.primus_runner import (
    Mode,
    PrimusError,
    PrimusProjection,
    PrimusRequest,
    find_primus,
    project,
)
from search.distributions import config_key
from specs.choices import MoeDispatcher, Schedule
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.primus.writer import write_experiment, write_yaml
from studies.job import Job
from studies.oracles import Crash, Evaluation, projection
from studies.report.facts import MeasuredConfig
from surrogate.calibration import PROJECTION_BIAS, PROJECTION_BIAS_SD
from surrogate.uncertainty import GAUSSIAN_90

RUN_SD = 0.05
"""Log sd of a measured run around Primus' projection, its bias aside. Assumed: between the spread
of like runs (2 to 6%) and that of its published comparisons."""
SCHEDULES = {
    Schedule.ZB_H1: "zerobubble",
    Schedule.ZB_HEURISTIC: "zerobubble-heuristic",
    Schedule.ZBV: "zbv-formatted",
    Schedule.V_HALF: "zbv-greedy-half",
    Schedule.V_MIN: "zbv-greedy-min",
}
"""Ours -> --pipeline-schedule-algorithm; 1F1B and interleaved are its ``auto``."""


@dataclass(frozen=True, slots=True)
class Bias:
    """Log of what runs measure over what Primus projects: normal, with this mean and sd.

    Before any run it is Primus' documented optimism: +1.6% on its own BF16 reference of Mixtral
    8x22B and +11.5% on the FP8 winner, hence -10% with an sd of 10%.
    """

    mean: float = PROJECTION_BIAS
    sd: float = PROJECTION_BIAS_SD
    runs: int = 0

    def after(self, log_errors: list[float]) -> Bias:
        """The same after runs that measured this much more (log) than was projected."""
        if not log_errors:
            return self
        before, told = 1 / self.sd**2, len(log_errors) / RUN_SD**2
        centre = sum(log_errors) / len(log_errors)
        mean = (before * self.mean + told * centre) / (before + told)
        return Bias(mean, math.sqrt(1 / (before + told)), self.runs + len(log_errors))

    @property
    def half_width(self) -> float:
        """Half of the 90% interval of the log of a run."""
        spread = self.sd if self.runs == 0 else math.hypot(self.sd, RUN_SD)
        return GAUSSIAN_90 * spread


@dataclass(frozen=True)
class PrimusOracle:
    """Projects configs with an installed Primus, one at a time, each in a folder of its own.

    Throughput is Primus' after ``bias``. Memory is Primus' where it was measured on this node;
    what it simulates is only noted, for it is that of rank 0 without tensor parallelism.
    """

    job: Job
    folder: Path
    program: Path
    mode: Mode = Mode.SIMULATE
    bias: Bias = Bias()
    name: str = "primus"

    @property
    def fingerprint(self) -> str:
        """Changes with the mode, the program and what runs have said of its bias."""
        about = f"{self.mode} {self.program} {self.bias.mean:.6f} {self.bias.sd:.6f}"
        return hashlib.sha256(about.encode()).hexdigest()[:16]

    def evaluate(self, config: TrainingConfig) -> Evaluation | Crash:
        """What the config is worth."""
        started = time.monotonic()
        try:
            found = self.raw(config)
        except (PrimusError, InputError) as error:
            return Crash(str(error), time.monotonic() - started)
        content = projection(self.job, config)
        capacity_gib = self.job.cluster.gpu.hbm_gib.value
        memory = content["memory"]
        over_gib, fits = memory["peak_gib"] - memory["capacity_gib"], memory["fit_probability"]
        if found.measured:
            over_gib = found.peak_gib - capacity_gib
            fits = float(over_gib <= 0)
        says = self.corrected(found)
        return Evaluation(
            tokens_per_s_per_gpu=says["tokens_per_s_per_gpu"],
            memory_gib=over_gib,
            fit_probability=fits,
            details={"projection": content, "primus": says},
            cost_s=time.monotonic() - started,
        )

    def raw(self, config: TrainingConfig) -> PrimusProjection:
        """What Primus says, uncorrected.

        Raises:
            PrimusError: it gave no projection, or one that is known to be wrong.
            InputError: Primus has no keys for the config.
        """
        job = self.job
        workload, cluster = job.experiment.workload, job.cluster
        if config.cp > 1 and workload.model.is_moe:
            raise PrimusError(
                "Primus' projection takes context parallelism of MoE models for free; it is not "
                "asked."
            )
        folder = self.folder / f"primus_{config_key(config)}"
        request = PrimusRequest(
            experiment=self._written(config, folder / "experiment.yaml"),
            folder=folder,
            gpu=cluster.gpu.name,
            nodes=cluster.num_nodes,
            gpus_per_node=cluster.gpus_per_node,
            tokens_per_step=workload.global_batch_size * workload.seq_len,
            options=options_of(config),
        )
        return project(self.program, request, self.mode)

    def corrected(self, found: PrimusProjection) -> dict[str, Any]:
        """What Primus said and what to expect of it."""
        expected = found.tokens_per_s_per_gpu * math.exp(self.bias.mean)
        half = math.exp(self.bias.half_width)
        return {
            "mode": str(self.mode),
            "tokens_per_s_per_gpu": expected,
            "interval90": [expected / half, expected * half],
            "as_printed_tokens_per_s_per_gpu": found.tokens_per_s_per_gpu,
            "step_time_s": found.step_time_s,
            "peak_gib": found.peak_gib,
            "bias": math.expm1(self.bias.mean),
            "runs_behind_bias": self.bias.runs,
        }

    def told(self, measured: tuple[MeasuredConfig, ...]) -> PrimusOracle:
        """The same after real runs: Primus is asked for their configs too.

        A run whose config it cannot project says nothing.
        """
        errors: list[float] = []
        for run in measured:
            try:
                found = self.raw(run.config)
            except (PrimusError, InputError):
                continue
            errors.append(math.log(run.tokens_per_s_per_gpu / found.tokens_per_s_per_gpu))
        return replace(self, bias=self.bias.after(errors))

    def _written(self, config: TrainingConfig, path: Path) -> Path:
        """The experiment as the projection reads it, which is not in all as the trainer does.

        Without ``enable_zero_bubble`` it projects zero bubble for 1F1B, and it reads the virtual
        stages under another name (AMD-AGI/Primus, primus/core/projection/training_config.py).
        """
        content: dict[str, Any] = write_experiment(self.job.experiment, config)
        overrides = next(iter(content["modules"].values()))["overrides"]
        overrides["enable_zero_bubble"] = config.schedule.splits_weight_gradient
        if config.vpp > 1:
            overrides["virtual_pipeline_model_parallel_size"] = config.vpp
        path.parent.mkdir(parents=True, exist_ok=True)
        write_yaml(path, content)
        return path


def options_of(config: TrainingConfig) -> tuple[str, ...]:
    """What ``projection performance`` takes from its options only."""
    options: list[str] = []
    if config.schedule in SCHEDULES:
        options += ["--pipeline-schedule-algorithm", SCHEDULES[config.schedule]]
    if config.schedule.splits_weight_gradient:
        options.append("--enable-zero-bubble")
    if config.vpp > 1:
        options += ["--num-virtual-stages-per-pipeline-rank", str(config.vpp)]
    if config.moe_dispatcher is MoeDispatcher.DEEPEP:
        options.append("--enable-deepep")
    if config.sync_free_stage:
        options += ["--sync-free-stage", str(config.sync_free_stage)]
    return tuple(options)


def primus_oracle(job: Job, folder: Path, mode: str) -> PrimusOracle:
    """The oracle of an installed Primus.

    Raises:
        InputError: it is not installed, or there is no such mode.
    """
    if mode not in tuple(Mode):
        raise InputError(f"there is no Primus mode {mode!r}; use {' or '.join(Mode)}.")
    return PrimusOracle(job, folder, find_primus(), Mode(mode))
