"""Experiment: what every reader returns, whatever the format of the file was."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specs.cluster import Cluster
from specs.config import TrainingConfig
from specs.stack import Stack
from specs.workload import Workload


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """What a study YAML says about the search; None where the command's own default holds.

    ``axes`` maps an axis to the values it may take, as members of the axis: one value pins it.
    """

    axes: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    objective: Literal["tokens_per_s_per_gpu", "usd_per_token", "step_time_s"] | None = None
    trials: int | None = None
    seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A training job as read from a file.

    ``cluster`` is None where the file names none; ``gpu`` is then the catalog name of the GPU that
    the path hints at, or empty. ``notes`` are sentences about what was assumed, ignored or
    contradictory. ``sequences_per_data_parallel`` is not 0 where the file fixes the batch of one
    data-parallel rank instead of the global batch (torchtitan without ``global_batch_size``): the
    workload's batch then holds for ``min_gpus`` GPUs, and ``on`` scales it. ``source`` is the file
    that exports start from.
    """

    name: str
    workload: Workload
    stack: Stack
    baseline: TrainingConfig
    cluster: Cluster | None = None
    gpu: str = ""
    notes: tuple[str, ...] = ()
    sequences_per_data_parallel: int = 0
    settings: StudySettings = field(default_factory=StudySettings)
    source: Path | None = None

    @property
    def min_gpus(self) -> int:
        """Fewest GPUs on which the baseline runs without idle ones: whole TP*PP*CP, ETP*EP*PP."""
        return min_gpus(self.baseline, self.workload.model.is_moe)

    def on(self, cluster: Cluster) -> Experiment:
        """The same job on ``cluster``, with the global batch size that it then has."""
        if not self.sequences_per_data_parallel:
            return replace(self, cluster=cluster)
        config = self.baseline
        data_parallel = max(cluster.num_gpus // (config.tp * config.pp * config.cp), 1)
        batch = self.sequences_per_data_parallel * data_parallel
        workload = self.workload.model_copy(update={"global_batch_size": batch})
        return replace(self, cluster=cluster, workload=workload)


def min_gpus(config: TrainingConfig, is_moe: bool) -> int:
    """Fewest GPUs that hold whole replicas of the dense part and of the experts."""
    dense = config.tp * config.pp * config.cp * config.replicate
    if not is_moe:
        return dense
    return math.lcm(dense, (config.etp or config.tp) * config.ep * config.pp)
