"""Mixture of experts: a top-k router, expert-parallel exchange of tokens, and gated experts."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from collectors.trainer.settings import Settings


class Exchange(torch.autograd.Function):
    """All-to-all of rows that can be differentiated: gradients go back the way rows came."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
    ) -> Tensor:
        """Rows of all ranks of the group, in rank order; ``sent`` and ``received`` count them."""
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        """The gradient of each row returns to the rank that sent it."""
        back = _exchanged(gradients[0].contiguous(), ctx.received, ctx.sent, ctx.group)
        return back, None, None, None


def _exchanged(
    rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup
) -> Tensor:
    out = rows.new_empty((sum(received), rows.shape[1]))
    dist.all_to_all_single(out, rows, received, sent, group=group)
    return out


class Experts(nn.Module):
    """The experts of one rank: ``first`` to ``first + count`` of the layer."""

    def __init__(self, settings: Settings, first: int, count: int) -> None:
        super().__init__()
        hidden, width = settings.hidden_size, settings.moe_ffn_hidden_size
        self.first, self.count = first, count
        self.gate = nn.Parameter(torch.empty(count, width, hidden))
        self.up = nn.Parameter(torch.empty(count, width, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, width))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        """Rows in the order of their expert, ``counts`` of each, through their experts."""
        parts = []
        for expert, part in enumerate(rows.split(counts)):
            inner = functional.silu(functional.linear(part, self.gate[expert]))
            inner = inner * functional.linear(part, self.up[expert])
            parts.append(functional.linear(inner, self.down[expert]))
        return torch.cat(parts)


class MoeLayer(nn.Module):
    """Routes every token to its ``topk`` experts, wherever they are; dropless."""

    group: dist.ProcessGroup | None = None

    def __init__(self, settings: Settings, experts: Experts) -> None:
        super().__init__()
        self.topk, self.total = settings.moe_router_topk, settings.num_experts
        self.router = nn.Linear(settings.hidden_size, settings.num_experts, bias=False)
        self.experts = experts

    def forward(self, values: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same shape; each token by itself."""
        tokens = values.reshape(-1, values.shape[-1])
        # In fp32, as Megatron's moe_router_dtype: experts are chosen by small differences.
        scores = functional.linear(tokens.float(), self.router.weight.float())
        weights, chosen = scores.softmax(dim=-1).topk(self.topk, dim=-1)
        weights = (weights / weights.sum(dim=-1, keepdim=True)).to(values.dtype)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.total)
        rows = tokens[order // self.topk]
        back = self._through_experts(rows, counts)
        weighted = back * weights.flatten()[order].unsqueeze(1)
        out = torch.zeros_like(tokens).index_add(0, order // self.topk, weighted)
        return out.view_as(values)

    def _through_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows sorted by expert, of all experts, through the experts of all ranks."""
        if self.group is None:
            out: Tensor = self.experts(rows, counts.tolist())
            return out
        ranks = dist.get_world_size(self.group)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=self.group)
        by_rank = arriving.view(ranks, -1)
        sent = counts.view(ranks, -1).sum(dim=1).tolist()
        received = by_rank.sum(dim=1).tolist()
        mine: Tensor = Exchange.apply(rows, sent, received, self.group)
        # They arrive by rank and expert; experts want all rows of theirs together.
        segments = torch.arange(by_rank.numel(), device=rows.device)
        expert_of_row = (segments % by_rank.shape[1]).repeat_interleave(by_rank.flatten())
        order = expert_of_row.argsort(stable=True)
        done = self.experts(mine[order], by_rank.sum(dim=0).tolist())
        returned = torch.empty_like(done).index_copy(0, order, done)
        back: Tensor = Exchange.apply(returned, received, sent, self.group)
        return back
