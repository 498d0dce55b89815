"""Times of one layer and of the output layer for one microbatch on one GPU, communication included.

Every operator takes work over peak times utilisation, plus what it moves through HBM. Forward,
input-gradient and weight-gradient GEMMs have the same sizes in another order, so they take the same
time, up to the traffic of gradient accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specs.choices import (
    CpComm,
    MoeDispatcher,
    Overlap,
    Precision,
    RecomputeModules,
    TrainingKind,
)
from specs.stack import Framework
from surrogate.cases import Cases, Column
from surrogate.communication import (
    Network,
    all_gather_s,
    all_to_all_s,
    dispatch_s,
    ring_step_s,
)
from surrogate.kernel_columns import attention_constants, gemm_constants
from surrogate.time_rates import TimeRates
from surrogate.topology import group
from surrogate.utilisation import GemmConstants, attention_forward_time_s, gemm_time_s

PARTS = ("gemm", "expert_gemm", "attention", "elementwise", "host", "tp", "cp", "ep")
"""What the time of a layer is made of; the last three are exposed communication."""
_GEMM, _EXPERT, _ATTENTION, _ELEMENTWISE, _HOST, _TP, _CP, _EP = range(len(PARTS))
_COMPUTE = slice(_GEMM, _HOST)

_EDGE = 100.0
"""Elements of a GEMM side that cost as much as filling and draining its tiles."""

BYTES = 2
"""Bytes of an activation element (bf16 or fp16)."""


@dataclass
class Block:
    """Seconds by part, arrays of shape (parts, u)."""

    forward: Column
    input_gradient: Column
    weight_gradient: Column

    @classmethod
    def zero(cls, rows: int) -> Block:
        """No time."""
        return cls(*(np.zeros((len(PARTS), rows)) for _ in range(3)))

    def __add__(self, other: Block) -> Block:
        return Block(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
        )

    @property
    def backward(self) -> Column:
        """Both gradients."""
        both: Column = self.input_gradient + self.weight_gradient
        return both


@dataclass(frozen=True)
class LayerTimes:
    """Blocks of one microbatch, each of shape (parts, u).

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


class _Operators:
    """Sizes, rates and elementary operators of u rows."""

    def __init__(self, cases: Cases, rates: TimeRates) -> None:
        self.cases, self.rates = cases, rates
        self.config, self.model, self.cluster = cases.config, cases.model, cases.cluster
        config, cluster = self.config, cases.cluster
        self.tp = config.tp.astype(np.float64)
        self.sequence_shards = np.where(config.sequence_parallel, self.tp, 1.0)
        self.seq = cases.workload.seq_len / config.cp
        self.tokens = config.mbs * self.seq
        self.hbm = cluster.hbm_bytes_per_s * rates.memory_utilisation
        self.network = Network.of(cluster, rates)
        self.domain = cluster.scale_up_gpus
        precision = config.precision
        self.is_fp8 = (precision >= int(Precision.FP8)) & (precision <= int(Precision.MXFP8))
        self.is_fp4 = precision >= int(Precision.NVFP4)
        efficiency = rates.stack_efficiency
        self.kernels = _slowed(
            gemm_constants(cases, precision), rates.gemm_utilisation * efficiency
        )
        self.kernels_16bit = _slowed(
            gemm_constants(cases, np.zeros_like(cases.cluster.gpu)),
            rates.gemm_utilisation_16bit * efficiency,
        )
        attention = attention_constants(cases)
        reached = attention.utilisation_max * rates.attention_utilisation * efficiency
        self.attention = replace(attention, utilisation_max=np.minimum(reached, 1.0))
        self.gemm_rate = self.kernels.peak_flops * self.kernels.utilisation_max
        self.flops_16bit = cluster.peak_bf16_flops * np.minimum(efficiency, 1.0)
        self.is_lora = cases.workload.kind == int(TrainingKind.LORA)
        self.gradient_traffic = 2.0 * cases.stack.gradient_bytes / self.hbm
        self.norm_moved = (
            rates.elementwise_passes * BYTES / (self.hbm * np.minimum(efficiency, 1.0))
        )

    def rows(self) -> int:
        return len(self.config)

    def linear(self, m: Any, n: Any, k: Any, kernels: GemmConstants | None = None) -> Block:
        """A linear layer C[m, n] = A[m, k] B[k, n]: a GEMM forward, two backward, accumulation."""
        kernels = kernels or self.kernels
        block = Block.zero(self.rows())
        block.forward[_GEMM] = gemm_time_s(m, n, k, kernels, quantise=False)
        block.input_gradient[_GEMM] = gemm_time_s(m, k, n, kernels, quantise=False)
        weight = gemm_time_s(n, k, m, kernels, quantise=False) + n * k * self.gradient_traffic
        block.weight_gradient[_GEMM] = np.where(self.is_lora, 0.0, weight)
        return block

    def moved(self, forward: Any, backward: Any) -> Block:
        """Element-wise kernels that move so many 16-bit elements."""
        block = Block.zero(self.rows())
        block.forward[_ELEMENTWISE] = forward * self.norm_moved
        block.input_gradient[_ELEMENTWISE] = backward * self.norm_moved
        return block

    def quantised(self, forward: Any, backward: Any) -> Block:
        """Casts of GEMM operands to 8 or 4 bit: read 16 bit, write rows and columns."""
        cost = np.where(self.is_fp8, 4.0, np.where(self.is_fp4, 3.0, 0.0))
        cost = cost * self.rates.quantise_passes / self.hbm
        block = Block.zero(self.rows())
        block.forward[_ELEMENTWISE] = forward * cost
        block.input_gradient[_ELEMENTWISE] = backward * cost
        return block


def _slowed(kernels: GemmConstants, factor: Any) -> GemmConstants:
    """The kernels at a share of their rate, never above the peak."""
    return replace(kernels, utilisation_max=np.minimum(kernels.utilisation_max * factor, 1.0))


def layer_times(cases: Cases, rates: TimeRates) -> LayerTimes:
    """Times of u layer kinds; every field of ``cases`` is used except pp, vpp and sharding."""
    op = _Operators(cases, rates)
    full = _core_attention(op, np.zeros_like(op.model.sliding_window))
    window = _core_attention(op, op.model.sliding_window)
    linear = _attention_linear(op)
    norms = _norms(op)
    exchange = _tensor_parallel(op)
    ring = _context_parallel(op, full)
    attention = linear + full + norms + exchange + ring
    mlp = _mlp(op, op.model.ffn_hidden_size, op.tokens)
    has_shared = (op.model.shared_expert_ffn > 0) * 1.0
    shared = _scaled(_mlp(op, np.maximum(op.model.shared_expert_ffn, 1), op.tokens), has_shared)
    shared_exchange = _scaled(exchange, has_shared)
    if np.any(op.model.num_experts > 0):
        experts = _experts(op)
        moe = attention + experts + shared + shared_exchange
    else:
        experts = Block.zero(op.rows())
        moe = experts
    dense = attention + mlp + exchange
    _add_host(op, dense, False)
    _add_host(op, moe, True)
    saving = Block(
        full.forward - window.forward,
        full.input_gradient - window.input_gradient,
        full.weight_gradient - window.weight_gradient,
    )
    dense_again, moe_again = _selective(op, full, norms, linear, mlp, experts, shared)
    _hide_experts(op, moe)
    return LayerTimes(
        dense=dense,
        moe=moe,
        window_saving=saving,
        dense_again=dense_again,
        moe_again=moe_again,
        output=_output(op),
        mtp_projection=op.linear(op.tokens, op.model.hidden_size / op.tp, 2 * op.model.hidden_size),
        embedding=op.moved(
            op.tokens * op.model.hidden_size * 2, op.tokens * op.model.hidden_size * 4
        ),
    )


def _scaled(block: Block, factor: Any) -> Block:
    return Block(
        block.forward * factor, block.input_gradient * factor, block.weight_gradient * factor
    )


def _attention_linear(op: _Operators) -> Block:
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


def _latent_linear(op: _Operators) -> Block:
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


def _core_attention(op: _Operators, window: Any) -> Block:
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
    # Scores in 16 bit: written, read and rewritten by the fused softmax, read; dropout adds a pass.
    scores = np.where(flash, 0.0, op.tokens * seq * heads * (BYTES / op.hbm))
    scores = scores * rates.unfused_passes
    backward = forward * np.where(flash, rates.attention_backward, 2.0)
    dropout = np.where(model.dropout, 1.5, 0.0)
    block = Block.zero(op.rows())
    block.forward[_ATTENTION] = forward + (4.0 + dropout) * scores
    block.input_gradient[_ATTENTION] = backward + (6.0 + dropout) * scores
    return block


def _norms(op: _Operators) -> Block:
    """Norms, residuals and dropout (on the sequence shard), rotary embedding (on the heads)."""
    model = op.model
    width = model.hidden_size / op.sequence_shards
    passes = 2.0 * model.norms_per_layer + 6.0 + np.where(model.dropout, 5.0, 0.0)
    heads = (model.num_attention_heads + model.num_query_groups) * model.head_dim / op.tp
    rotary = np.where(model.is_mla | (model.learned_positions > 0), 0.0, 2.0 * heads)
    forward = op.tokens * (passes * width + rotary)
    return op.moved(forward, forward * 1.25)


def _mlp(op: _Operators, ffn: Any, tokens: Any) -> Block:
    """A dense MLP of width ``ffn`` sharded by TP."""
    model = op.model
    hidden, inner = model.hidden_size, ffn / op.tp
    up = inner * np.where(model.gated_mlp, 2.0, 1.0)
    block = op.linear(tokens, up, hidden) + op.linear(tokens, hidden, inner)
    block += op.quantised(tokens * (hidden + inner), tokens * (up + hidden))
    return block + op.moved(tokens * (up + inner), tokens * (2 * up + inner))


def _tensor_parallel(op: _Operators) -> Block:
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
    block.forward[_TP] = spent
    block.input_gradient[_TP] = spent
    return block


def _context_parallel(op: _Operators, attention: Block) -> Block:
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
    ring_forward = _behind(steps * step, attention.forward[_ATTENTION], op.rates.cp_exposed)
    ring_backward = _behind(
        2.0 * steps * step, attention.input_gradient[_ATTENTION], op.rates.cp_exposed
    )
    queries = 2.0 * model.num_attention_heads * model.v_head_dim / op.tp
    traded = all_to_all_s(op.tokens * (queries + width) * BYTES, members, op.network)
    gathered = all_gather_s(part * config.cp, members, op.network)
    is_ring = config.cp_comm == int(CpComm.P2P)
    is_traded = config.cp_comm == int(CpComm.A2A)
    block.forward[_CP] = np.where(is_ring, ring_forward, np.where(is_traded, traded, gathered))
    block.input_gradient[_CP] = np.where(
        is_ring, ring_backward, np.where(is_traded, traded, 2.0 * gathered)
    )
    return block


def _behind(communication: Any, compute: Any, exposed: Any) -> Column:
    """What remains of communication behind compute: the excess, and a share of what is hidden."""
    hidden = np.minimum(communication, compute)
    rest: Column = communication - hidden + exposed * hidden
    return rest


def _experts(op: _Operators) -> Block:
    """Router, dispatch, permutation, grouped GEMMs and the way back."""
    model, config, rates, workload = op.model, op.config, op.rates, op.cases.workload
    hidden = model.hidden_size
    num_experts = np.maximum(model.num_experts, 1)
    topk = np.maximum(model.moe_topk, 1)
    ffn = np.maximum(model.moe_ffn_hidden_size, 1) / config.etp
    up = ffn * np.where(model.gated_mlp, 2.0, 1.0)
    own = op.tokens / op.tp
    padded = workload.capacity_factor > 0
    load = np.where(padded, workload.capacity_factor, workload.routing_imbalance)
    copies = own * topk * load
    rows = copies * config.etp
    local = num_experts / config.ep
    per_expert = rows / local
    block = _grouped_gemms(op, rows, per_expert, local, up, ffn, padded)
    router = op.linear(own, num_experts, hidden, op.kernels_16bit)
    block += router + op.moved(own * num_experts * 8.0, own * num_experts * 8.0)
    sorted_again = np.where(config.moe_dispatcher >= int(MoeDispatcher.DEEPEP), 4.0, 8.0)
    permuted = rates.permute_passes * sorted_again * rows * hidden
    block += op.moved(permuted + rows * (up + ffn), permuted + rows * (2 * up + ffn))
    block += op.quantised(rows * (hidden + ffn), rows * (up + hidden))
    # Experts with biases (GPT-OSS) clamp and scale their gate: kernels that no library fuses.
    unfused = np.where(model.expert_bias, rows * (2 * up + 2 * hidden + 10 * ffn), 0.0)
    block += op.moved(unfused, 1.5 * unfused)
    exchange = _expert_exchange(op, own, copies, topk)
    block.forward[_EP] = exchange
    block.input_gradient[_EP] = exchange
    return block


def _grouped_gemms(
    op: _Operators, rows: Any, per_expert: Any, local: Any, up: Any, ffn: Any, padded: Any
) -> Block:
    """The two GEMMs of every local expert; each expert pads its rows to whole tiles.

    Batches of equal size (capacity factor) run as dense GEMMs.
    """
    rates, hidden = op.rates, op.model.hidden_size
    share = np.where(padded, 1.0, rates.grouped_utilisation)
    padding = 1.0 + np.where(padded, _EDGE, rates.grouped_padding) / per_expert
    edges = 1.0 + _EDGE * (1.0 / hidden + 1.0 / ffn)
    rate = op.gemm_rate * share / (padding * edges)
    weights = local * hidden * (up + ffn)
    compute = 2.0 * rows * hidden * (up + ffn) / rate
    traffic = (weights + rows * (2 * hidden + up + ffn)) * (BYTES / op.hbm)
    once = np.maximum(compute, traffic) + 2.0 * op.kernels.latency_s
    block = Block.zero(op.rows())
    block.forward[_EXPERT] = block.input_gradient[_EXPERT] = once
    block.weight_gradient[_EXPERT] = np.where(op.is_lora, 0.0, once + weights * op.gradient_traffic)
    return block


def _expert_exchange(op: _Operators, own: Any, copies: Any, topk: Any) -> Column:
    """Dispatch and combine of one direction, before what compute hides."""
    config = op.config
    members = group(config.ep, config.etp, op.domain)
    row_bytes = op.model.hidden_size * BYTES
    plain = 2.0 * all_to_all_s(copies * row_bytes, members, op.network)
    once = dispatch_s(own * copies / (own * topk) * row_bytes, topk, members, op.network)
    by_kernel = 2.0 * once
    world = group(config.ep * config.etp, 1, op.domain)
    all_tokens = own * row_bytes * world.size
    gathered = 2.0 * all_gather_s(all_tokens, world, op.network)
    dispatcher = config.moe_dispatcher
    moved = np.where(
        dispatcher == int(MoeDispatcher.ALLGATHER),
        gathered,
        np.where(dispatcher == int(MoeDispatcher.ALLTOALL), plain, by_kernel),
    )
    shards = group(config.etp, 1, op.domain)
    spread = 2.0 * all_gather_s(copies * config.etp * row_bytes, shards, op.network)
    result: Column = np.where(config.ep > 1, moved, 0.0) + np.where(config.etp > 1, spread, 0.0)
    return result


def _hide_experts(op: _Operators, moe: Block) -> None:
    """All-to-all of one microbatch behind the compute of another (Megatron EP overlap)."""
    overlapped = (op.config.overlap & int(Overlap.EP)) > 0
    if not np.any(overlapped):
        return
    for times in (moe.forward, moe.input_gradient):
        hidden = np.minimum(times[_EP], times[_COMPUTE].sum(axis=0))
        times[_EP] -= np.where(overlapped, op.rates.ep_overlap * hidden, 0.0)


def _add_host(op: _Operators, block: Block, is_moe: bool) -> None:
    """What the host adds where it launches slower than the GPU computes.

    The longer of both counts; where they are close they do not overlap perfectly (4-norm).
    """
    rates = op.rates
    host = rates.host_layer + np.where(op.config.tp > 1, rates.host_tp, 0.0)
    if is_moe:
        sync_free = np.where(op.config.sync_free_stage >= 2, 0.5, 1.0)
        local = op.model.num_experts / op.config.ep
        host = host + (rates.host_moe + rates.host_expert * local) * sync_free
    host = host * np.where(op.cases.stack.cuda_graphs, rates.host_graphs, 1.0)
    forward = block.forward.sum(axis=0)
    backward = block.input_gradient.sum(axis=0) + block.weight_gradient.sum(axis=0)
    block.forward[_HOST] = _longer(forward, host) - forward
    block.input_gradient[_HOST] = _longer(backward, host * rates.host_backward) - backward


def _longer(first: Any, second: Any) -> Column:
    """A smooth maximum."""
    squares = np.square(np.square(first)) + np.square(np.square(second))
    result: Column = np.sqrt(np.sqrt(squares))
    return result


def _selective(
    op: _Operators,
    core: Block,
    norms: Block,
    linear: Block,
    mlp: Block,
    experts: Block,
    shared: Block,
) -> tuple[Column, Column]:
    """Forward work that selective recomputation repeats in a dense and in an MoE layer."""
    modules = op.config.recompute_modules
    none = np.zeros_like(core.forward)
    if not np.any(modules):
        return none, none

    def repeated(module: RecomputeModules, times: Column) -> Column:
        return np.where((modules & int(module)) > 0, times, 0.0)

    activation = np.zeros_like(none)
    activation[_ELEMENTWISE] = 0.4 * experts.forward[_ELEMENTWISE]
    up_projection = np.zeros_like(none)
    up_projection[_GEMM] = np.where(op.model.is_mla, 0.6 * linear.forward[_GEMM], 0.0)
    both = repeated(RecomputeModules.CORE_ATTN, core.forward)
    both = both + repeated(RecomputeModules.LAYERNORM, 0.5 * norms.forward)
    both = both + repeated(RecomputeModules.MLA_UP_PROJ, up_projection)
    dense = both + repeated(RecomputeModules.MLP, mlp.forward)
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
        np.where(by_operator, _operators_again(operators + mlp), dense),
        np.where(by_operator, _operators_again(operators + experts + shared), moe),
    )


def _operators_again(block: Block) -> Column:
    """What per-operator recomputation repeats of these blocks."""
    again = np.zeros_like(block.forward)
    again[_GEMM] = 0.5 * block.forward[_GEMM]
    again[_EXPERT] = 0.5 * block.forward[_EXPERT]
    again[_ELEMENTWISE] = block.forward[_ELEMENTWISE]
    return again


def _output(op: _Operators) -> Block:
    """Output layer (16 bit in every recipe) and the vocabulary-parallel cross-entropy."""
    model, tokens = op.model, op.tokens
    vocab = model.vocab_size / op.tp
    block = op.linear(tokens, vocab, model.hidden_size, op.kernels_16bit)
    fused = op.config.cross_entropy_fusion
    logits = tokens * vocab * op.rates.logits_passes
    return block + op.moved(np.where(fused, 4.0, 8.0) * logits, np.where(fused, 3.0, 5.0) * logits)
