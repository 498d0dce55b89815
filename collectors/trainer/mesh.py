"""Process groups of a run: Megatron's order, tensor parallel ranks next to each other, pipeline
stages farthest apart; expert parallelism folds over data and tensor parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from collectors.trainer.settings import Settings


@dataclass(frozen=True)
class Mesh:
    """The groups of this rank; ``expert`` and ``expert_data`` are None where they have one rank."""

    whole: DeviceMesh
    expert: dist.ProcessGroup | None
    expert_data: dist.ProcessGroup | None
    expert_rank: int

    @property
    def tensor(self) -> DeviceMesh:
        """Tensor-parallel ranks."""
        return self.whole["tp"]

    @property
    def data(self) -> DeviceMesh:
        """Data-parallel ranks."""
        return self.whole["dp"]

    @property
    def pipeline(self) -> DeviceMesh:
        """Pipeline ranks."""
        return self.whole["pp"]

    @classmethod
    def of(cls, settings: Settings, device_type: str) -> Mesh:
        """The groups of a run; every rank of the world calls this."""
        world, tp = dist.get_world_size(), settings.tensor_model_parallel_size
        pp, ep = settings.pipeline_model_parallel_size, settings.expert_model_parallel_size
        dp = settings.data_parallel_size(world)
        whole = init_device_mesh(device_type, (pp, dp, tp), mesh_dim_names=("pp", "dp", "tp"))
        inside = dp * tp
        expert, expert_data = None, None
        for stage in range(0, world, inside):
            ranks = range(stage, stage + inside)
            rows = [list(ranks[n : n + ep]) for n in range(0, inside, ep)]
            columns = [list(column) for column in zip(*rows, strict=True)]
            expert = _mine(rows) or expert
            expert_data = _mine(columns) or expert_data
        return cls(whole, expert, expert_data, dist.get_rank() % inside % ep)


def _mine(groups: list[list[int]]) -> dist.ProcessGroup | None:
    """Creates the groups that have several ranks; returns that of this rank."""
    found = None
    for ranks in groups:
        if len(ranks) > 1:
            group = dist.new_group(ranks)
            found = group if dist.get_rank() in ranks else found
    return found
