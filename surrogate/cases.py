"""Cases: what the surrogate projects, one row a training run, every input as numpy columns.

A study has one model, cluster, workload and stack and many configs: those columns then have shape
() and broadcast. A table of measured runs has another model, GPU and stack on every row: there the
columns have shape (n,). The formulas are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specs.choices import Recompute, RecomputeMethod, RecomputeModules
from specs.cluster import Cluster
from specs.config import ConfigTable
from specs.gpu import Gpu
from specs.model import Model, ModelColumns
from specs.stack import Stack
from specs.workload import Workload

Column = NDArray[Any]


class Columns:
    """Base of column groups: each field has shape () or (n,)."""

    def take(self, rows: Any) -> Self:
        """The selected rows; fields of shape () stay as they are."""
        picked = {}
        for field in fields(self):  # type: ignore[arg-type]
            column = getattr(self, field.name)
            picked[field.name] = column if np.ndim(column) == 0 else column[rows]
        return type(self)(**picked)

    @classmethod
    def stack(cls, rows: Sequence[Self]) -> Self:
        """Columns of shape (n,) from n groups of shape ()."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: np.array([getattr(row, name) for row in rows]) for name in names})


@dataclass(frozen=True)
class WorkloadColumns(Columns):
    """Workload without its model. ``kind`` holds TrainingKind codes."""

    seq_len: Column
    global_batch_size: Column
    kind: Column
    lora_rank: Column
    routing_imbalance: Column
    capacity_factor: Column

    @classmethod
    def of_one(cls, workload: Workload) -> WorkloadColumns:
        """Columns of shape ()."""
        return cls(
            seq_len=np.array(workload.seq_len),
            global_batch_size=np.array(workload.global_batch_size),
            kind=np.array(int(workload.kind)),
            lora_rank=np.array(workload.lora_rank),
            routing_imbalance=np.array(workload.routing_imbalance),
            capacity_factor=np.array(workload.capacity_factor),
        )


@dataclass(frozen=True)
class ClusterColumns(Columns):
    """Cluster size and the data-sheet rates of its GPU.

    ``gpu`` is an index into ``Cases.gpus``. Rates are per GPU and direction; ``peak_fp8_flops`` and
    ``peak_fp4_flops`` are 0 where the GPU lacks the format.
    """

    gpu: Column
    num_gpus: Column
    gpus_per_node: Column
    scale_up_gpus: Column
    hbm_gib: Column
    hbm_bytes_per_s: Column
    peak_bf16_flops: Column
    peak_fp32_flops: Column
    peak_fp8_flops: Column
    peak_fp4_flops: Column
    link_bytes_per_s: Column
    link_latency_s: Column
    nic_bytes_per_s: Column
    nic_latency_s: Column
    is_amd: Column

    @classmethod
    def of_one(cls, cluster: Cluster, gpu_index: int = 0) -> ClusterColumns:
        """Columns of shape ()."""
        gpu = cluster.gpu
        peak = {name: quantity.value for name, quantity in gpu.peak_flops.items()}
        return cls(
            gpu=np.array(gpu_index),
            num_gpus=np.array(cluster.num_gpus),
            gpus_per_node=np.array(cluster.gpus_per_node),
            scale_up_gpus=np.array(cluster.scale_up_gpus),
            hbm_gib=np.array(gpu.hbm_gib.value),
            hbm_bytes_per_s=np.array(gpu.hbm_bytes_per_s.value),
            peak_bf16_flops=np.array(peak["bf16"]),
            peak_fp32_flops=np.array(peak.get("fp32", peak["bf16"] / 8)),
            peak_fp8_flops=np.array(peak.get("fp8", 0.0)),
            peak_fp4_flops=np.array(peak.get("fp4", 0.0)),
            link_bytes_per_s=np.array(gpu.link_bytes_per_s.value),
            link_latency_s=np.array(gpu.link_latency_s.value),
            nic_bytes_per_s=np.array(gpu.nic_bytes_per_s.value),
            nic_latency_s=np.array(gpu.nic_latency_s.value),
            is_amd=np.array(gpu.vendor == "amd"),
        )


@dataclass(frozen=True)
class StackColumns(Columns):
    """Software columns; ``framework`` holds Framework codes, bytes are per parameter.

    ``runtime_gib`` is NaN where it is to be taken from the constants of the memory model.
    """

    framework: Column
    weight_bytes: Column
    gradient_bytes: Column
    optimizer_bytes: Column
    flash_attention: Column
    expandable_segments: Column
    cuda_graphs: Column
    full_iteration_graphs: Column
    one_peer_exchange: Column
    coarse_gathers: Column
    optimizer_offload_fraction: Column
    weight_offload_fraction: Column
    runtime_gib: Column
    compiled: Column
    compiled_loss: Column
    checkpoint_offload_fraction: Column
    vocab_divisible_by: Column
    vocabulary_barriers: Column

    @classmethod
    def of_one(cls, stack: Stack) -> StackColumns:
        """Columns of shape ()."""
        names = [field.name for field in fields(cls) if field.name != "framework"]
        values = {name: np.array(getattr(stack, name)) for name in names}
        if stack.runtime_gib is None:
            values["runtime_gib"] = np.array(np.nan)
        return cls(framework=np.array(int(stack.framework)), **values)


@dataclass(frozen=True)
class Cases:
    """n training runs to project.

    ``models``, ``gpus`` and ``stacks`` are what ``model_index``, ``cluster.gpu`` and
    ``stack_index`` point at.
    """

    config: ConfigTable
    model: ModelColumns
    workload: WorkloadColumns
    cluster: ClusterColumns
    stack: StackColumns
    model_index: Column
    models: tuple[Model, ...]
    gpus: tuple[Gpu, ...]
    stack_index: Column
    stacks: tuple[Stack, ...]

    def __len__(self) -> int:
        return len(self.config)

    @property
    def is_study(self) -> bool:
        """Whether all rows are of one model, workload, cluster and stack."""
        shared = (self.model_index, self.workload.seq_len, self.cluster.gpu, self.stack_index)
        return all(np.ndim(column) == 0 for column in shared)

    def without_recomputation(self) -> Cases:
        """The same rows if they recomputed nothing."""
        nothing = self.config.changed(
            recompute=int(Recompute.NONE),
            recompute_method=int(RecomputeMethod.NONE),
            recompute_layers=0,
            recompute_modules=int(RecomputeModules.NONE),
            recompute_layer_ids=0,
        )
        return replace(self, config=nothing)

    @classmethod
    def of_study(
        cls, config: ConfigTable, workload: Workload, cluster: Cluster, stack: Stack
    ) -> Cases:
        """Many configs of one workload on one cluster."""
        return cls(
            config=config,
            model=ModelColumns.of_one(workload.model),
            workload=WorkloadColumns.of_one(workload),
            cluster=ClusterColumns.of_one(cluster),
            stack=StackColumns.of_one(stack),
            model_index=np.array(0),
            models=(workload.model,),
            gpus=(cluster.gpu,),
            stack_index=np.array(0),
            stacks=(stack,),
        )

    @classmethod
    def of_runs(
        cls,
        config: ConfigTable,
        workloads: Sequence[Workload],
        clusters: Sequence[Cluster],
        stacks: Sequence[Stack],
    ) -> Cases:
        """Rows that each have their own workload, cluster and stack (all of length n)."""
        models: dict[str, Model] = {}
        gpus: dict[str, Gpu] = {}
        for workload, cluster in zip(workloads, clusters, strict=True):
            models.setdefault(workload.model.name, workload.model)
            gpus.setdefault(cluster.gpu.name, cluster.gpu)
        model_names, gpu_names = list(models), list(gpus)
        distinct: dict[str, int] = {}
        stack_index = [distinct.setdefault(s.model_dump_json(), len(distinct)) for s in stacks]
        index = np.array([model_names.index(w.model.name) for w in workloads], dtype=np.int64)
        return cls(
            config=config,
            model=ModelColumns.of(list(models.values())).take(index),
            workload=WorkloadColumns.stack([WorkloadColumns.of_one(w) for w in workloads]),
            cluster=ClusterColumns.stack(
                [ClusterColumns.of_one(c, gpu_names.index(c.gpu.name)) for c in clusters]
            ),
            stack=StackColumns.stack([StackColumns.of_one(s) for s in stacks]),
            model_index=index,
            models=tuple(models.values()),
            gpus=tuple(gpus.values()),
            stack_index=np.array(stack_index, dtype=np.int64),
            stacks=tuple(Stack.model_validate_json(text) for text in distinct),
        )

    def take(self, rows: Any) -> Cases:
        """The selected rows."""
        many = np.ndim(self.model_index) > 0
        return Cases(
            config=self.config.take(rows),
            model=self.model.take(rows) if many else self.model,
            workload=self.workload.take(rows),
            cluster=self.cluster.take(rows),
            stack=self.stack.take(rows),
            model_index=self.model_index[rows] if many else self.model_index,
            models=self.models,
            gpus=self.gpus,
            stack_index=self.stack_index
            if np.ndim(self.stack_index) == 0
            else self.stack_index[rows],
            stacks=self.stacks,
        )

    def microbatches(self) -> Column:
        """Micro-batches a step, shape (n,)."""
        return self.config.microbatches(self.cluster.num_gpus, self.workload.global_batch_size)

    def data_parallel(self) -> Column:
        """Data-parallel size of the dense part, shape (n,)."""
        return self.config.data_parallel(self.cluster.num_gpus)
