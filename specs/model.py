"""Model: the architecture of an LLM, its exact parameter counts, and models as numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from specs.errors import InputError
from specs.names import Name
from specs.numbers import Number, Whole

Column = NDArray[Any]


class Mla(BaseModel):
    """Multi-latent attention dimensions (DeepSeek-V2, arXiv 2405.04434)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    q_lora_rank: Whole = Field(ge=0, description="0: queries are projected directly")
    kv_lora_rank: Whole = Field(gt=0)
    qk_nope_head_dim: Whole = Field(gt=0)
    qk_rope_head_dim: Whole = Field(ge=0)
    v_head_dim: Whole = Field(gt=0)


MOST_LAYERS, LARGEST = 10_000, 2**24
"""Beyond these a number is no layer count or width: products of them would no longer be exact."""


class Model(BaseModel):
    """Architecture of a decoder-only LLM.

    ``moe_layers`` holds one flag a layer where MoE and dense layers mix in another way than
    "the first ``dense_layers`` are dense"; ``window_layers`` is how many layers use the sliding
    window. Sizes are counts or widths, never bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    num_layers: Whole = Field(gt=0, le=MOST_LAYERS)
    hidden_size: Whole = Field(gt=0, le=LARGEST)
    ffn_hidden_size: Whole = Field(gt=0, le=LARGEST)
    num_attention_heads: Whole = Field(gt=0, le=LARGEST)
    num_query_groups: Whole = Field(gt=0, le=LARGEST)
    head_dim: Whole = Field(gt=0, le=LARGEST)
    vocab_size: Whole = Field(gt=0, le=LARGEST)
    tied_embeddings: bool = False
    gated_mlp: bool = True
    linear_bias: bool = Field(False, description="bias on every linear layer and norm (GPT-2/3)")
    qkv_bias: bool = False
    attention_output_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    layer_norm_bias: bool = Field(False, description="LayerNorm (scale and shift), not RMSNorm")
    norms_per_layer: Whole = Field(2, ge=1, le=100)
    learned_positions: Whole = Field(
        0, ge=0, le=2**40, description="rows of a learned position table"
    )
    rotary_base: Number | None = Field(
        None, gt=0, lt=1e12, description="base of the rotary frequencies; null: not stated"
    )
    norm_epsilon: Number | None = Field(None, gt=0, lt=1, description="null: not stated")
    embedding_norm: bool = Field(False, description="norm behind the embedding (BLOOM)")
    parallel_block: bool = Field(
        False, description="attention and MLP read one input and are summed once (PaLM, GPT-J)"
    )
    dropout: bool = False
    sliding_window: Whole = Field(0, ge=0, description="0: full attention")
    window_layers: Whole = Field(0, ge=0)
    mla: Mla | None = None
    num_experts: Whole = Field(0, ge=0, le=LARGEST)
    moe_topk: Whole = Field(0, ge=0)
    moe_ffn_hidden_size: Whole = Field(0, ge=0, le=LARGEST)
    shared_expert_ffn: Whole = Field(0, ge=0, le=LARGEST)
    shared_expert_gate: bool = False
    dense_layers: Whole = Field(0, ge=0, description="leading dense layers of an MoE model")
    moe_layers: tuple[bool, ...] | None = None
    router_bias: bool = Field(False, description="router bias that is a parameter")
    expert_bias: bool = False
    mtp_layers: Whole = Field(0, ge=0, le=MOST_LAYERS)
    source: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.num_experts and not (0 < self.moe_topk <= self.num_experts):
            raise ValueError(
                f"moe_topk is {self.moe_topk}, but must be 1 to num_experts ({self.num_experts})"
            )
        if self.num_experts and not self.moe_ffn_hidden_size:
            raise ValueError("moe_ffn_hidden_size is missing for a model with experts")
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) is not a multiple of "
                f"num_query_groups ({self.num_query_groups})"
            )
        if self.moe_layers is not None and len(self.moe_layers) != self.num_layers:
            raise ValueError(
                f"moe_layers has {len(self.moe_layers)} flags for {self.num_layers} layers"
            )
        if self.dense_layers > self.num_layers or self.window_layers > self.num_layers:
            raise ValueError("dense_layers or window_layers is larger than num_layers")
        return self

    @property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return self.num_experts > 0

    def layer_is_moe(self) -> NDArray[np.bool_]:
        """One flag a decoder layer, shape (num_layers,)."""
        if not self.is_moe:
            return np.zeros(self.num_layers, dtype=bool)
        if self.moe_layers is not None:
            return np.array(self.moe_layers, dtype=bool)
        return np.arange(self.num_layers) >= self.dense_layers

    @property
    def num_moe_layers(self) -> int:
        """Decoder layers with experts."""
        return int(self.layer_is_moe().sum())

    def padded_vocab(self, tp: Any, divisible_by: int = 128) -> Any:
        """Vocabulary padded to a multiple of ``divisible_by * tp`` (Megatron's tokenizer)."""
        multiple = divisible_by * np.asarray(tp)
        return -(-self.vocab_size // multiple) * multiple

    def attention_parameters(self) -> tuple[int, int]:
        """Attention parameters of one layer: (sharded by TP, replicated over TP)."""
        h, a, d = self.hidden_size, self.num_attention_heads, self.head_dim
        if self.mla is None:
            q, kv = a * d, self.num_query_groups * d
            sharded = h * (q + 2 * kv) + q * h
            sharded += (q + 2 * kv) if (self.qkv_bias or self.linear_bias) else 0
            replicated = h if (self.attention_output_bias or self.linear_bias) else 0
            replicated += 2 * d if self.qk_norm else 0
            sharded += a if self.attention_sinks else 0
            return sharded, replicated
        m = self.mla
        qk = m.qk_nope_head_dim + m.qk_rope_head_dim
        up_and_out = m.kv_lora_rank * a * (m.qk_nope_head_dim + m.v_head_dim)
        up_and_out += a * m.v_head_dim * h
        down = h * (m.kv_lora_rank + m.qk_rope_head_dim) + m.kv_lora_rank
        if m.q_lora_rank:
            up_and_out += m.q_lora_rank * a * qk
            down += h * m.q_lora_rank + m.q_lora_rank
        else:
            up_and_out += h * a * qk
        return up_and_out, down

    def norm_parameters(self) -> int:
        """Parameters of one layer's norms, replicated over TP."""
        return self.norms_per_layer * self.hidden_size * (2 if self.layer_norm_bias else 1)

    def _mlp(self, width: int) -> tuple[int, int]:
        """Parameters of an MLP of this width: (sharded by TP, replicated)."""
        matrices = 3 if self.gated_mlp else 2
        sharded = matrices * self.hidden_size * width
        if self.linear_bias:
            return sharded + (matrices - 1) * width, self.hidden_size
        return sharded, 0

    def dense_mlp_parameters(self) -> tuple[int, int]:
        """Parameters of a dense layer's MLP: (sharded by TP, replicated)."""
        return self._mlp(self.ffn_hidden_size)

    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        if not self.is_moe:
            return 0
        sharded, replicated = self._mlp(self.moe_ffn_hidden_size)
        if self.expert_bias:
            matrices = 3 if self.gated_mlp else 2
            sharded += (matrices - 1) * self.moe_ffn_hidden_size + self.hidden_size
        return sharded + replicated

    def shared_expert_parameters(self) -> tuple[int, int]:
        """Shared experts of one MoE layer: (sharded by TP, replicated)."""
        if not self.shared_expert_ffn:
            return 0, 0
        sharded, replicated = self._mlp(self.shared_expert_ffn)
        return sharded, replicated + (self.hidden_size if self.shared_expert_gate else 0)

    def router_parameters(self) -> int:
        """Router of one MoE layer, replicated over TP."""
        return self.num_experts * (self.hidden_size + (1 if self.router_bias else 0))

    def embedding_parameters(self) -> int:
        """The token embedding without padding."""
        return self.vocab_size * self.hidden_size

    def final_norm_parameters(self) -> int:
        """The norm before the output layer."""
        return self.hidden_size * (2 if self.layer_norm_bias else 1)

    def mtp_parameters(self) -> int:
        """All multi-token-prediction layers; embedding and head are shared (arXiv 2412.19437)."""
        per_layer = self._layer(moe=self.is_moe) + 2 * self.hidden_size**2
        per_layer += 2 * self.hidden_size + self.final_norm_parameters()
        return self.mtp_layers * per_layer

    def _layer(self, moe: bool, active: bool = False) -> int:
        """Parameters of one decoder layer."""
        total = sum(self.attention_parameters()) + self.norm_parameters()
        if not moe:
            return total + sum(self.dense_mlp_parameters())
        experts = self.moe_topk if active else self.num_experts
        total += experts * self.expert_parameters() + sum(self.shared_expert_parameters())
        return total + self.router_parameters()

    def total_parameters(self, with_mtp: bool = False) -> int:
        """All parameters with the unpadded vocabulary."""
        return self._count(active=False) + (self.mtp_parameters() if with_mtp else 0)

    def active_parameters(self) -> int:
        """Parameters one token passes: top-k experts, embeddings included."""
        return self._count(active=True)

    def _count(self, active: bool) -> int:
        moe = self.num_moe_layers
        layers = moe * self._layer(True, active) if moe else 0
        layers += (self.num_layers - moe) * self._layer(False, active)
        embeddings = self.embedding_parameters() * (1 if self.tied_embeddings else 2)
        positions = self.learned_positions * self.hidden_size
        norms = self.final_norm_parameters() * (2 if self.embedding_norm else 1)
        return layers + embeddings + positions + norms


@dataclass(frozen=True)
class ModelColumns:
    """Architectures as columns: shape () for one model, (n,) after ``take``.

    Parameter columns are per layer (``*_sharded`` divides by TP, ``*_replicated`` does not;
    ``expert_params`` is one expert). MLA widths are 0 where attention is not latent.
    """

    num_layers: Column
    hidden_size: Column
    ffn_hidden_size: Column
    num_attention_heads: Column
    num_query_groups: Column
    head_dim: Column
    vocab_size: Column
    tied_embeddings: Column
    gated_mlp: Column
    layer_norm_bias: Column
    qk_norm: Column
    norms_per_layer: Column
    parallel_block: Column
    learned_positions: Column
    dropout: Column
    sliding_window: Column
    window_layers: Column
    is_mla: Column
    q_lora_rank: Column
    kv_lora_rank: Column
    qk_nope_head_dim: Column
    qk_rope_head_dim: Column
    v_head_dim: Column
    num_experts: Column
    moe_topk: Column
    moe_ffn_hidden_size: Column
    shared_expert_ffn: Column
    expert_bias: Column
    num_moe_layers: Column
    mtp_layers: Column
    attention_sharded: Column
    attention_replicated: Column
    norm_params: Column
    dense_mlp_sharded: Column
    dense_mlp_replicated: Column
    expert_params: Column
    shared_expert_sharded: Column
    shared_expert_replicated: Column
    router_params: Column

    @classmethod
    def of(cls, models: Sequence[Model]) -> ModelColumns:
        """Columns of shape (len(models),)."""
        rows = [_model_row(model) for model in models]
        return cls(**{name: np.array([row[name] for row in rows]) for name in rows[0]})

    @classmethod
    def of_one(cls, model: Model) -> ModelColumns:
        """Columns of shape (), which broadcast over any table."""
        return cls(**{name: np.array(value) for name, value in _model_row(model).items()})

    def take(self, index: Any) -> ModelColumns:
        """The models selected by ``index``, one a row."""
        return ModelColumns(**{name: getattr(self, name)[index] for name in _MODEL_COLUMNS})


_MODEL_COLUMNS = tuple(ModelColumns.__dataclass_fields__)


def _model_row(model: Model) -> dict[str, float | int | bool]:
    """One value a column of ModelColumns."""
    mla = model.mla
    row: dict[str, float | int | bool] = {
        name: getattr(model, name) for name in _MODEL_COLUMNS if name in Model.model_fields
    }
    for width in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"):
        row[width] = getattr(mla, width) if mla else 0
    row["v_head_dim"] = mla.v_head_dim if mla else model.head_dim
    row["is_mla"] = mla is not None
    row["num_moe_layers"] = model.num_moe_layers
    row["attention_sharded"], row["attention_replicated"] = model.attention_parameters()
    row["norm_params"] = model.norm_parameters()
    row["dense_mlp_sharded"], row["dense_mlp_replicated"] = model.dense_mlp_parameters()
    row["expert_params"] = model.expert_parameters()
    row["shared_expert_sharded"], row["shared_expert_replicated"] = model.shared_expert_parameters()
    row["router_params"] = model.router_parameters() if model.is_moe else 0
    return row


def unsupported(what: str, where: str) -> InputError:
    """The sentence for an architecture that foretune does not project."""
    return InputError(
        f"{where}: {what} is not supported; foretune projects decoder-only "
        "transformers with softmax attention (GQA, MLA) and dense or MoE layers."
    )
