"""What a GPU holds besides states and activations: logits, dispatch, FSDP and communication
buffers, the allocator's reserve and the runtime.

Where each counter of a framework looks: *allocated* is live tensors, *reserved* what the caching
allocator keeps for them, *device* that and all that lives outside the allocator.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.choices import MoeDispatcher, Sharding, TrainingKind
from surrogate.activations import (
    expert_tokens,
    sent_tokens,
    sequence_shards,
    tokens_per_microbatch,
)
from surrogate.cases import Cases
from surrogate.memory_constants import IS_EAGER, MemoryConstants
from surrogate.pipeline.stages import StageColumns
from surrogate.states import (
    COMPUTE_BYTES,
    StageParameters,
    column,
    padded_vocab,
    shards,
    state_sharding,
    uses_bf16_optimizer,
)

Column = NDArray[Any]

GIB = 2.0**30
REDUCED_BYTES = 4.0
ALLREDUCE_ELEMENTS = 5e8
"""``MEMORY_OPT_ALLREDUCE_SIZE`` (deepspeed/runtime/engine.py)."""


class Outside(NamedTuple):
    """Bytes beyond the live tensors, (n,), and how much the allocator reserves per byte."""

    reserved_factor: Column
    reserved_base: Column
    device: Column


def logits_bytes(cases: Cases, constants: MemoryConstants) -> Column:
    """Logits, their fp32 copy and gradient, and the loss of one microbatch, (n,).

    The final norm keeps its input and the output layer its own. With sequence parallelism the ends
    also hold whole hidden states: gathered inputs, partial outputs and their gradients.
    """
    family = cases.stack.framework
    per_entry = np.where(
        cases.config.cross_entropy_fusion,
        constants.fused_logits_bytes[family],
        constants.logits_bytes[family],
    )
    if np.any(cases.stack.compiled_loss):
        per_entry = np.where(
            cases.stack.compiled_loss,
            np.minimum(constants.compiled_logits_bytes, per_entry),
            per_entry,
        )
    if IS_EAGER[family].any():
        apart = IS_EAGER[family] & (cases.config.tp > 1)
        per_entry = per_entry + np.where(apart, constants.loss_parallel_bytes, 0.0)
    tokens = tokens_per_microbatch(cases)
    copies = COMPUTE_BYTES * constants.gathered_copies[family]
    gathered = np.where(sequence_shards(cases) > 1, copies, 0.0)
    kept = (constants.norm_bytes[family] + COMPUTE_BYTES) / sequence_shards(cases)
    entries = padded_vocab(cases) / cases.config.tp
    hidden = (gathered + kept) * cases.model.hidden_size
    return np.asarray(tokens * (entries * per_entry + hidden))


def dispatch_bytes(cases: Cases, constants: MemoryConstants) -> Column:
    """Buffers of the token exchange of one MoE layer, (n,).

    All-to-all holds the permuted tokens it sends; those it receives are the experts' input.
    Sync-free stages size the dispatch output (2) and the permuted input (3) for the case that every
    token of the group arrives (Primus primus_turbo.py).
    """
    c, m = cases.config, cases.model
    tokens = tokens_per_microbatch(cases)
    group = c.ep * c.etp
    row_bytes = m.hidden_size * COMPUTE_BYTES
    sent = constants.dispatch_copies * tokens * sent_tokens(cases) * row_bytes
    local = tokens / sequence_shards(cases)
    arriving = local * group * m.hidden_size * COMPUTE_BYTES
    worst = np.where(c.sync_free_stage >= 2, arriving, 0.0)
    everywhere = arriving * m.moe_topk - tokens * expert_tokens(cases) * row_bytes
    worst = worst + np.where(c.sync_free_stage >= 3, everywhere, 0.0)
    deep = c.moe_dispatcher >= int(MoeDispatcher.DEEPEP)
    buffers = np.where(deep, np.maximum(sent, worst), sent + worst)
    return np.where((m.num_experts > 0) & (group > 1), buffers, 0.0)


def unsharded_bytes(cases: Cases, stages: StageColumns, constants: MemoryConstants) -> Column:
    """Whole copies of the layers that run while weights are sharded over data parallelism, (n, k).

    The layer that computes and the prefetched one are gathered in 16 bit, and the gradients of one
    layer wait for their reduce-scatter (FSDP2, arXiv 2304.11277).
    """
    sharded = cases.config.sharding >= int(Sharding.ZERO3)
    if not sharded.any():
        return np.zeros(())
    family = cases.stack.framework
    c, m = cases.config, cases.model
    dense_shards, expert_shards = shards(cases)
    attention = m.attention_sharded / c.tp + m.attention_replicated + m.norm_params
    dense = attention + m.dense_mlp_sharded / c.tp
    shared = m.shared_expert_sharded / c.tp + m.router_params
    gathered_experts = m.num_experts * m.expert_params / (c.ep * c.etp) * (expert_shards > 1)
    moe = attention + shared + gathered_experts
    layer = np.maximum(
        column(dense) * (stages.dense_layers > 0), column(moe) * (stages.moe_layers > 0)
    )
    whole = layer * column(constants.unsharded_layers[family])
    ends = (stages.has_embedding | stages.has_output) * column(
        padded_vocab(cases) * m.hidden_size / c.tp
    )
    frozen = cases.workload.kind == int(TrainingKind.LORA)
    width = np.where(frozen, np.minimum(cases.stack.weight_bytes, COMPUTE_BYTES), COMPUTE_BYTES)
    waiting = np.where(frozen, 0.0, REDUCED_BYTES * constants.prefetched_gradients[family])
    size = column(width) * (whole + ends) + column(waiting) * layer
    gathered: Column = size * column(sharded & (dense_shards > 1))
    return gathered


def bucket_bytes(
    cases: Cases, stages: StageColumns, parameters: StageParameters, constants: MemoryConstants
) -> Column:
    """Buckets in which sharded gradients are reduced and weights gathered, (n,) or (n, k).

    DeepSpeed without a pipeline keeps them at a fixed size (``reduce_bucket_size`` and
    ``allgather_bucket_size``, 5e8 elements); with one, BF16_Optimizer copies fp32 gradients into
    buckets to reduce them, which close once they hold ALLREDUCE_ELEMENTS: one embedding may be
    more. Other frameworks work in their gradient buffers.
    """
    c = cases.config
    ranks = c.data_parallel(cases.cluster.num_gpus) * c.cp
    reduces = (ranks > 1) & (state_sharding(cases) >= int(Sharding.ZERO1))
    fixed = constants.reduce_bucket_gib[cases.stack.framework] * GIB
    held = column(np.where(reduces & (c.pp == 1), fixed, 0.0))
    copies = reduces & (c.pp > 1) & uses_bf16_optimizer(cases)
    if not np.any(copies):
        return held
    embedding = column(padded_vocab(cases) * cases.model.hidden_size / c.tp)
    ends = stages.has_embedding | stages.has_output
    elements = np.maximum(embedding * ends, ALLREDUCE_ELEMENTS)
    elements = np.minimum(elements, parameters.total)
    return np.asarray(np.where(column(copies), REDUCED_BYTES * elements, held))


def communicators(cases: Cases) -> Column:
    """Process groups of more than one rank that hold device buffers, (n,)."""
    c = cases.config
    num_gpus = cases.cluster.num_gpus
    dp = c.data_parallel(num_gpus) * c.cp
    groups = (c.tp > 1) + 1.0 * (c.cp > 1) + 2.0 * (c.pp > 1) + (dp > 1)
    return np.asarray(groups + 2.0 * (c.ep * c.etp > 1) * (cases.model.num_experts > 0))


def outside(cases: Cases, constants: MemoryConstants) -> Outside:
    """The allocator's reserve and what the runtime and the collectives hold, (n,)."""
    family = cases.stack.framework
    vendor = np.asarray(cases.cluster.is_amd).astype(np.int64)
    fragmentation = np.where(
        cases.stack.expandable_segments,
        constants.expandable_fragmentation,
        constants.fragmentation[family],
    )
    exchanges = (cases.config.ep > 1) & (cases.model.num_experts > 0)
    device = constants.context_gib[vendor] + constants.communicator_gib[vendor] * communicators(
        cases
    )
    device = device + np.where(exchanges, constants.moe_device_gib[vendor], 0.0)
    measured = cases.stack.runtime_gib
    known = ~np.isnan(measured)
    device = np.where(known, measured, device)
    base = np.where(known, 0.0, constants.reserved_base_gib[family] * GIB)
    return Outside(1.0 + fragmentation, base, device * GIB)


def workspace_bytes(cases: Cases, constants: MemoryConstants) -> Column:
    """What libraries allocate beside states and activations, (n,); a measured runtime holds it."""
    fitted = constants.allocated_base_gib[cases.stack.framework] * GIB
    return np.where(np.isnan(cases.stack.runtime_gib), fitted, 0.0)
