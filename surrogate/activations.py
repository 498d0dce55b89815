"""Activations of one microbatch in one layer, by module, as bytes per token of a GPU.

What autograd keeps for the backward pass, after arXiv 2205.05198 (equations 1 to 6) extended to
flash attention (arXiv 2205.14135), grouped queries, latent attention (arXiv 2405.04434), gated MLPs
and routed experts (Megatron Core MoE). Recomputation removes modules or whole layers and adds the
working set of what is being rebuilt.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.choices import MoeDispatcher, Precision, Recompute, RecomputeMethod, RecomputeModules
from surrogate.cases import Cases
from surrogate.memory_constants import IS_EAGER, IS_XLA, MemoryConstants

Column = NDArray[Any]

MASK_BYTES = 1.0
STATISTICS_BYTES = 4.0
"""Log-sum-exp of flash attention, one fp32 a head and token."""
ROUTER_BYTES = 12.0
"""Logits and probabilities in fp32, scores of the auxiliary loss, an expert and token."""


class LayerBytes(NamedTuple):
    """Bytes that one layer keeps for one microbatch on a GPU, each (n,).

    ``dense`` and ``moe`` are kept by a layer that is not fully recomputed, ``checkpoint`` by one
    that is. ``whole_*`` is the working set while a recomputed layer is rebuilt; ``rebuilt_*`` that
    of the modules of selective recomputation. ``gradients_*`` are the largest activation gradients
    alive while the layer's backward pass runs.
    """

    dense: Column
    moe: Column
    checkpoint: Column
    whole_dense: Column
    whole_moe: Column
    rebuilt_dense: Column
    rebuilt_moe: Column
    gradients_dense: Column
    gradients_moe: Column


class _Modules(NamedTuple):
    """Bytes per token of each module of a layer, each () or (n,)."""

    norm_inputs: Column
    linear_inputs: Column
    dropout_masks: Column
    latents: Column
    queries_keys_values: Column
    core: Column
    core_gradients: Column
    core_output: Column
    mlp: Column
    router: Column
    expert_io: Column
    expert_inner: Column
    expert_activation: Column
    shared: Column


def tokens_per_microbatch(cases: Cases) -> Column:
    """Tokens of one microbatch on a context-parallel rank, (n,)."""
    tokens: Column = cases.config.mbs * cases.workload.seq_len / cases.config.cp
    return tokens


def sent_tokens(cases: Cases) -> Column:
    """Copies of tokens that one GPU sends to experts per token of a microbatch, (n,).

    An expert tensor-parallel group gathers those of all its ranks. A capacity factor pads or drops.
    """
    c, w = cases.config, cases.workload
    copies = cases.model.moe_topk * c.etp / sequence_shards(cases)
    sent: Column = copies * np.where(w.capacity_factor > 0, np.minimum(w.capacity_factor, c.ep), 1)
    return sent


def expert_tokens(cases: Cases) -> Column:
    """Rows of the tensors that hold what the experts of one GPU receive, per token of a microbatch,
    (n,).

    Every expert-parallel rank receives as many copies as it sends where routing is balanced. XLA
    compiles for fixed shapes: without a capacity factor, MaxText sizes what ``ragged_all_to_all``
    receives for every token of the group going to the experts of one rank (MaxText moe.py,
    ``buffer_size``).
    """
    c, w, m = cases.config, cases.workload, cases.model
    is_dropless = w.capacity_factor == 0
    # A rank never receives more than every token of its group.
    factor = np.where(is_dropless, np.minimum(w.routing_imbalance, c.ep), 1.0)
    fixed = IS_XLA[cases.stack.framework] & is_dropless & (c.ep > 1)
    fixed = fixed & (c.moe_dispatcher == int(MoeDispatcher.ALLTOALL))
    if np.any(fixed):
        of_one_token = np.minimum(m.num_experts / c.ep, m.moe_topk) / np.maximum(m.moe_topk, 1)
        factor = np.where(fixed, c.ep * of_one_token, factor)
    return np.asarray(sent_tokens(cases) * factor)


def sequence_shards(cases: Cases) -> Column:
    """Ranks that share the sequence between TP regions: tp with sequence parallelism, else 1."""
    c = cases.config
    return np.where(c.sequence_parallel, c.tp, 1)


def layer_bytes(cases: Cases, constants: MemoryConstants) -> LayerBytes:
    """Bytes of a dense and of an MoE layer under the recomputation of each row."""
    c = cases.config
    tokens = tokens_per_microbatch(cases)
    modules = _modules(cases, constants)
    family = cases.stack.framework
    compiled = np.where(cases.stack.compiled, constants.compiled_activations, 1.0)
    scale = tokens * (constants.activation_scale[family] * compiled)
    whole_dense, whole_moe = _whole(modules)
    dense, moe, rebuilt_dense, rebuilt_moe = _selective(cases, modules, constants)
    checkpoint = 2.0 * cases.model.hidden_size / sequence_shards(cases)
    layers_per_unit = np.where(
        c.recompute_method == int(RecomputeMethod.UNIFORM), np.maximum(c.recompute_layers, 1), 1
    )
    back = constants.backward_copies[family]
    checkpoint = tokens * checkpoint * constants.checkpoint_bytes[family] / layers_per_unit
    returning: Column = np.zeros(())
    offloaded = cases.stack.checkpoint_offload_fraction
    if offloaded.any():
        # Checkpoints that the host holds come back one layer ahead of the one that is rebuilt.
        returning = 2.0 * offloaded * checkpoint
        checkpoint = checkpoint * (1.0 - offloaded)
    experts = modules.expert_inner + modules.expert_io + modules.shared
    return LayerBytes(
        dense=scale * dense,
        moe=scale * moe,
        checkpoint=checkpoint,
        whole_dense=scale * whole_dense * layers_per_unit + returning,
        whole_moe=scale * whole_moe * layers_per_unit + returning,
        rebuilt_dense=scale * rebuilt_dense,
        rebuilt_moe=scale * rebuilt_moe,
        gradients_dense=scale * _gradients(back, modules.mlp, modules.core_gradients),
        gradients_moe=scale * _gradients(back, experts, modules.core_gradients),
    )


def _gradients(copies: Column, mlp: Column, scores: Column) -> Column:
    """Bytes per token of the largest gradients in a layer's backward pass: those of the MLP, which
    runs first, or of attention scores, when what the MLP kept is freed."""
    of_mlp: Column = copies * mlp
    return np.maximum(of_mlp, scores - mlp) if scores.any() else of_mlp


def _score_gradients(cases: Cases, width: Column) -> Column:
    """Bytes per token of the gradients of attention probabilities and scores, beyond what is kept;
    none with flash attention.

    One tensor of the size of the scores: Megatron's fused softmax turns the gradient of its output
    into that of its input in place (scaled_masked_softmax_cuda.cu), and where dropout follows, what
    it made is freed by then. Layers of plain PyTorch without dropout hold both gradients.
    """
    flash = cases.stack.flash_attention
    if flash.all():
        return np.zeros(())
    both = IS_EAGER[cases.stack.framework] & ~cases.model.dropout
    heads = cases.model.num_attention_heads / cases.config.tp
    scores = np.where(both, 2.0, 1.0) * width * cases.workload.seq_len * heads
    return np.where(flash, 0.0, scores)


def _modules(cases: Cases, constants: MemoryConstants) -> _Modules:
    """Bytes per token of each module."""
    m, c, s = cases.model, cases.config, cases.stack
    family = s.framework
    h, tp, sp = m.hidden_size, c.tp, sequence_shards(cases)
    width = np.where(c.precision == int(Precision.FP32), 4.0, 2.0)
    is_fp8 = c.precision >= int(Precision.FP8)
    saved_input = np.where(is_fp8, constants.fp8_saved_input[family], width)
    matrices = np.where(m.gated_mlp, constants.gated_mlp_copies[family], 1.0)
    # DTensor keeps the gathered input of a column-parallel layer, Megatron gathers it again.
    gathered = np.where(IS_EAGER[family], 1, sp)
    rows = expert_tokens(cases)
    etp = np.maximum(c.etp, 1)
    output_copies = np.where(
        c.moe_dispatcher >= int(MoeDispatcher.DEEPEP),
        constants.deepep_output_copies,
        constants.expert_output_copies,
    )
    # XLA schedules the layer that it rebuilds as a whole: outputs are combined before gradients.
    output_copies = np.where(IS_XLA[family], 0.0, output_copies)
    latents, qkv = _attention_inputs(cases, width)
    core = np.where(
        s.flash_attention,
        STATISTICS_BYTES,
        cases.workload.seq_len * (width + np.where(m.dropout, width + MASK_BYTES, 0.0)),
    )
    is_moe = m.num_experts > 0
    return _Modules(
        norm_inputs=constants.norm_bytes[family] * m.norms_per_layer * h / sp,
        linear_inputs=2.0 * saved_input * h / gathered,
        dropout_masks=np.where(m.dropout, 2.0 * MASK_BYTES * h, 0.0) / sp,
        latents=latents / sp,
        queries_keys_values=qkv / tp,
        core=core * m.num_attention_heads / tp,
        core_gradients=_score_gradients(cases, width),
        core_output=m.num_attention_heads * m.v_head_dim * saved_input / tp,
        mlp=m.ffn_hidden_size * (width * matrices + saved_input) / tp,
        router=np.where(is_moe, ROUTER_BYTES * m.num_experts / sp, 0.0),
        expert_io=rows * h * (saved_input + width * output_copies),
        expert_inner=rows * m.moe_ffn_hidden_size * width * matrices / etp,
        expert_activation=rows * m.moe_ffn_hidden_size * saved_input / etp,
        shared=m.shared_expert_ffn * (width * matrices + saved_input) / tp,
    )


def _attention_inputs(cases: Cases, width: Column) -> tuple[Column, Column]:
    """Bytes per token before TP: latents (replicated) and queries, keys and values (sharded).

    Where TP exceeds the KV groups every rank holds one group after an all-gather (Megatron
    attention.py). Latent attention keeps compressed latents and their norms, then full heads.
    """
    m, tp = cases.model, cases.config.tp
    groups = np.maximum(m.num_query_groups, tp)
    grouped = (m.num_attention_heads + 2 * groups) * m.head_dim * width
    grouped = grouped + m.qk_norm * (m.num_attention_heads + groups) * m.head_dim * width
    if not np.any(m.is_mla):
        return np.zeros(()), grouped
    qk = m.qk_nope_head_dim + m.qk_rope_head_dim
    heads = m.num_attention_heads * (2 * qk + m.v_head_dim) * width
    latents = (2 * m.q_lora_rank + 2 * m.kv_lora_rank + m.qk_rope_head_dim) * width
    return np.where(m.is_mla, latents, 0.0), np.where(m.is_mla, heads, grouped)


def _attention(b: _Modules) -> Column:
    """Norms, attention and dropout masks: everything but MLP and experts."""
    around: Column = b.norm_inputs + b.linear_inputs + b.dropout_masks + b.latents
    return around + b.queries_keys_values + b.core + b.core_output


def _whole(b: _Modules) -> tuple[Column, Column]:
    """Bytes per token of a dense and of an MoE layer without recomputation."""
    attention = _attention(b)
    experts = b.router + b.expert_io + b.expert_inner + b.expert_activation + b.shared
    return attention + b.mlp, attention + experts


def _selective(
    cases: Cases, b: _Modules, constants: MemoryConstants
) -> tuple[Column, Column, Column, Column]:
    """Kept bytes per token of a dense and an MoE layer, and the working sets of what is rebuilt.

    Frameworks whose selective checkpointing works on operators keep a fraction of the layer.
    """
    c = cases.config
    whole_dense, whole_moe = _whole(b)
    selective = c.recompute == int(Recompute.SELECTIVE)
    if not selective.any():
        zero = np.zeros(())
        return whole_dense, whole_moe, zero, zero

    def dropped(module: RecomputeModules, size: Column) -> Column:
        return np.where(selective & ((c.recompute_modules & int(module)) > 0), size, 0.0)

    attention = dropped(RecomputeModules.CORE_ATTN, b.core)
    attention = attention + dropped(RecomputeModules.LAYERNORM, b.linear_inputs)
    attention = attention + dropped(
        RecomputeModules.MLA_UP_PROJ, np.where(cases.model.is_mla, b.queries_keys_values, 0.0)
    )
    mlp = dropped(RecomputeModules.MLP, b.mlp)
    experts = b.router + b.expert_io + b.expert_inner + b.expert_activation + b.shared
    all_experts = (c.recompute_modules & int(RecomputeModules.MOE)) > 0
    moe = np.where(
        all_experts,
        dropped(RecomputeModules.MOE, experts),
        dropped(RecomputeModules.MOE_ACT, b.expert_activation)
        + dropped(RecomputeModules.SHARED_EXPERTS, b.shared),
    )
    family = cases.stack.framework
    fraction = constants.op_level_checkpoint[family]
    by_operator = selective & (fraction < 1.0)
    dense = np.where(by_operator, whole_dense * fraction, whole_dense - attention - mlp)
    fraction = constants.op_level_checkpoint_moe[family]
    moe_kept = np.where(by_operator, whole_moe * fraction, whole_moe - attention - moe)
    return dense, moe_kept, whole_dense - dense, whole_moe - moe_kept
