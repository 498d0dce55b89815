"""Workload: what is trained, independent of how it is parallelised."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from specs.choices import TrainingKind
from specs.model import Model


class Workload(BaseModel):
    """Model, sequence length, global batch size (sequences), kind and routing assumption.

    ``routing_imbalance`` is tokens of the busiest expert-parallel rank over the mean (1: balanced);
    ``capacity_factor`` 0 means dropless.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    model: Model
    seq_len: int = Field(gt=0)
    global_batch_size: int = Field(gt=0)
    kind: TrainingKind = TrainingKind.PRETRAIN
    lora_rank: int = Field(0, ge=0)
    routing_imbalance: float = Field(1.0, ge=1.0)
    capacity_factor: float = Field(0.0, ge=0.0)
    target_tokens: float | None = Field(None, gt=0, description="tokens of the whole training run")

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step consumes."""
        return self.seq_len * self.global_batch_size
