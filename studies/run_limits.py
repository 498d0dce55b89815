"""What no run can have measured: faster than its GPU multiplies, or more memory than it has.

A run that is slower than its projection beyond reason (a hung network, seconds told as tokens) is
refused as well: it would teach that everything is slow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specs.choices import TrainingKind
from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.run_rows import model_flops_per_token
from studies.job import Job

if TYPE_CHECKING:
    from studies.real_runs import Outcome

FROZEN_SHARE = 2 / 3
"""Share of the FLOPs of a step that is left where weights are frozen: no weight gradients."""
SLOWEST = 20.0
"""A working run is not this many times slower than projected (assumed: the physics is never that
wrong where it is worth correcting)."""
CAPACITY_SLACK = 1.02
"""Readings of a full GPU round up by less than this (assumed)."""


def fastest_tokens_per_s_per_gpu(job: Job, config: TrainingConfig) -> float:
    """The speed of light: every FLOP of the model at the dense peak of its GEMM format."""
    workload = job.experiment.workload
    flops = model_flops_per_token(workload.model, workload.seq_len, causal=True)
    if workload.kind is TrainingKind.LORA:
        flops *= FROZEN_SHARE
    peaks = job.cluster.gpu.peak_flops
    peak = peaks[config.precision.gemm_format].value
    return float(peak / flops)


def check_possible(job: Job, config: TrainingConfig, outcome: Outcome) -> None:
    """Refuses what cannot have been measured on the cluster of the job.

    Raises:
        InputError: the run is faster than the GPU multiplies, slower than the projection beyond
            reason, or used more memory than the GPU holds.
    """
    gpu, speed, peak_gib = job.cluster.gpu, outcome.tokens_per_s_per_gpu, outcome.peak_gib
    if speed is not None:
        most = fastest_tokens_per_s_per_gpu(job, config)
        if speed > most:
            raise InputError(
                f"{speed:,.4g} tokens/s/GPU is more than a {gpu.name} can multiply: its peak "
                f"allows {most:,.0f}; tell tokens per second and GPU, of this job."
            )
        projected = float(job.tokens_per_s_per_gpu(ConfigTable.from_configs([config]))[0])
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
