"""Times of one layer and of the output layer for one microbatch on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from specs.choices import CpComm, Overlap, Precision, RecomputeModules
from specs.stack import Framework
from surrogate.cases import Cases, Column
from surrogate.communication import all_gather_s, all_to_all_s, ring_step_s
from surrogate.expert_layers import hide_exchange, routed_experts
from surrogate.kernels.utilisation import attention_forward_time_s
from surrogate.operators import (
    ATTENTION,
    BYTES,
    CP,
    ELEMENTWISE,
    EXPERT,
    GEMM,
    HOST,
    TP,
    Block,
    Operators,
)
from surrogate.time_rates import TimeRates
from surrogate.topology import group

DENSE_AXES = ("tp", "cp", "mbs", "sequence_parallel", "precision", "cross_entropy_fusion")
"""Axes that ``DenseBlocks`` depend on: few, and their GEMMs take longest to work out."""


class Blocks:
    """Base of tables of layers: each field is a Block or an array, with one layer a column."""

    def summed(self) -> Self:
        """The same with the parts of each block added up, arrays of shape (u,)."""
        return self._each(lambda parts: parts.sum(axis=0))

    def take(self, columns: Column) -> Self:
        """The selected layers."""
        return self._each(lambda seconds: seconds.take(columns, axis=-1))

    @classmethod
    def concat(cls, tables: Sequence[Self]) -> Self:
        """The layers of several tables, in order."""
        first, *others = tables
        return first._each(lambda *arrays: np.concatenate(arrays, axis=-1), *others)

    def _each(self, function: Callable[..., Column], *others: Self) -> Self:
        """A function of each array, and of those of the same name of others."""
        held: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            values = [getattr(table, field.name) for table in (self, *others)]
            if isinstance(values[0], Block):
                held[field.name] = Block(
                    *(function(*(getattr(v, part.name) for v in values)) for part in fields(Block))
                )
            else:
                held[field.name] = function(*values)
        return type(self)(**held)


@dataclass(frozen=True)
class LayerTimes(Blocks):
    """Blocks of one microbatch, each of shape (parts, u), or (u,) where parts are summed up.

    ``window_saving`` is what a layer with sliding-window attention saves against full attention;
    ``dense_again`` and ``moe_again`` what selective recomputation adds to the backward pass.
    """

    dense: Block
    moe: Block
    window_saving: Block
    dense_again: Column
    moe_again: Column
    output: Block
    mtp_projection: Block
    embedding: Block


@dataclass(frozen=True)
class DenseBlocks(Blocks):
    """What GPUs compute outside of routed experts, blocks of shape (parts, u)."""

    linear: Block
    core: Block
    window_core: Block
    norms: Block
    mlp: Block
    shared: Block
    output: Block
    mtp_projection: Block
    embedding: Block


def layer_times(cases: Cases, rates: TimeRates, dense: DenseBlocks | None = None) -> LayerTimes:
    """Times of u layer kinds; every field of ``cases`` is used except pp, vpp and sharding.

    ``dense`` are their ``dense_blocks``, where they are known already.
    """
    op = Operators(cases, rates)
    blocks = dense_blocks(op) if dense is None else dense
    exchange = _tensor_parallel(op)
    attention = blocks.linear + blocks.core + blocks.norms + exchange
    attention += _context_parallel(op, blocks.core)
    if np.any(op.model.num_experts > 0):
        experts = routed_experts(op)
        shared_exchange = _scaled(exchange, (op.model.shared_expert_ffn > 0) * 1.0)
        moe = attention + experts + blocks.shared + shared_exchange
    else:
        experts = Block.zero(op.rows())
        moe = experts
    # A parallel block sums attention and MLP before their one exchange.
    dense_layer = attention + blocks.mlp + _scaled(exchange, 1.0 - op.model.parallel_block)
    hide_exchange(op, moe)  # before the host: what is hidden shortens no host-bound layer
    _add_host(op, dense_layer, False)
    _add_host(op, moe, True)
    dense_again, moe_again = _selective(op, blocks, experts)
    return LayerTimes(
        dense=dense_layer,
        moe=moe,
        window_saving=_scaled(blocks.window_core, -1.0) + blocks.core,
        dense_again=dense_again,
        moe_again=moe_again,
        output=blocks.output,
        mtp_projection=blocks.mtp_projection,
        embedding=blocks.embedding,
    )


def dense_blocks(op: Operators) -> DenseBlocks:
    """The dense blocks of every row."""
    model, tokens, hidden = op.model, op.tokens, op.model.hidden_size
    shared = _mlp(op, np.maximum(model.shared_expert_ffn, 1), tokens)
    return DenseBlocks(
        linear=_attention_linear(op),
        core=_core_attention(op, np.zeros_like(model.sliding_window)),
        window_core=_core_attention(op, model.sliding_window),
        norms=_norms(op),
        mlp=_mlp(op, model.ffn_hidden_size, tokens),
        shared=_scaled(shared, (model.shared_expert_ffn > 0) * 1.0),
        output=_output(op),
        mtp_projection=op.linear(tokens, hidden / op.tp, 2 * hidden),
        embedding=op.moved(tokens * hidden * 2, tokens * hidden * 4),
    )


def _scaled(block: Block, factor: Any) -> Block:
    return Block(
        block.forward * factor, block.input_gradient * factor, block.weight_gradient * factor
    )


def _attention_linear(op: Operators) -> Block:
    """QKV and output projections, or the factors of latent attention (arXiv 2405.04434)."""
    model, tokens, tp = op.model, op.tokens, op.tp
    hidden, heads = model.hidden_size, model.num_attention_heads
    query = heads * model.head_dim / tp
    packed = (heads + 2 * model.num_query_groups) * model.head_dim / tp
    plain = op.linear(tokens, packed, hidden) + op.linear(tokens, hidden, query)
    plain += op.quantised(tokens * (hidden + query), tokens * (packed + hidden))
    if not np.any(model.is_mla):
        return plain
    latent = _latent_linear(op)
    is_mla = np.broadcast_to(model.is_mla, (op.rows(),))
    return Block(
        np.where(is_mla, latent.forward, plain.forward),
        np.where(is_mla, latent.input_gradient, plain.input_gradient),
        np.where(is_mla, latent.weight_gradient, plain.weight_gradient),
    )


def _latent_linear(op: Operators) -> Block:
    """Down projections (duplicated over TP), up projections (sharded) and output projection."""
    model, tokens, tp = op.model, op.tokens, op.tp
    hidden, heads = model.hidden_size, model.num_attention_heads
    query_head = model.qk_nope_head_dim + model.qk_rope_head_dim
    key_value_head = model.qk_nope_head_dim + model.v_head_dim
    q_rank, kv_rank = np.maximum(model.q_lora_rank, 1), np.maximum(model.kv_lora_rank, 1)
    shards = op.sequence_shards
    has_q_rank = (model.q_lora_rank > 0) * 1.0
    q_width = np.maximum(heads * query_head / tp, 1)
    kv_width = np.maximum(heads * key_value_head / tp, 1)
    direct = op.linear(tokens, q_width, hidden)
    factored = op.linear(tokens / shards, q_rank, hidden) + op.linear(tokens, q_width, q_rank)
    block = _scaled(factored, has_q_rank) + _scaled(direct, 1.0 - has_q_rank)
    block += op.linear(tokens / shards, kv_rank + model.qk_rope_head_dim, hidden)
    block += op.linear(tokens, kv_width, kv_rank)
    block += op.linear(tokens, hidden, np.maximum(heads * model.v_head_dim / tp, 1))
    widths = q_width + kv_width + heads * model.v_head_dim / tp
    latents = model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim
    block += op.quantised(
        tokens * (hidden * 2 / shards + latents + heads * model.v_head_dim / tp),
        tokens * (widths + hidden + latents),
    )
    # Norms of the latents, rotary parts, and keys copied out of the up projection.
    copies = 2 * latents + 2 * widths
    return block + op.moved(tokens * copies, tokens * 1.5 * copies)


def _core_attention(op: Operators, window: Any) -> Block:
    """Softmax attention: fused (FlashAttention) or written out to HBM."""
    model, rates = op.model, op.rates
    seq = op.cases.workload.seq_len
    heads = model.num_attention_heads / op.tp
    query_dim = np.where(
        model.is_mla, model.qk_nope_head_dim + model.qk_rope_head_dim, model.head_dim
    )
    groups = np.where(model.is_mla, model.num_attention_heads, model.num_query_groups) / op.tp
    flash = op.cases.stack.flash_attention
    # Context parallelism splits the work of the whole sequence evenly, at a lower occupancy.
    split = np.where(op.config.cp > 1, rates.cp_imbalance, 1.0) / op.config.cp
    fused = attention_forward_time_s(
        op.config.mbs, seq, seq, heads, groups, query_dim, model.v_head_dim, op.attention, window
    )
    flops = 2.0 * op.tokens * seq * heads * (query_dim + model.v_head_dim)
    forward = np.where(flash, fused * split, flops / (0.5 * op.flops_16bit))
    # The kernels are of 16 bit; in fp32 the same products run at the rate of fp32.
    is_fp32 = op.config.precision == int(Precision.FP32)
    forward = forward * np.where(
        is_fp32, op.cluster.peak_bf16_flops / op.cluster.peak_fp32_flops, 1
    )
    # Scores in 16 bit: written, read and rewritten by the fused softmax, read; dropout adds a pass.
    scores = np.where(flash, 0.0, op.tokens * seq * heads * (BYTES / op.hbm))
    scores = scores * rates.unfused_passes
    backward = forward * np.where(flash, rates.attention_backward, 2.0)
    dropout = np.where(model.dropout, 1.5, 0.0)
    block = Block.zero(op.rows())
    block.forward[ATTENTION] = forward + (4.0 + dropout) * scores
    block.input_gradient[ATTENTION] = backward + (6.0 + dropout) * scores
    return block


def _norms(op: Operators) -> Block:
    """Norms, residuals and dropout (on the sequence shard), rotary embedding (on the heads)."""
    model = op.model
    width = model.hidden_size / op.sequence_shards
    passes = 2.0 * model.norms_per_layer + 6.0 + np.where(model.dropout, 5.0, 0.0)
    heads = (model.num_attention_heads + model.num_query_groups) * model.head_dim / op.tp
    rotary = np.where(model.is_mla | (model.learned_positions > 0), 0.0, 2.0 * heads)
    forward = op.tokens * (passes * width + rotary)
    return op.moved(forward, forward * 1.25)


def _mlp(op: Operators, ffn: Any, tokens: Any) -> Block:
    """A dense MLP of width ``ffn`` sharded by TP."""
    model = op.model
    hidden, inner = model.hidden_size, ffn / op.tp
    up = inner * np.where(model.gated_mlp, 2.0, 1.0)
    block = op.linear(tokens, up, hidden) + op.linear(tokens, hidden, inner)
    block += op.quantised(tokens * (hidden + inner), tokens * (up + hidden))
    return block + op.moved(tokens * (up + inner), tokens * (2 * up + inner))


def _tensor_parallel(op: Operators) -> Block:
    """All-gather and reduce-scatter around one column- and row-parallel pair, or two all-reduces.

    Megatron's overlap splits them along the GEMMs; without it part hides behind the weight
    gradient.
    """
    members = group(op.config.tp, 1, op.domain)
    volume = op.tokens * op.model.hidden_size * BYTES
    once = 2.0 * all_gather_s(volume, members, op.network)
    overlapped = (op.config.overlap & int(Overlap.TP)) > 0
    exposed = np.where(overlapped, op.rates.tp_exposed_overlap, op.rates.tp_exposed)
    spent = once * exposed + np.where(op.config.tp > 1, 2.0 * op.rates.tp_straggle, 0.0)
    block = Block.zero(op.rows())
    block.forward[TP] = spent
    block.input_gradient[TP] = spent
    return block


def _context_parallel(op: Operators, attention: Block) -> Block:
    """Keys and values travel to all ranks of the sequence, or heads are traded for tokens."""
    config, model = op.config, op.model
    block = Block.zero(op.rows())
    if np.all(config.cp == 1):
        return block
    members = group(config.cp, config.tp, op.domain)
    steps = config.cp - 1.0
    latent = model.num_attention_heads * (
        model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
    )
    plain = 2.0 * model.num_query_groups * model.head_dim
    width = np.where(model.is_mla, latent, plain) / np.minimum(
        op.tp, np.where(model.is_mla, op.tp, model.num_query_groups)
    )
    part = op.tokens * width * BYTES
    step = ring_step_s(part, members, op.network)
    ring_forward = _behind(steps * step, attention.forward[ATTENTION], op.rates.cp_exposed)
    ring_backward = _behind(
        2.0 * steps * step, attention.input_gradient[ATTENTION], op.rates.cp_exposed
    )
    queries = 2.0 * model.num_attention_heads * model.v_head_dim / op.tp
    traded = all_to_all_s(op.tokens * (queries + width) * BYTES, members, op.network)
    gathered = all_gather_s(part * config.cp, members, op.network)
    is_ring = config.cp_comm == int(CpComm.P2P)
    is_traded = config.cp_comm == int(CpComm.A2A)
    block.forward[CP] = np.where(is_ring, ring_forward, np.where(is_traded, traded, gathered))
    block.input_gradient[CP] = np.where(
        is_ring, ring_backward, np.where(is_traded, traded, 2.0 * gathered)
    )
    return block


def _behind(communication: Any, compute: Any, exposed: Any) -> Column:
    """What remains of communication behind compute: the excess, and a share of what is hidden."""
    hidden = np.minimum(communication, compute)
    rest: Column = communication - hidden + exposed * hidden
    return rest


def _add_host(op: Operators, block: Block, is_moe: bool) -> None:
    """What the host adds where it launches slower than the GPU computes.

    The longer of both counts; where they are close they do not overlap perfectly (4-norm).
    """
    rates = op.rates
    stack = op.cases.stack
    host = rates.host_layer + np.where(op.config.tp > 1, rates.host_tp, 0.0)
    host = host * np.where(stack.cuda_graphs, rates.host_graphs, 1.0)
    waiting: Any = 0.0
    if is_moe:
        sync_free = np.where(op.config.sync_free_stage >= 2, 0.5, 1.0)
        local = op.model.num_experts / op.config.ep
        experts = (rates.host_moe + rates.host_expert * local) * sync_free
        # Graphs of layers leave out experts whose shapes change from batch to batch.
        padded = op.cases.workload.capacity_factor > 0
        captured = stack.full_iteration_graphs | (stack.cuda_graphs & padded)
        host = host + experts * np.where(captured, rates.host_graphs, 1.0)
        # Layers of two microbatches in turns, in parts: more to launch, unless a graph holds it.
        in_turns = ((op.config.overlap & int(Overlap.EP)) > 0) & ~stack.full_iteration_graphs
        host = host * np.where(in_turns, rates.host_overlap, 1.0)
        waiting = np.where(_reads_token_counts(op), rates.host_sync * experts, 0.0)
    forward = block.forward.sum(axis=0)
    backward = block.input_gradient.sum(axis=0) + block.weight_gradient.sum(axis=0)
    block.forward[HOST] = _longer(forward, host) - forward + waiting
    block.input_gradient[HOST] = _longer(backward, host * rates.host_backward) - backward


def _reads_token_counts(op: Operators) -> Column:
    """Whether the host reads how many tokens each expert received before it launches the experts:
    the GPU then waits for what is launched next, however busy it was."""
    stack, config = op.cases.stack, op.config
    padded = op.cases.workload.capacity_factor > 0
    reads: Column = (config.sync_free_stage == 0) & ~stack.full_iteration_graphs & ~padded
    return reads


def _longer(first: Any, second: Any) -> Column:
    """A smooth maximum."""
    squares = np.square(np.square(first)) + np.square(np.square(second))
    result: Column = np.sqrt(np.sqrt(squares))
    return result


def _selective(op: Operators, blocks: DenseBlocks, experts: Block) -> tuple[Column, Column]:
    """Forward work that selective recomputation repeats in a dense and in an MoE layer."""
    modules = op.config.recompute_modules
    linear, norms, shared = blocks.linear, blocks.norms, blocks.shared
    none = np.zeros_like(linear.forward)
    if not np.any(modules):
        return none, none

    def repeated(module: RecomputeModules, times: Column) -> Column:
        return np.where((modules & int(module)) > 0, times, 0.0)

    activation = np.zeros_like(none)
    activation[ELEMENTWISE] = 0.4 * experts.forward[ELEMENTWISE]
    up_projection = np.zeros_like(none)
    up_projection[GEMM] = np.where(op.model.is_mla, 0.6 * linear.forward[GEMM], 0.0)
    both = repeated(RecomputeModules.CORE_ATTN, blocks.core.forward)
    both = both + repeated(RecomputeModules.LAYERNORM, 0.5 * norms.forward)
    both = both + repeated(RecomputeModules.MLA_UP_PROJ, up_projection)
    dense = both + repeated(RecomputeModules.MLP, blocks.mlp.forward)
    whole_moe = repeated(RecomputeModules.MOE, experts.forward + shared.forward)
    moe = both + whole_moe
    only_parts = (modules & int(RecomputeModules.MOE)) == 0
    parts = repeated(RecomputeModules.MOE_ACT, activation)
    parts = parts + repeated(RecomputeModules.SHARED_EXPERTS, shared.forward)
    moe = moe + np.where(only_parts, parts, 0.0)
    # TorchTitan's policy is by operator: every second GEMM and all element-wise kernels again.
    by_operator = (modules > 0) & (op.cases.stack.framework == int(Framework.TORCHTITAN))
    operators = linear + norms
    return (
        np.where(by_operator, _operators_again(operators + blocks.mlp), dense),
        np.where(by_operator, _operators_again(operators + experts + shared), moe),
    )


def _operators_again(block: Block) -> Column:
    """What per-operator recomputation repeats of these blocks."""
    again = np.zeros_like(block.forward)
    again[GEMM] = 0.5 * block.forward[GEMM]
    again[EXPERT] = 0.5 * block.forward[EXPERT]
    again[ELEMENTWISE] = block.forward[ELEMENTWISE]
    return again


def _output(op: Operators) -> Block:
    """Output layer (16 bit in every recipe) and the vocabulary-parallel cross-entropy."""
    model, tokens = op.model, op.tokens
    vocab = model.vocab_size / op.tp
    block = op.linear(tokens, vocab, model.hidden_size, op.kernels_16bit)
    fused = op.config.cross_entropy_fusion
    logits = tokens * vocab * op.rates.logits_passes
    return block + op.moved(np.where(fused, 4.0, 8.0) * logits, np.where(fused, 3.0, 5.0) * logits)
