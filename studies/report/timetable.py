"""Timetable: the pipeline of a config task by task, from the event simulation."""

from __future__ import annotations

from dataclasses import dataclass

from specs.config import ConfigTable, TrainingConfig
from studies.job import Job
from studies.pictures.gantt import Slot
from surrogate.pipeline.orders import Kind
from surrogate.pipeline.simulation import simulate
from surrogate.step_time import stage_times, step_time

MOST_SLOTS = 2500
"""Tasks that a picture can still show apart."""
_WORDS = {
    Kind.FORWARD: "forward",
    Kind.INPUT_GRADIENT: "input gradient",
    Kind.WEIGHT_GRADIENT: "weight gradient",
    Kind.BACKWARD: "backward",
}


@dataclass(frozen=True)
class Timetable:
    """Tasks of a step; ``shown`` of ``microbatches`` microbatches are simulated.

    The steady part between warm-up and drain repeats, so a picture of a long step is cut there.
    Transfers between ranks and what follows the pipeline (data parallelism, optimizer) are not
    drawn. Times are scaled as the projection is, so that the pipeline is part of its step.
    """

    slots: tuple[Slot, ...]
    end_s: float
    idle_fraction: float
    microbatches: int
    shown: int

    @property
    def part(self) -> str:
        """What of the step is drawn, in words."""
        if self.shown == self.microbatches:
            return f"all {self.microbatches} microbatches"
        return f"{self.shown} of {self.microbatches} microbatches, the steady part repeats"


def timetable(job: Job, config: TrainingConfig) -> Timetable:
    """The pipeline of ``config``, cut to as many microbatches as a picture can show."""
    cases = job.cases(ConfigTable.from_configs([config]))
    microbatches = int(cases.microbatches()[0])
    constants = job.belief.constants
    physics_s = step_time(cases, constants).step_time_s[0]
    learned = float(job.project(cases.config).step_time_s[0] / physics_s)
    times = [learned * seconds[0] for seconds in stage_times(cases, constants)]
    per_microbatch = config.pp * config.vpp * (3 if config.schedule.splits_weight_gradient else 2)
    group = config.microbatch_group or config.pp
    fitting = max(MOST_SLOTS // per_microbatch, 1)
    shown = min(microbatches, max(fitting // group, 2) * group)
    line = simulate(
        config.schedule,
        config.pp,
        shown,
        *times,
        num_chunks=config.vpp,
        microbatch_group=config.microbatch_group,
    )
    whole = line
    if shown < microbatches:
        whole = simulate(
            config.schedule,
            config.pp,
            microbatches,
            *times,
            num_chunks=config.vpp,
            microbatch_group=config.microbatch_group,
        )
    slots = tuple(
        Slot(task.rank, _WORDS[task.kind], task.microbatch, task.chunk, task.start_s, task.end_s)
        for task in line.timetable
        if task.microbatch < shown and task.end_s > task.start_s
    )
    return Timetable(slots, line.makespan_s, whole.idle_fraction, microbatches, shown)
