"""Model states of every pipeline stage: parameters by how they are sharded, and their bytes.

Parameters fall into three groups: what tensor parallelism shards, what it replicates (norms,
router, latent down-projections) and experts, which expert parallelism shards. Data parallelism
then shards optimizer state, gradients or weights of the first two over DP*CP ranks and of the
experts over the expert data-parallel ranks (Megatron ``intra_dp_cp_group``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.choices import Precision, Sharding, TrainingKind
from specs.stack import Framework
from surrogate.cases import Cases
from surrogate.memory_constants import MemoryConstants
from surrogate.pipeline.stages import StageColumns

Column = NDArray[Any]

COMPUTE_BYTES = 2.0
"""Bytes of a weight that takes part in GEMMs; a frozen base has no more (4-bit: less)."""

FP8_BYTES = 1.0

IS_DEEPSPEED = np.isin(sorted(Framework), (Framework.DEEPSPEED, Framework.MEGATRON_DEEPSPEED))
"""By Framework code."""
ADAPTS_EXPERTS = ~np.isin(sorted(Framework), (Framework.HUGGING_FACE, Framework.DEEPSPEED))
"""Where low-rank adapters go on experts as well, by Framework code: in Megatron on all linear
layers. PEFT puts them on attention alone where a model has experts
(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING)."""


class StageParameters(NamedTuple):
    """Parameters of one GPU of each stage, (n, k): after TP and EP, before data parallelism."""

    sharded: Column
    replicated: Column
    experts: Column

    @property
    def dense_side(self) -> Column:
        """Everything but the experts."""
        total: Column = self.sharded + self.replicated
        return total

    @property
    def total(self) -> Column:
        """All parameters that a GPU holds."""
        total: Column = self.sharded + self.replicated + self.experts
        return total


class StateBytes(NamedTuple):
    """Bytes of a GPU of each stage, (n, k)."""

    weights: Column
    gradients: Column
    optimizer: Column


def column(values: Any) -> Column:
    """A row column, () or (n,), as (1, 1) or (n, 1), to broadcast over stages."""
    return np.reshape(values, (-1, 1))


def padded_vocab(cases: Cases) -> Column:
    """Vocabulary padded to a multiple of ``vocab_divisible_by * tp``, shape (n,)."""
    multiple = cases.stack.vocab_divisible_by * cases.config.tp
    return np.asarray(-(-cases.model.vocab_size // multiple) * multiple)


def stage_parameters(cases: Cases, stages: StageColumns) -> StageParameters:
    """Parameters of one GPU of each stage, shape (n, k).

    With pipeline parallelism a tied embedding exists on the first and on the last stage, and a
    stage with MTP layers holds a copy of the embedding (Megatron gpt_model.py).
    """
    m, c = cases.model, cases.config
    hidden = column(m.hidden_size)
    is_moe = column(m.num_experts > 0)
    mtp = stages.mtp_layers
    layers = stages.dense_layers + stages.moe_layers + mtp
    moe = stages.moe_layers + mtp * is_moe
    dense = layers - moe
    sharded = (
        column(m.attention_sharded) * layers
        + column(m.dense_mlp_sharded) * dense
        + column(m.shared_expert_sharded) * moe
        + _vocabulary_copies(cases, stages) * column(padded_vocab(cases) * m.hidden_size)
    ) / column(c.tp)
    replicated = (
        column(m.attention_replicated + m.norm_params) * layers
        + column(m.dense_mlp_replicated) * dense
        + column(m.shared_expert_replicated + m.router_params) * moe
        + column(m.learned_positions * m.hidden_size) * stages.has_embedding
        + column(m.hidden_size * (1 + m.layer_norm_bias)) * stages.has_output
    )
    if mtp.any():
        sharded = sharded + mtp * 2 * hidden**2 / column(c.tp)
        replicated = replicated + mtp * 3 * hidden
    per_rank = m.num_experts * m.expert_params / (c.ep * c.etp)
    return StageParameters(sharded, replicated, column(per_rank) * moe)


def _vocabulary_copies(cases: Cases, stages: StageColumns) -> Column:
    """Embedding and output matrices that each stage holds, (n, k).

    Vocabulary parallelism cuts both over all pipeline ranks.
    """
    looks_up = stages.has_embedding | (stages.mtp_layers > 0)
    tied = column(cases.model.tied_embeddings)
    copies = np.where(
        tied, looks_up | stages.has_output, looks_up.astype(np.float64) + stages.has_output
    )
    spread = cases.stack.vocabulary_barriers > 0
    if not np.any(spread):
        return copies
    pp = column(cases.config.pp)
    return np.where(column(spread), np.where(tied, 1.0, 2.0) / pp, copies)


def shards(cases: Cases) -> tuple[Column, Column]:
    """Data-parallel ranks that share dense and expert state, each (n,), at least 1."""
    c = cases.config
    replicas = np.maximum(c.replicate, 1)
    dense = np.maximum(c.data_parallel(cases.cluster.num_gpus) * c.cp // replicas, 1)
    experts = c.expert_data_parallel(cases.cluster.num_gpus) // replicas
    return dense, np.maximum(experts, 1)


def uses_bf16_optimizer(cases: Cases) -> Column:
    """Where DeepSpeed trains in bf16 without sharding gradients: its BF16_Optimizer, (n,)."""
    c = cases.config
    in_bf16 = IS_DEEPSPEED[cases.stack.framework] & (c.precision == int(Precision.BF16))
    return np.asarray(in_bf16 & (c.sharding <= int(Sharding.ZERO1)))


def state_sharding(cases: Cases) -> Column:
    """Level at which states are sharded, (n,): as configured, but at least that of the optimizer
    under BF16_Optimizer, which partitions master weights and moments over data parallelism without
    ZeRO as well (deepspeed/runtime/bf16_optimizer.py)."""
    level = cases.config.sharding
    at_least = np.maximum(level, int(Sharding.ZERO1))
    return np.asarray(np.where(uses_bf16_optimizer(cases), at_least, level))


def state_bytes(
    cases: Cases, parameters: StageParameters, constants: MemoryConstants
) -> StateBytes:
    """Weights, gradients and optimizer state of a GPU of each stage, (n, k) bytes."""
    c, s = cases.config, cases.stack
    dense_shards, expert_shards = shards(cases)
    dense, experts = parameters.dense_side, parameters.experts
    by_dense, by_expert = column(1.0 / dense_shards), column(1.0 / expert_shards)
    sharding = state_sharding(cases)

    def sharded(from_level: Sharding) -> Column:
        """Parameters whose state a GPU keeps where sharding starts at this level."""
        level = column(sharding >= int(from_level))
        kept: Column = dense * np.where(level, by_dense, 1.0)
        kept += experts * np.where(level, by_expert, 1.0)
        return kept

    held = sharded(Sharding.ZERO3)
    trained_weights = column(s.weight_bytes * (1.0 - s.weight_offload_fraction))
    on_device = 1.0 - s.optimizer_offload_fraction
    optimizer = sharded(Sharding.ZERO1) * column(s.optimizer_bytes * on_device)
    gradients = sharded(Sharding.ZERO2) * column(s.gradient_bytes)
    weights = held * trained_weights
    # Sharded master weights that are not resharded: whole 16-bit copies on top of the shards.
    unresharded = (c.sharding == int(Sharding.ZERO2)) & (s.weight_bytes > COMPUTE_BYTES)
    if np.any(unresharded):
        copies = sharded(Sharding.ZERO2) * trained_weights + held * COMPUTE_BYTES
        weights = np.where(column(unresharded), copies, weights)
    is_fp8 = c.precision >= int(Precision.FP8)
    if is_fp8.any():
        weights = weights + held * column(
            np.where(is_fp8, constants.fp8_weight_bytes[s.framework], 0.0)
        )
    is_lora = cases.workload.kind == int(TrainingKind.LORA)
    if np.any(is_lora):
        # Adapters are trained on every linear layer, of experts where the framework does.
        adapted = dense + experts * column(ADAPTS_EXPERTS[s.framework])
        adapters = adapted * column(adapter_share(cases))
        lora = column(is_lora)
        # A frozen base is held in the format of its GEMMs.
        base_bytes = np.where(is_fp8, FP8_BYTES, COMPUTE_BYTES)
        frozen = held * np.minimum(trained_weights, column(base_bytes))
        weights = np.where(lora, frozen + adapters * trained_weights, weights)
        gradients = np.where(lora, adapters * column(s.gradient_bytes), gradients)
        optimizer = np.where(lora, adapters * column(s.optimizer_bytes * on_device), optimizer)
    return StateBytes(weights, gradients, optimizer)


def adapter_share(cases: Cases) -> Column:
    """Parameters of low-rank adapters over those of the linear layers they are on, (n,).

    A matrix of p = in*out parameters gets r*(in + out); with a mean width w of sqrt(p) that is
    2*r*p/w. The mean width of attention and MLP matrices is taken between hidden and MLP size, that
    of attention alone is the hidden size.
    """
    m = cases.model
    experts = np.where(ADAPTS_EXPERTS[cases.stack.framework], m.moe_ffn_hidden_size, m.hidden_size)
    mlp = np.where(m.num_experts > 0, experts, m.ffn_hidden_size)
    width = np.sqrt(np.maximum(m.hidden_size * np.maximum(mlp, 1), 1))
    share: Column = 2.0 * cases.workload.lora_rank / width
    return share
