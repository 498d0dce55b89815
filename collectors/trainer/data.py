"""Random tokens: the same sequence number is the same sequence, however a run is parallelised."""

from __future__ import annotations

import torch
from torch import Tensor

from collectors.trainer.settings import Settings


def micro_batches(
    settings: Settings, step: int, replica: int, replicas: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(tokens, targets) of one replica in one step, each (micro-batches * mbs, seq)."""
    s = settings
    mine = s.global_batch_size // replicas
    first = step * s.global_batch_size + replica * mine
    rows = []
    for number in range(first, first + mine):
        generator = torch.Generator().manual_seed(s.seed * 1_000_003 + number)
        rows.append(torch.randint(0, s.vocab_size, (s.seq_length + 1,), generator=generator))
    sequences = torch.stack(rows).to(device)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
