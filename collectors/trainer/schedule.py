"""One step of forward and backward passes: gradient accumulation, or a pipeline schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import schedules
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from collectors.trainer.mesh import Mesh
from collectors.trainer.model import Stage
from collectors.trainer.parallel import stage_numbers
from collectors.trainer.settings import Settings

SINGLE: dict[str, Any] = {"1f1b": schedules.Schedule1F1B, "gpipe": schedules.ScheduleGPipe}
SEVERAL: dict[str, Any] = {
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zb-h1": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}
"""PyTorch's zero-bubble schedule with one chunk a rank is ZB-H1 (arXiv 2401.10241)."""


class Runner:
    """Runs the forward and backward passes of a step; ``loss`` of the step is on the last stage."""

    def __init__(
        self, stages: list[Stage], settings: Settings, mesh: Mesh, device: torch.device
    ) -> None:
        replicas = mesh.data.size()
        self._settings, self._stages = settings, stages
        self._count = settings.global_batch_size // (settings.micro_batch_size * replicas)
        self._share = 1.0 / (self._count * replicas)
        self._tensor_parallel = mesh.tensor.size() > 1
        numbers = stage_numbers(settings, mesh.pipeline.get_local_rank())
        self._has_first, self._has_last = 0 in numbers, settings.chunks - 1 in numbers
        self._pipeline = (
            self._scheduled(numbers, mesh, device) if mesh.pipeline.size() > 1 else None
        )

    def _scheduled(self, numbers: list[int], mesh: Mesh, device: torch.device) -> Any:
        """PyTorch's schedule over the stages of this rank."""
        s = self._settings
        width = s.seq_length // (mesh.tensor.size() if s.sequence_parallel else 1)
        hidden = torch.empty(
            (s.micro_batch_size, width, s.hidden_size),
            dtype=torch.bfloat16 if s.bf16 else torch.float32,
            device="meta",
            requires_grad=True,
        )
        tokens = torch.empty((s.micro_batch_size, s.seq_length), dtype=torch.long, device="meta")
        shape = (s.micro_batch_size, s.seq_length, s.vocab_size // mesh.tensor.size())
        logits = hidden.new_empty(shape, requires_grad=True)
        held = [
            pipelining.PipelineStage(
                stage,
                number,
                s.chunks,
                device,
                input_args=(tokens if number == 0 else hidden,),
                output_args=(logits if number == s.chunks - 1 else hidden,),
                group=mesh.pipeline.get_group(),
            )
            for stage, number in zip(self._stages, numbers, strict=True)
        ]
        options = {"loss_fn": self._loss, "scale_grads": False}
        if s.pipeline_schedule in SINGLE:
            return SINGLE[s.pipeline_schedule](held[0], self._count, **options)
        return SEVERAL[s.pipeline_schedule](held, self._count, **options)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of a micro-batch, weighted so that a step sums to its mean."""
        flat = logits.flatten(0, 1).float()
        return functional.cross_entropy(flat, targets.flatten()) * self._share

    def _context(self) -> AbstractContextManager[None]:
        """Cross-entropy over logits that are split over the vocabulary."""
        make: Callable[[], AbstractContextManager[None]] = (
            loss_parallel if self._tensor_parallel else nullcontext
        )
        return make()

    def run(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of all micro-batches; this rank's share of the loss (0 elsewhere).

        Args:
            tokens: of this replica, (micro-batches * mbs, seq).
            targets: the tokens that follow, same shape.
        """
        with self._context():
            if self._pipeline is None:
                return self._accumulated(tokens, targets)
            losses: list[Tensor] = []
            inputs = (tokens,) if self._has_first else ()
            options = {"target": targets, "losses": losses} if self._has_last else {}
            self._pipeline.step(*inputs, **options)
        held = [_plain(loss) for loss in losses]
        return torch.stack(held).sum() if held else torch.zeros((), device=tokens.device)

    def _accumulated(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Micro-batch after micro-batch; FSDP reduces gradients after each."""
        total = torch.zeros((), device=tokens.device)
        for rows, wanted in zip(tokens.chunk(self._count), targets.chunk(self._count), strict=True):
            loss = self._loss(self._stages[0](rows), wanted)
            loss.backward()
            total += _plain(loss)
        return total


def _plain(loss: Tensor) -> Tensor:
    """The loss as a plain tensor without its graph."""
    detached = loss.detach()
    full = getattr(detached, "full_tensor", None)
    plain: Tensor = full() if full is not None else detached
    return plain
