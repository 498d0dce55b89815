"""A Llama-like transformer: RMSNorm, rotary positions, grouped queries, gated MLP or experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from collectors.trainer.moe import Experts, MoeLayer
from collectors.trainer.settings import Settings

ROTARY_BASE = 10_000.0


def rotary(positions: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary positions, each (positions, width), fp32 (arXiv 2104.09864)."""
    rates = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotated(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """``heads`` (batch, heads, seq, width) turned by their positions."""
    first, second = heads.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return heads * cosines + turned * sines


class RmsNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, values: Tensor) -> Tensor:
        """Same shape."""
        return functional.rms_norm(values, (values.shape[-1],), self.weight, 1e-5)


class Attention(nn.Module):
    """Causal attention with grouped keys; heads are those of one tensor-parallel rank."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        s = settings
        self.width = s.kv_channels
        self.recompute_core = s.recompute_granularity == "selective"
        keys = s.num_query_groups * s.kv_channels
        self.query = nn.Linear(s.hidden_size, s.head_outputs, bias=False)
        self.key = nn.Linear(s.hidden_size, keys, bias=False)
        self.value = nn.Linear(s.hidden_size, keys, bias=False)
        self.output = nn.Linear(s.head_outputs, s.hidden_size, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same shape."""
        batch, seq = values.shape[0], values.shape[1]

        def split(projected: Tensor) -> Tensor:
            return projected.view(batch, seq, -1, self.width).transpose(1, 2)

        cosines, sines = self.cosines.to(values.dtype), self.sines.to(values.dtype)
        query = rotated(split(self.query(values)), cosines, sines)
        key = rotated(split(self.key(values)), cosines, sines)
        value = split(self.value(values))
        if self.recompute_core and torch.is_grad_enabled():
            attended = checkpoint(self._core, query, key, value, use_reentrant=False)
        else:
            attended = self._core(query, key, value)
        projected: Tensor = self.output(attended.transpose(1, 2).reshape(batch, seq, -1))
        return projected

    def _core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
        )


class Mlp(nn.Module):
    """Gated MLP: down(silu(gate(x)) * up(x))."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same shape."""
        inner = functional.silu(self.gate(values)) * self.up(values)
        out: Tensor = self.down(inner)
        return out


class Layer(nn.Module):
    """Attention and MLP or experts, each behind a norm and beside the residual stream."""

    def __init__(self, settings: Settings, experts: Experts | None) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(settings.hidden_size)
        self.attention = Attention(settings)
        self.mlp_norm = RmsNorm(settings.hidden_size)
        self.mlp = (
            Mlp(settings.hidden_size, settings.ffn_hidden_size)
            if experts is None
            else MoeLayer(settings, experts)
        )

    def forward(self, values: Tensor) -> Tensor:
        """(batch, seq, hidden) to the same shape."""
        values = values + self.attention(self.attention_norm(values))
        out: Tensor = values + self.mlp(self.mlp_norm(values))
        return out


class Stage(nn.Module):
    """Consecutive layers, with the embedding before the first and the logits after the last.

    Layers are named by their number in the whole model, so that a parameter has the same name
    however the model is split.
    """

    embedding: nn.Embedding | None
    norm: RmsNorm | None
    logits: nn.Linear | None

    def __init__(
        self, settings: Settings, layers: Sequence[int], experts: Sequence[Experts | None]
    ) -> None:
        super().__init__()
        s = settings
        self.settings = s
        first, last = 0 in layers, s.num_layers - 1 in layers
        self.embedding = nn.Embedding(s.vocab_size, s.hidden_size) if first else None
        self.layers = nn.ModuleDict(
            {str(n): Layer(s, mine) for n, mine in zip(layers, experts, strict=True)}
        )
        self.norm = RmsNorm(s.hidden_size) if last else None
        self.logits = nn.Linear(s.hidden_size, s.vocab_size, bias=False) if last else None

    def set_positions(self, device: torch.device) -> None:
        """Computes the rotary tables, once for all layers."""
        cosines, sines = rotary(self.settings.seq_length, self.settings.kv_channels)
        cosines, sines = cosines.to(device), sines.to(device)
        for layer in self.layers.values():
            assert isinstance(layer, Layer)
            layer.attention.cosines, layer.attention.sines = cosines, sines

    def forward(self, values: Tensor) -> Tensor:
        """Tokens (batch, seq) or hidden states to hidden states or logits."""
        if self.embedding is not None:
            values = self.embedding(values)
        for unit, recomputed in self._units():
            if recomputed and torch.is_grad_enabled():
                values = checkpoint(_through, unit, values, use_reentrant=False)
            else:
                values = _through(unit, values)
        if self.norm is not None and self.logits is not None:
            values = self.logits(self.norm(values))
        return values

    def _units(self) -> list[tuple[list[nn.Module], bool]]:
        """Layers that are recomputed together, and whether they are (Megatron's uniform, block)."""
        layers, s = list(self.layers.values()), self.settings
        if s.recompute_granularity != "full":
            return [(layers, False)]
        size = s.recompute_num_layers
        if s.recompute_method == "uniform":
            return [(layers[n : n + size], True) for n in range(0, len(layers), size)]
        return [([layer], n < size) for n, layer in enumerate(layers)]


def _through(layers: list[nn.Module], values: Tensor) -> Tensor:
    for layer in layers:
        values = layer(values)
    return values
