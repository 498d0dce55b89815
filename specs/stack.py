"""Stack: the software that runs the training; legality, memory and calibration depend on it."""

from __future__ import annotations

from enum import IntEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from specs.names import Name


class Framework(IntEnum):
    """Framework families with their own memory habits; codes are frozen."""

    MEGATRON = 0
    PRIMUS = 1
    NEMO = 2
    MEGATRON_BRIDGE = 3
    TORCHTITAN = 4
    DEEPSPEED = 5
    MAXTEXT = 6
    MEGATRON_DEEPSPEED = 7
    PYTORCH_FSDP = 8
    HUGGING_FACE = 9
    OTHER = 10

    @classmethod
    def parse(cls, text: str) -> Self:
        """The family a framework name belongs to; OTHER where none is recognised."""
        name = text.lower()
        for pattern, family in _PATTERNS:
            if pattern in name:
                return cls(family)
        return cls.OTHER


_PATTERNS = (
    ("foretune", Framework.TORCHTITAN),  # FSDP2, DTensor and pipelining of PyTorch, as TorchTitan
    ("megatron-bridge", Framework.MEGATRON_BRIDGE),
    ("megatron-deepspeed", Framework.MEGATRON_DEEPSPEED),
    ("megatron-swift", Framework.MEGATRON),
    ("torchtitan", Framework.TORCHTITAN),
    ("maxtext", Framework.MAXTEXT),
    ("primus", Framework.PRIMUS),
    ("llm-foundry", Framework.PYTORCH_FSDP),
    ("automodel", Framework.PYTORCH_FSDP),
    ("nemo", Framework.NEMO),
    ("hf trainer", Framework.HUGGING_FACE),
    ("trl", Framework.HUGGING_FACE),
    ("transformers", Framework.HUGGING_FACE),
    ("swift", Framework.HUGGING_FACE),
    ("llamafactory", Framework.HUGGING_FACE),
    ("axolotl", Framework.HUGGING_FACE),
    ("fsdp", Framework.PYTORCH_FSDP),
    ("deepspeed", Framework.DEEPSPEED),
    ("megatron", Framework.MEGATRON),
    ("megascale", Framework.MEGATRON),
    ("neox", Framework.MEGATRON_DEEPSPEED),
)


FULL_NAMES = {
    "primus": "Primus-Megatron",
    "primus torchtitan": "Primus-TorchTitan",
    "megatron": "Megatron-LM",
    "bridge": "Megatron-Bridge",
}
"""Short name, in lower case, -> the name that measured runs and what was learned from them use."""


class Stack(BaseModel):
    """Framework, release, state dtypes and kernels of a training job.

    Bytes are per parameter; ``optimizer_bytes`` counts master weights and moments together (12 is
    Adam in fp32, 8 with bf16 moments, 6 with bf16 moments and a 16-bit remainder).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    framework: Framework = Framework.MEGATRON
    framework_name: Name = "Megatron-LM"
    version: Name = ""
    weight_bytes: float = Field(2.0, gt=0)
    gradient_bytes: float = Field(4.0, ge=0)
    optimizer_bytes: float = Field(12.0, ge=0)
    flash_attention: bool = True
    fused_rope: bool = True
    expandable_segments: bool = False
    cuda_graphs: bool = False
    full_iteration_graphs: bool = Field(
        False, description="CUDA graphs hold the whole step, experts included"
    )
    compiled: bool = Field(False, description="layers run through torch.compile")
    compiled_loss: bool = Field(False, description="the loss runs through torch.compile")
    gradient_accumulation_fusion: bool = True
    grouped_gemm: bool = True
    one_peer_exchange: bool = Field(
        False, description="experts' all-to-all copies to one peer after another"
    )
    coarse_gathers: bool = Field(
        False, description="weights of many layers are gathered at once and wait for no layer"
    )
    turbo: bool = Field(False, description="Primus-Turbo kernels are switched on")
    optimizer_offload_fraction: float = Field(0.0, ge=0, le=1)
    weight_offload_fraction: float = Field(0.0, ge=0, le=1)
    runtime_gib: float | None = Field(
        None,
        ge=0,
        description="GiB of a device that runtime, libraries and communicators take beside "
        "tensors, where it was measured; null: as fitted for framework and vendor",
    )
    checkpoint_offload_fraction: float = Field(
        0.0, ge=0, le=1, description="share of the checkpoints of recomputation held by the host"
    )
    vocab_divisible_by: int = Field(128, gt=0)
    vocabulary_barriers: int = Field(
        0, ge=0, le=2, description="vocabulary parallelism over pipeline ranks (arXiv 2411.05288)"
    )
    untied_tp_mapping: bool = Field(False, description="use_tp_pp_dp_mapping rank order")

    @field_validator("framework_name")
    @classmethod
    def _in_full(cls, name: str) -> str:
        return FULL_NAMES.get(name.strip().lower(), name)
