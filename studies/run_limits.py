"""What no run can have measured: faster than its GPU multiplies, or more memory than it has.

A run that is slower than its projection beyond reason (a hung network, seconds told as tokens) is
refused as well: it would teach that everything is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from studies.job import Job
from surrogate.speed_of_light import fastest_tokens_per_s_per_gpu

if TYPE_CHECKING:
    from studies.real_runs import Outcome

SLOWEST = 20.0
"""A working run is not this many times slower than projected (assumed: the physics is never that
wrong where it is worth correcting)."""
CAPACITY_SLACK = 1.02
"""Readings of a full GPU round up by less than this (assumed)."""


def check_possible(job: Job, config: TrainingConfig, outcome: Outcome) -> None:
    """Refuses what cannot have been measured on the cluster of the job.

    Raises:
        InputError: the run is faster than the GPU multiplies, slower than the projection beyond
            reason, or used more memory than the GPU holds.
    """
    gpu, speed, peak_gib = job.cluster.gpu, outcome.tokens_per_s_per_gpu, outcome.peak_gib
    if speed is not None:
        one = ConfigTable.from_configs([config])
        most = float(fastest_tokens_per_s_per_gpu(job.cases(one))[0])
        if speed > most:
            raise InputError(
                f"{speed:,.4g} tokens/s/GPU is more than a {gpu.name} can multiply: its peak "
                f"allows {most:,.0f}; tell tokens per second and GPU, of this job."
            )
        projected = float(job.tokens_per_s_per_gpu(one)[0])
        if speed < projected / SLOWEST:
            raise InputError(
                f"{speed:,.4g} tokens/s/GPU is less than a twentieth of the {projected:,.0f} that "
                "are projected; tell tokens per second and GPU, or --crash WHY of a broken run."
            )
    if peak_gib is not None and peak_gib > CAPACITY_SLACK * gpu.hbm_gib.value:
        raise InputError(
            f"a peak of {peak_gib:,.4g} GiB is more than the {gpu.hbm_gib.value:,.4g} GiB of a "
            f"{gpu.name}; tell GiB of one GPU, or --oom where it ran out of memory."
        )
