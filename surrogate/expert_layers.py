"""Times of the routed experts of one layer: router, dispatch, permutation, grouped GEMMs."""

from __future__ import annotations

from typing import Any

import numpy as np

from specs.choices import CpComm, MoeDispatcher, Overlap
from surrogate.cases import Column
from surrogate.communication import all_gather_s, all_to_all_s, dispatch_s
from surrogate.operators import ATTENTION, BYTES, COMPUTE, EP, EXPERT, Block, Operators
from surrogate.topology import group

_EXPERT_WIDTH = 2048.0
"""Expert width at which ``grouped_utilisation`` is known: DeepSeek-V3 and its kin."""

_EDGE = 100.0
"""Elements of a GEMM side that cost as much as filling and draining its tiles."""


def routed_experts(op: Operators) -> Block:
    """Router, dispatch, permutation, grouped GEMMs and the way back."""
    model, config, rates, workload = op.model, op.config, op.rates, op.cases.workload
    hidden = model.hidden_size
    num_experts = np.maximum(model.num_experts, 1)
    topk = np.maximum(model.moe_topk, 1)
    ffn = np.maximum(model.moe_ffn_hidden_size, 1) / config.etp
    up = ffn * np.where(model.gated_mlp, 2.0, 1.0)
    own = op.tokens / op.tp
    padded = workload.capacity_factor > 0
    # One rank is its own mean, and none receives more than all that its group sends.
    busiest = np.minimum(workload.routing_imbalance, config.ep)
    load = np.where(padded, workload.capacity_factor, busiest)
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
    block.forward[EP] = exchange
    block.input_gradient[EP] = exchange
    return block


def _grouped_gemms(
    op: Operators, rows: Any, per_expert: Any, local: Any, up: Any, ffn: Any, padded: Any
) -> Block:
    """The two GEMMs of every local expert; each expert pads its rows to whole tiles.

    Batches of equal size (capacity factor) run as dense GEMMs.
    """
    rates, hidden = op.rates, op.model.hidden_size
    # What grouping costs against a dense GEMM fades as the experts grow.
    fading = np.sqrt(_EXPERT_WIDTH / np.maximum(ffn, 1.0))
    share = np.where(padded, 1.0, rates.grouped_utilisation ** np.minimum(fading, 1.0))
    share = share * np.where(op.is_fp8 | op.is_fp4, rates.grouped_quantised, 1.0)
    padding = 1.0 + np.where(padded, _EDGE, rates.grouped_padding) / per_expert
    edges = 1.0 + _EDGE * (1.0 / hidden + 1.0 / ffn)
    rate = op.gemm_rate * share / (padding * edges)
    weights = local * hidden * (up + ffn)
    compute = 2.0 * rows * hidden * (up + ffn) / rate
    traffic = (weights + rows * (2 * hidden + up + ffn)) * (BYTES / op.hbm)
    once = np.maximum(compute, traffic) + 2.0 * op.kernels.latency_s
    block = Block.zero(op.rows())
    # Stacks for AMD cast all expert weights in every pass; Transformer Engine once a step.
    casts = np.where(op.cluster.is_amd & op.is_fp8, weights * (3.0 / op.hbm), 0.0)
    block.forward[EXPERT] = block.input_gradient[EXPERT] = once + casts
    block.weight_gradient[EXPERT] = np.where(op.is_lora, 0.0, once + weights * op.gradient_traffic)
    return block


def _expert_exchange(op: Operators, own: Any, copies: Any, topk: Any) -> Column:
    """Dispatch and combine of one direction, before what compute hides."""
    config = op.config
    members = group(config.ep, config.etp, op.domain)
    row_bytes = op.model.hidden_size * BYTES
    # A mesh has a link of its own to every peer: copying to one after another leaves the rest idle.
    serial = op.cases.stack.one_peer_exchange & op.cluster.is_amd
    turns = np.where(serial, np.maximum(members.in_domain - 1, 1), 1)
    plain = 2.0 * all_to_all_s(copies * row_bytes, members, op.network, turns)
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


def hide_exchange(op: Operators, moe: Block) -> None:
    """All-to-all of one microbatch behind the compute of another (Megatron EP overlap).

    Attention that hides the ring of context parallelism hides nothing else.
    """
    config = op.config
    overlapped = (config.overlap & int(Overlap.EP)) > 0
    if not np.any(overlapped):
        return
    ring = (config.cp > 1) & (config.cp_comm == int(CpComm.P2P))
    for times in (moe.forward, moe.input_gradient):
        cover = times[COMPUTE].sum(axis=0) - np.where(ring, times[ATTENTION], 0.0)
        hidden = np.minimum(times[EP], cover)
        times[EP] -= np.where(overlapped, op.rates.ep_overlap * hidden, 0.0)
