"""Experiment: what every reader returns, whatever the format of the file was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specs.cluster import Cluster
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.gpu import Gpu
from specs.names import printable
from specs.stack import Framework, Stack
from specs.workload import Workload

NO_FRAMEWORK = "no framework is stated"


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
    the path hints at, or empty. ``gpus`` are GPUs beside the catalog's, by name. ``notes`` are
    sentences about what was assumed, ignored or contradictory. ``sequences_per_data_parallel`` is
    not 0 where the file fixes the batch of one data-parallel rank instead of the global batch
    (torchtitan without ``global_batch_size``): the workload's batch then holds for ``min_gpus``
    GPUs, and ``on`` scales it. ``stated`` are the axes of the baseline that the input states; None
    where it states all of them. ``framework_assumed`` where the file names no framework: ``on``
    takes the usual one of the GPU's vendor. ``source`` is the file that exports start from.
    """

    name: str
    workload: Workload
    stack: Stack
    baseline: TrainingConfig
    cluster: Cluster | None = None
    gpu: str = ""
    gpus: Mapping[str, Gpu] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sequences_per_data_parallel: int = 0
    stated: frozenset[str] | None = None
    framework_assumed: bool = False
    settings: StudySettings = field(default_factory=StudySettings)
    source: Path | None = None

    def __post_init__(self) -> None:
        """Tensor parallelism of experts says nothing where there are none: one value stands.

        Raises:
            InputError: the name is no printable line.
        """
        try:
            printable(self.name)
        except ValueError as error:
            raise InputError(f"the name of the job {error}.") from None
        if not self.workload.model.is_moe and self.baseline.etp in (0, self.baseline.tp):
            object.__setattr__(self, "baseline", self.baseline.changed(etp=1))

    @property
    def min_gpus(self) -> int:
        """Fewest GPUs on which the baseline runs without idle ones: whole TP*PP*CP, ETP*EP*PP."""
        return min_gpus(self.baseline, self.workload.model.is_moe)

    def on(self, cluster: Cluster) -> Experiment:
        """The same job on ``cluster``, with the batch and the assumed framework it then has."""
        placed = replace(self, cluster=cluster)
        if self.framework_assumed:
            framework, name = usual_framework(cluster.gpu.vendor)
            changes = {"framework": framework, "framework_name": name}
            kept = tuple(note for note in self.notes if not note.startswith(NO_FRAMEWORK))
            placed = replace(
                placed,
                stack=self.stack.model_copy(update=changes),
                notes=(*kept, f"{NO_FRAMEWORK}; {name} is assumed."),
            )
        if not self.sequences_per_data_parallel:
            return placed
        config = self.baseline
        data_parallel = max(cluster.num_gpus // (config.tp * config.pp * config.cp), 1)
        batch = self.sequences_per_data_parallel * data_parallel
        workload = self.workload.model_copy(update={"global_batch_size": batch})
        return replace(placed, workload=workload)


def usual_framework(vendor: str) -> tuple[Framework, str]:
    """Framework, and its name, where nobody names one: Primus on AMD, else Megatron-LM."""
    if vendor == "amd":
        return Framework.PRIMUS, "Primus-Megatron"
    return Framework.MEGATRON, "Megatron-LM"


def min_gpus(config: TrainingConfig, is_moe: bool) -> int:
    """Fewest GPUs that hold whole replicas of the dense part and of the experts."""
    dense = config.tp * config.pp * config.cp * config.replicate
    if not is_moe:
        return dense
    return math.lcm(dense, (config.etp or config.tp) * config.ep * config.pp)
