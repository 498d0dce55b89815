"""AdamW as Megatron runs it: fp32 gradient buffers, fp32 master weights, ZeRO-1 where asked for.

Parameters that FSDP shards are left to it: their gradients arrive reduced. All others accumulate
their gradients over micro-batches in one fp32 buffer a group, which is reduced once a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial

from collectors.trainer.mesh import Mesh
from collectors.trainer.model import Stage
from collectors.trainer.moe import Experts, MoeLayer
from collectors.trainer.settings import Settings

BETAS, EPSILON = (0.9, 0.95), 1e-8


class _Piece(NamedTuple):
    """A parameter and its part of the gradient buffer, in the shape of the parameter's shard."""

    parameter: nn.Parameter
    gradient: Tensor


class Buffer:
    """Parameters that are reduced over one group: fp32 gradients, masters and their AdamW."""

    def __init__(
        self,
        parameters: list[nn.Parameter],
        group: dist.ProcessGroup | None,
        zero1: bool,
        settings: Settings,
        decay: bool,
    ) -> None:
        self.group, self.zero1 = group, zero1 and group is not None
        ranks = dist.get_world_size(group) if group is not None else 1
        count = sum(_local(p).numel() for p in parameters)
        self.size = -(-count // ranks) * ranks
        device = parameters[0].device
        self.gradients = torch.zeros(self.size, device=device)
        self.pieces, start = [], 0
        for parameter in parameters:
            local = _local(parameter)
            part = self.gradients[start : start + local.numel()].view_as(local)
            self.pieces.append(_Piece(parameter, part))
            start += local.numel()
        self.masters = self._masters(ranks)
        self.adam = torch.optim.AdamW(
            self.masters,
            lr=settings.lr,
            betas=BETAS,
            eps=EPSILON,
            weight_decay=settings.weight_decay if decay else 0.0,
            fused=True,
        )

    def _masters(self, ranks: int) -> list[nn.Parameter]:
        """This rank's share of the flat weights under ZeRO-1, else all weights; fp32."""
        if self.zero1:
            share = self.size // ranks
            first = dist.get_rank(self.group) * share
            return [nn.Parameter(self._flat(torch.float32)[first : first + share].clone())]
        # fp32 weights are their own masters.
        return [nn.Parameter(_local(piece.parameter).detach().float()) for piece in self.pieces]

    def _flat(self, dtype: torch.dtype) -> Tensor:
        flat = torch.zeros(self.size, dtype=dtype, device=self.gradients.device)
        torch.cat(
            [_local(p.parameter).detach().flatten().to(dtype) for p in self.pieces],
            out=flat[: self._count()],
        )
        return flat

    def _count(self) -> int:
        return sum(piece.gradient.numel() for piece in self.pieces)

    def step(self) -> None:
        """Reduces gradients, updates masters and writes weights back."""
        if self.zero1:
            self._sharded_step()
            return
        if self.group is not None:
            dist.all_reduce(self.gradients, group=self.group)
        for master, piece in zip(self.masters, self.pieces, strict=True):
            master.grad = piece.gradient
        self.adam.step()
        for master, piece in zip(self.masters, self.pieces, strict=True):
            local = _local(piece.parameter).detach()
            if local.data_ptr() != master.data_ptr():
                local.copy_(master.detach())

    def _sharded_step(self) -> None:
        master = self.masters[0]
        mine = torch.empty_like(master)
        dist.reduce_scatter_tensor(mine, self.gradients, group=self.group)
        master.grad = mine
        self.adam.step()
        dtype = _local(self.pieces[0].parameter).dtype
        whole = torch.empty(self.size, dtype=dtype, device=master.device)
        dist.all_gather_into_tensor(whole, master.detach().to(dtype), group=self.group)
        parts = whole[: self._count()].split([p.gradient.numel() for p in self.pieces])
        for piece, part in zip(self.pieces, parts, strict=True):
            local = _local(piece.parameter).detach()
            local.copy_(part.view_as(local))


class Optimizer:
    """AdamW over all model chunks of a rank."""

    def __init__(self, stages: list[Stage], settings: Settings, mesh: Mesh) -> None:
        self._tensor = mesh.tensor.get_group() if mesh.tensor.size() > 1 else None
        self._partial: set[nn.Parameter] = set()
        sharded: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for stage in stages:
            experts = {p for m in stage.modules() if isinstance(m, Experts) for p in m.parameters()}
            routers = {m.router.weight for m in stage.modules() if isinstance(m, MoeLayer)}
            if self._tensor is not None:
                self._partial |= routers  # each rank routed its own part of the sequence
            for parameter in stage.parameters():
                decay = parameter.dim() > 1
                if isinstance(parameter, DTensor) and parameter.device_mesh == mesh.data:
                    sharded[decay].append(parameter)
                else:
                    groups.setdefault((parameter in experts, decay), []).append(parameter)
        data = mesh.data.get_group() if mesh.data.size() > 1 else None
        zero1 = settings.sharding == "zero1"
        self.buffers = [
            Buffer(parameters, mesh.expert_data if expert else data, zero1, settings, decay)
            for (expert, decay), parameters in groups.items()
        ]
        self._gradient = {p.parameter: p.gradient for b in self.buffers for p in b.pieces}
        for parameter in self._gradient:
            parameter.register_post_accumulate_grad_hook(self._accumulate)
        self._sharded = [p for parameters in sharded.values() for p in parameters]
        decays = [(sharded[True], settings.weight_decay), (sharded[False], 0.0)]
        held = [{"params": p, "weight_decay": decay} for p, decay in decays if p]
        self._adam = (
            torch.optim.AdamW(held, lr=settings.lr, betas=BETAS, eps=EPSILON, fused=True)
            if held
            else None
        )

    def _accumulate(self, parameter: Tensor) -> None:
        """Adds a fresh gradient to the buffer and frees it."""
        gradient = parameter.grad
        assert gradient is not None
        assert isinstance(parameter, nn.Parameter)
        if isinstance(gradient, DTensor):
            if any(isinstance(placement, Partial) for placement in gradient.placements):
                self._partial.add(parameter)
            elif isinstance(parameter, DTensor):
                gradient = gradient.redistribute(placements=parameter.placements)
            gradient = gradient.to_local()
        self._gradient[parameter].add_(gradient)
        parameter.grad = None

    def step(self) -> None:
        """Ends a step: reduces, updates, clears."""
        for parameter in self._gradient:
            # Schedules that split the backward pass set gradients without accumulating them.
            if parameter.grad is not None:
                self._accumulate(parameter)
        if self._tensor is not None:
            for parameter, gradient in self._gradient.items():
                if parameter in self._partial:
                    dist.all_reduce(gradient, group=self._tensor)
        for buffer in self.buffers:
            buffer.step()
            buffer.gradients.zero_()
        if self._adam is not None:
            self._adam.step()
            self._adam.zero_grad()

    def state_bytes(self) -> int:
        """Gradients, masters (where they are no weights) and moments held by this rank."""
        total = 0
        weights = {_local(p).data_ptr() for p in self._gradient}
        for buffer in self.buffers:
            total += buffer.gradients.numel() * 4
            for master in buffer.masters:
                held = sum(_bytes(value) for value in buffer.adam.state[master].values())
                total += held + (0 if master.data_ptr() in weights else _bytes(master))
        for parameter in self._sharded:
            assert self._adam is not None
            total += sum(_bytes(_local(v)) for v in self._adam.state[parameter].values())
        return total


def _local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _bytes(tensor: Tensor) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return size
