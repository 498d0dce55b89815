"""Kernel times: work over peak times utilisation, plus latency, vectorised over configs.

Every operator takes its constants as a frozen dataclass whose fields are scalars or columns, so
that one call serves one GPU, or (after ``stack_constants``) a column of GPUs and formats. All laws
are monotone in the sizes, are never faster than the speed of light (FLOPs over peak, bytes over
bandwidth) and speed up with more bandwidth. ``surrogate.kernels.fitting`` fits the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Floats = float | npt.NDArray[np.float64]
"""A scalar or a column; all arguments of one call broadcast."""

ConstantsT = TypeVar("ConstantsT")

GEMM_TILES: tuple[tuple[int, int], ...] = ((128, 64), (128, 128), (128, 256), (256, 256))
"""Output tiles that GEMM libraries choose from (CUTLASS, cuBLAS, hipBLASLt kernel names)."""

GROUPED_TILE_ROWS = 128
ATTENTION_TILE_ROWS = 128
"""Query rows of one attention work unit (FlashAttention, arXiv 2307.08691)."""

EXPONENT_NODES = np.array([0.0, 1.01, 1.2])
"""Routing power-law exponents that were profiled; 0 is balanced."""


@dataclass(frozen=True)
class GemmConstants:
    """Law of ``gemm_time_s``; times in s, rates per s, everything else dimensionless or noted."""

    peak_flops: Floats
    hbm_bytes_per_s: Floats
    sm_count: Floats
    operand_a_bytes: Floats  # per element of the activation operand
    operand_b_bytes: Floats  # per element of the weight operand
    output_bytes: Floats
    quantise_bytes: Floats  # traffic per activation element that is quantised first; 0 if none
    utilisation_max: Floats  # of the peak, large shapes; carries power throttling
    tile_overhead: Floats  # elements; a tile loses 1 + overhead*(1/rows + 1/columns)
    wave_quantisation: Floats  # 1: whole waves over the SMs; 0: perfectly balanced (stream-K)
    prologue_k: Floats  # elements of k spent filling and draining the pipeline
    memory_utilisation: Floats
    overlap_loss: Floats  # share of the shorter of compute and memory that is not hidden
    latency_s: Floats
    quantise_utilisation: Floats
    quantise_latency_s: Floats


@dataclass(frozen=True)
class GroupedGemmConstants:
    """Law of ``grouped_gemm_time_s`` and of the routed MLP around it."""

    peak_flops: Floats
    hbm_bytes_per_s: Floats
    sm_count: Floats
    operand_a_bytes: Floats
    operand_b_bytes: Floats
    output_bytes: Floats
    utilisation_max: Floats
    wave_quantisation: Floats
    prologue_k: Floats
    memory_utilisation: Floats
    overlap_loss: Floats
    padding_balanced: Floats  # tiles wasted per active expert under balanced routing
    padding_skewed: Floats  # the same under power-law routing
    latency_s: Floats  # of the whole routed MLP
    expert_latency_s: Floats  # per local expert
    token_passes: Floats  # passes over the hidden states of all tokens of the EP group
    row_passes: Floats  # passes over the permuted rows and their MLP intermediates
    skew_low: Floats  # most loaded rank = ep**skew, exponent 1.01
    skew_high: Floats  # the same, exponent 1.2


@dataclass(frozen=True)
class AttentionConstants:
    """Law of ``attention_forward_time_s``."""

    peak_flops: Floats
    hbm_bytes_per_s: Floats
    sm_count: Floats
    element_bytes: Floats
    utilisation_max: Floats
    softmax_dim: Floats  # head dimensions whose matmul costs as much as the softmax of a score
    prologue_keys: Floats  # keys' worth of time to start and end one query tile
    window_keys: Floats  # further keys touched per query tile under a sliding window
    wave_quantisation: Floats
    tail: Floats  # share in which too few tiles wait for the longest one
    memory_passes: Floats  # passes over q, k, v and output
    latency_s: Floats


@dataclass(frozen=True)
class ElementwiseConstants:
    """Law of ``elementwise_time_s``."""

    hbm_bytes_per_s: Floats
    memory_utilisation: Floats
    latency_s: Floats


@dataclass(frozen=True)
class CollectiveConstants:
    """Law of ``collective_time_s`` for one collective in one communication domain."""

    bytes_per_s: Floats  # per GPU and direction
    bandwidth_utilisation: Floats
    latency_s: Floats
    rank_latency_s: Floats  # per further rank
    ramp_s: Floats  # time at one MB of traffic of the term that grows as traffic**ramp_exponent
    ramp_exponent: Floats


@dataclass(frozen=True)
class DispatchConstants:
    """Law of ``dispatch_time_s`` and ``combine_time_s``: expert all-to-all by kernels (DeepEP)."""

    link_bytes_per_s: Floats
    nic_bytes_per_s: Floats
    link_utilisation: Floats
    nic_utilisation: Floats
    sm_bytes_per_s: Floats  # copy rate of one SM that the kernel is given
    latency_s: Floats
    node_latency_s: Floats  # per doubling of nodes


def stack_constants(constants: Sequence[ConstantsT], index: npt.NDArray[np.intp]) -> ConstantsT:
    """One constants object whose fields are columns: ``constants[index[i]]`` in row i.

    Fields that are equal in all entries stay scalar.
    """
    first = constants[0]
    columns: dict[str, Any] = {}
    for field in fields(first):  # type: ignore[arg-type]
        values = [getattr(each, field.name) for each in constants]
        same = all(value == values[0] for value in values)
        columns[field.name] = values[0] if same else np.asarray(values, dtype=np.float64)[index]
    return type(first)(**columns)


def _waves(units: Floats, sm_count: Floats, quantisation: Floats) -> Floats:
    """Waves of equal work units over the SMs, between perfectly balanced and whole waves."""
    waves = units / sm_count
    return waves + quantisation * (np.ceil(waves) - waves)


def _overlapped(compute_s: Floats, memory_s: Floats, loss: Floats) -> Floats:
    """The longer of two overlapping times and the exposed share of the shorter."""
    return np.maximum(compute_s, memory_s) + loss * np.minimum(compute_s, memory_s)


def gemm_time_s(m: Floats, n: Floats, k: Floats, c: GemmConstants, quantise: bool = True) -> Floats:
    """Time of C[m, n] = A[m, k] B[k, n]; A are activations, B weights.

    The library takes the best of ``GEMM_TILES``; each loses by tile and wave quantisation, small
    tiles also by their lower arithmetic intensity. With ``quantise`` a low-precision GEMM pays
    the cast of A from 16 bit, as its profile does.

    Args:
        m, n, k: sizes in elements, >= 1; broadcast.
    """
    area: Floats = np.inf
    for rows, columns in GEMM_TILES:
        units = np.ceil(np.multiply(m, 1.0 / rows)) * np.ceil(np.multiply(n, 1.0 / columns))
        cost = rows * columns * (1.0 + c.tile_overhead * (1.0 / rows + 1.0 / columns))
        area = np.minimum(area, _waves(units, c.sm_count, c.wave_quantisation) * cost)
    compute_s = area * (k + c.prologue_k) * (2.0 * c.sm_count / (c.peak_flops * c.utilisation_max))
    traffic = k * (m * c.operand_a_bytes + n * c.operand_b_bytes) + m * n * c.output_bytes
    memory_s = traffic / (c.hbm_bytes_per_s * c.memory_utilisation)
    time_s = c.latency_s + _overlapped(compute_s, memory_s, c.overlap_loss)
    return time_s + quantise_time_s(np.multiply(m, k), c) if quantise else time_s


def quantise_time_s(elements: Floats, c: GemmConstants) -> Floats:
    """Time to cast a 16-bit operand to the GEMM's format; zero where the format is 16 bit."""
    rate = c.hbm_bytes_per_s * c.quantise_utilisation
    return c.quantise_latency_s * np.greater(c.quantise_bytes, 0) + elements * (
        c.quantise_bytes / rate
    )


def expert_load_factor(
    expert_parallel: Floats,
    topk: Floats,
    num_experts: Floats,
    exponent: float,
    c: GroupedGemmConstants,
) -> Floats:
    """Rows of the most loaded expert-parallel rank over the mean; 1 under balanced routing.

    Args:
        exponent: of the power law of expert popularity; 0 is balanced, 1.01 and 1.2 were profiled.
    """
    if exponent <= 0:
        return 1.0
    low, high = np.asarray(c.skew_low), np.asarray(c.skew_high)
    reach = min(float(exponent), EXPONENT_NODES[2])
    if reach <= EXPONENT_NODES[1]:
        skew = low * (reach / EXPONENT_NODES[1])
    else:
        skew = low + (high - low) * (reach - EXPONENT_NODES[1]) / (
            EXPONENT_NODES[2] - EXPONENT_NODES[1]
        )
    local = np.divide(num_experts, expert_parallel)
    most = np.multiply(expert_parallel, np.minimum(topk, local)) / topk
    return np.asarray(np.minimum(np.power(expert_parallel, skew), most))


def grouped_gemm_time_s(
    tokens_per_expert: Floats,
    num_local_experts: Floats,
    n: Floats,
    k: Floats,
    c: GroupedGemmConstants,
    load_factor: Floats = 1.0,
    skewed: bool = False,
) -> Floats:
    """Time of one grouped GEMM over the local experts, each [rows, k] x [k, n].

    Args:
        tokens_per_expert: mean rows per expert, of all ranks; ``load_factor`` (from
            ``expert_load_factor``) makes it the mean of the most loaded rank.
        skewed: whether experts on a rank differ (power-law routing), which pads more tiles.
    """
    rows = np.multiply(tokens_per_expert, num_local_experts) * load_factor
    active = np.minimum(num_local_experts, rows)
    padding = c.padding_skewed if skewed else c.padding_balanced
    row_tiles = np.maximum(active, rows / GROUPED_TILE_ROWS + padding * active)
    units = row_tiles * np.ceil(np.divide(n, 128))
    waves = _waves(units, c.sm_count, c.wave_quantisation)
    tile_flops = 2.0 * GROUPED_TILE_ROWS * 128 * (k + c.prologue_k)
    compute_s = waves * tile_flops * (c.sm_count / (c.peak_flops * c.utilisation_max))
    traffic = active * (np.multiply(n, k) * c.operand_b_bytes) + rows * (
        np.multiply(k, c.operand_a_bytes) + np.multiply(n, c.output_bytes)
    )
    memory_s = traffic / (c.hbm_bytes_per_s * c.memory_utilisation)
    return _overlapped(compute_s, memory_s, c.overlap_loss)


def moe_forward_time_s(
    tokens: Floats,
    hidden_size: Floats,
    ffn_size: Floats,
    topk: Floats,
    num_experts: Floats,
    expert_parallel: Floats,
    c: GroupedGemmConstants,
    gated: bool = True,
    exponent: float = 0.0,
) -> Floats:
    """Forward time of the routed MLP on the most loaded rank, without communication.

    Args:
        tokens: of the whole expert-parallel group; ``ffn_size`` is one expert's, on this rank.
    """
    factor = expert_load_factor(expert_parallel, topk, num_experts, exponent, c)
    local = np.divide(num_experts, expert_parallel)
    per_expert = np.multiply(tokens, topk) / num_experts
    up_size = np.multiply(ffn_size, 2.0 if gated else 1.0)
    skewed = exponent > 0
    gemms_s = grouped_gemm_time_s(
        per_expert, local, up_size, hidden_size, c, factor, skewed
    ) + grouped_gemm_time_s(per_expert, local, hidden_size, ffn_size, c, factor, skewed)
    rows = per_expert * local * factor
    moved = c.token_passes * np.multiply(tokens, hidden_size) + c.row_passes * rows * (
        hidden_size + up_size
    )
    return c.latency_s + c.expert_latency_s * local + gemms_s + 2.0 * moved / c.hbm_bytes_per_s


def mean_attended_keys(
    seq_q: Floats, seq_kv: Floats, causal: bool = True, window: Floats = 0
) -> Floats:
    """Mean keys that a query sees; ``window`` 0 is full attention, queries end at the last key."""
    if not causal:
        limit = np.where(np.greater(window, 0), window, seq_kv)
        return np.minimum(limit, seq_kv).astype(np.float64)
    before = np.subtract(seq_kv, seq_q)
    limit = np.where(np.greater(window, 0), np.minimum(window, seq_kv), seq_kv)
    growing = np.clip(limit - before, 0, seq_q)  # queries that still see every earlier key
    pairs = growing * before + growing * (growing + 1) / 2 + (seq_q - growing) * limit
    return np.asarray(pairs / seq_q, dtype=np.float64)


def attention_forward_time_s(
    batch: Floats,
    seq_q: Floats,
    seq_kv: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim_qk: Floats,
    head_dim_v: Floats,
    c: AttentionConstants,
    window: Floats = 0,
    causal: bool = True,
) -> Floats:
    """Forward time of fused attention; its utilisation grows with length and head dimension.

    MLA is ``head_dim_qk`` != ``head_dim_v``; GQA enters by memory traffic. Every query tile costs
    its keys, its softmax and a fixed prologue; tiles fill the SMs in waves; where tiles are few,
    the longest one is what all wait for.
    """
    tile_keys = mean_attended_keys(seq_q, seq_kv, causal)
    longest_keys = np.asarray(seq_kv, dtype=np.float64)
    if np.any(np.greater(window, 0)):
        # A windowed tile touches keys that it masks, but never more than without the window.
        seen = mean_attended_keys(seq_q, seq_kv, causal, window) + c.window_keys
        tile_keys = np.where(np.greater(window, 0), np.minimum(seen, tile_keys), tile_keys)
        reach = np.where(np.greater(window, 0), window + c.window_keys, seq_kv)
        longest_keys = np.minimum(reach, seq_kv)
    key_cost = (
        ATTENTION_TILE_ROWS
        * (2.0 * np.add(head_dim_qk, head_dim_v) + 4.0 * c.softmax_dim)
        * (c.sm_count / (c.peak_flops * c.utilisation_max))
    )
    units = np.multiply(batch, heads) * np.ceil(np.divide(seq_q, ATTENTION_TILE_ROWS))
    waves = _waves(units, c.sm_count, c.wave_quantisation)
    work_keys = waves * (tile_keys + c.prologue_keys)
    longest_keys = longest_keys + c.prologue_keys
    compute_s = key_cost * (work_keys + c.tail * np.maximum(longest_keys - work_keys, 0.0))
    per_head = np.add(head_dim_qk, head_dim_v) * c.element_bytes
    moved = batch * per_head * (np.multiply(seq_q, heads) + np.multiply(seq_kv, kv_heads))
    memory_s = c.memory_passes * moved / c.hbm_bytes_per_s
    return np.asarray(c.latency_s + compute_s + memory_s)


def elementwise_time_s(moved_bytes: Floats, c: ElementwiseConstants) -> Floats:
    """Time of one memory-bound kernel that moves ``moved_bytes`` to and from HBM."""
    return c.latency_s + np.divide(moved_bytes, c.hbm_bytes_per_s * c.memory_utilisation)


TRAFFIC_ROUNDS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Times that the message crosses the bottleneck link, in units of (ranks-1)/ranks (NCCL busbw)."""


def collective_time_s(
    kind: str, message_bytes: Floats, ranks: Floats, c: CollectiveConstants
) -> Floats:
    """Time of a collective over ``ranks`` equal peers of one domain; zero for a single rank.

    Args:
        kind: a key of ``TRAFFIC_ROUNDS``.
        message_bytes: the full tensor (gathered, before scattering, per rank for all-to-all).
    """
    peers = np.subtract(ranks, 1.0)
    traffic = np.multiply(message_bytes, TRAFFIC_ROUNDS[kind] * peers / ranks)
    light_s = traffic / c.bytes_per_s
    time_s = (
        c.latency_s
        + c.rank_latency_s * peers
        + light_s / c.bandwidth_utilisation
        + c.ramp_s * np.power(traffic * 1e-6, c.ramp_exponent)
    )
    return np.where(np.greater(peers, 0), time_s, 0.0)


def _all_to_all_traffic(
    ranks_per_node: Floats, nodes: Floats, topk: Floats
) -> tuple[Floats, Floats]:
    """Copies of a token sent to other ranks of a node, and to other nodes, experts uniform.

    A token goes once to each rank, and once to each remote node, that holds one of its experts
    (DeepEP forwards inside the node).
    """
    in_node = (ranks_per_node - 1.0) * (1.0 - np.power(1.0 - 1.0 / (ranks_per_node * nodes), topk))
    across = (nodes - 1.0) * (1.0 - np.power(1.0 - 1.0 / np.asarray(nodes, float), topk))
    return in_node * nodes, across


def dispatch_time_s(
    tokens: Floats,
    hidden_size: Floats,
    topk: Floats,
    element_bytes: Floats,
    nodes: Floats,
    ranks_per_node: Floats,
    sms: Floats,
    c: DispatchConstants,
) -> Floats:
    """Time to send ``tokens`` hidden states of each rank to their experts' ranks, once per rank.

    Also the law of the way back (combine), with its own constants. ``sms`` are the SMs (CUs) that
    the kernel is given.
    """
    to_ranks, to_nodes = _all_to_all_traffic(ranks_per_node, nodes, topk)
    payload = np.multiply(tokens, hidden_size) * element_bytes
    link_rate = np.minimum(c.link_bytes_per_s * c.link_utilisation, sms * c.sm_bytes_per_s)
    in_node_s = payload * to_ranks / link_rate
    across_s = payload * to_nodes / (c.nic_bytes_per_s * c.nic_utilisation)
    return c.latency_s + c.node_latency_s * np.log2(nodes) + np.maximum(in_node_s, across_s)
