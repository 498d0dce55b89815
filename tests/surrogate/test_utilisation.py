"""Physics of the kernel laws: light, monotony, bandwidth, experts."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs import catalog
from surrogate.kernels.constants import kernel_constants
from surrogate.kernels.utilisation import (
    TRAFFIC_ROUNDS,
    attention_forward_time_s,
    collective_time_s,
    dispatch_time_s,
    elementwise_time_s,
    expert_load_factor,
    gemm_time_s,
    grouped_gemm_time_s,
    mean_attended_keys,
    moe_forward_time_s,
    stack_constants,
)

GPUS = [name for name in catalog.gpu_names() if catalog.gpu(name).peak_flops["bf16"].value > 1e14]
CONSTANTS = {name: kernel_constants(catalog.gpu(name)) for name in GPUS}

gpus = st.sampled_from(GPUS)
sizes = st.integers(1, 65536)
large = st.integers(256, 32768)
seeds = st.integers(0, 2**31)


def _gemm(gpu: str, pick: int) -> Any:
    c = CONSTANTS[gpu]
    keys = sorted(c.gemm)
    return c.gemm[keys[pick % len(keys)]]


@given(gpus, seeds, sizes, sizes, sizes)
def test_gemm_is_never_faster_than_light(gpu: str, pick: int, m: int, n: int, k: int) -> None:
    g = _gemm(gpu, pick)
    moved = k * (m * g.operand_a_bytes + n * g.operand_b_bytes) + m * n * g.output_bytes
    light = max(2.0 * m * n * k / g.peak_flops, moved / g.hbm_bytes_per_s)
    assert gemm_time_s(m, n, k, g) >= light


@given(gpus, seeds, large, large, large, st.sampled_from([(1, 0, 0), (0, 1, 0), (0, 0, 1)]))
def test_gemm_time_never_falls_with_size(
    gpu: str, pick: int, m: int, n: int, k: int, grown: tuple[int, int, int]
) -> None:
    g = _gemm(gpu, pick)
    longer = gemm_time_s(m + 64 * grown[0], n + 64 * grown[1], k + 64 * grown[2], g)
    assert longer >= gemm_time_s(m, n, k, g)


@given(gpus, seeds, sizes, sizes, sizes, st.floats(1.0, 8.0))
def test_faster_hardware_is_never_slower(
    gpu: str, pick: int, m: int, n: int, k: int, factor: float
) -> None:
    g = _gemm(gpu, pick)
    for name in ("hbm_bytes_per_s", "peak_flops", "utilisation_max", "memory_utilisation"):
        better = replace(g, **{name: getattr(g, name) * factor})
        assert gemm_time_s(m, n, k, better) <= gemm_time_s(m, n, k, g)


def test_utilisations_are_shares() -> None:
    for c in CONSTANTS.values():
        groups: list[dict[str, Any]] = [c.gemm, c.grouped, c.attention, c.dispatch]
        groups += [c.scale_up, c.scale_out, {"elementwise": c.elementwise}]
        for each in [law for group in groups for law in group.values()]:
            for field in fields(each):
                if "utilisation" in field.name:
                    assert 0 < getattr(each, field.name) <= 1, field.name


@settings(max_examples=50)
@given(
    gpus,
    st.integers(1, 64),
    st.integers(128, 32768),
    st.sampled_from([(8, 1), (32, 8), (128, 128)]),
    st.sampled_from([(64, 64), (128, 128), (192, 128)]),
    st.sampled_from([0, 128, 4096]),
)
def test_attention_obeys_light_length_and_window(
    gpu: str,
    batch: int,
    seq: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    window: int,
) -> None:
    a = CONSTANTS[gpu].attention["bf16"]
    time_s = attention_forward_time_s(batch, seq, seq, *heads, *dims, a, window=window)
    pairs = seq * mean_attended_keys(seq, seq, True, window)
    assert time_s >= 2 * batch * heads[0] * pairs * sum(dims) / a.peak_flops
    longer = attention_forward_time_s(batch, seq + 128, seq + 128, *heads, *dims, a, window=window)
    assert longer >= time_s
    assert time_s <= attention_forward_time_s(batch, seq, seq, *heads, *dims, a) * (1 + 1e-12)
    grouped = attention_forward_time_s(batch, seq, seq, heads[0], 1, *dims, a, window=window)
    assert grouped <= time_s
    full = attention_forward_time_s(batch, seq, seq, *heads, *dims, a, causal=False)
    assert full >= attention_forward_time_s(batch, seq, seq, *heads, *dims, a) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "window", "mean"),
    [(4, 4, 0, 2.5), (2, 4, 0, 3.5), (4, 4, 2, 1.75), (4, 4, 9, 2.5), (2, 8, 3, 3.0)],
)
def test_attended_keys_by_hand(seq_q: int, seq_kv: int, window: int, mean: float) -> None:
    # Query i of seq_q sits at key seq_kv - seq_q + i and sees itself and what is before it.
    assert mean_attended_keys(seq_q, seq_kv, True, window) == mean


@given(gpus, st.integers(64, 65536), st.sampled_from([1, 2, 4, 8, 16, 32]), large, large)
def test_more_experts_at_equal_tokens_are_never_faster(
    gpu: str, rows: int, experts: int, n: int, k: int
) -> None:
    g = CONSTANTS[gpu].grouped["bf16"]
    few = grouped_gemm_time_s(rows / experts, experts, n, k, g)
    many = grouped_gemm_time_s(rows / (2 * experts), 2 * experts, n, k, g)
    assert many >= few * (1 - 1e-12)
    assert few >= 2.0 * rows * n * k / g.peak_flops


@given(gpus, st.sampled_from([2, 4, 8, 16]), st.floats(0.0, 1.2), st.integers(256, 16384))
def test_skewed_routing_is_never_faster_than_balanced(
    gpu: str, ranks: int, exponent: float, tokens: int
) -> None:
    g = CONSTANTS[gpu].grouped["bf16"]
    factor = expert_load_factor(ranks, 8, 128, exponent, g)
    assert 1 <= factor <= ranks
    g = replace(g, padding_skewed=g.padding_balanced)
    shape = (tokens, 4096, 1536, 8, 128, ranks)
    assert moe_forward_time_s(*shape, g, exponent=exponent) >= moe_forward_time_s(*shape, g) * (
        1 - 1e-12
    )


@given(
    gpus,
    st.sampled_from(sorted(TRAFFIC_ROUNDS)),
    st.floats(1.0, 1e10),
    st.sampled_from([2, 4, 8, 72]),
)
def test_collectives_obey_light_size_and_bandwidth(
    gpu: str, kind: str, message: float, ranks: int
) -> None:
    for domain in (CONSTANTS[gpu].scale_up, CONSTANTS[gpu].scale_out):
        law = domain[kind]
        time_s = collective_time_s(kind, message, ranks, law)
        light = TRAFFIC_ROUNDS[kind] * (ranks - 1) / ranks * message / law.bytes_per_s
        assert time_s >= light
        assert collective_time_s(kind, 1.5 * message, ranks, law) >= time_s
        faster = replace(law, bytes_per_s=2 * law.bytes_per_s)
        assert collective_time_s(kind, message, ranks, faster) <= time_s
        assert collective_time_s(kind, message, 1, law) == 0


@given(gpus, st.integers(1, 65536), st.sampled_from([1, 2, 4, 8]), st.integers(4, 64))
def test_dispatch_pays_for_nodes_and_gains_from_sms(
    gpu: str, tokens: int, nodes: int, sms: int
) -> None:
    d = CONSTANTS[gpu].dispatch["dispatch"]
    time_s = dispatch_time_s(tokens, 7168, 8, 1.03, nodes, 8.0, sms, d)
    assert dispatch_time_s(2 * tokens, 7168, 8, 1.03, nodes, 8.0, sms, d) >= time_s
    assert dispatch_time_s(tokens, 7168, 8, 1.03, nodes, 8.0, 2 * sms, d) <= time_s
    assert dispatch_time_s(tokens, 7168, 8, 1.03, 2 * nodes, 8.0, sms, d) >= time_s


@given(gpus, st.floats(1.0, 1e12))
def test_elementwise_is_below_the_memory_rate(gpu: str, moved: float) -> None:
    law = CONSTANTS[gpu].elementwise
    assert elementwise_time_s(moved, law) > moved / law.hbm_bytes_per_s


def test_columns_equal_single_calls() -> None:
    c = CONSTANTS["H100-SXM"]
    both = [c.gemm["bf16"], c.gemm["fp8"]]
    index = np.array([0, 1, 1])
    m = np.array([512.0, 4096.0, 8192.0])
    column = gemm_time_s(m, 4096.0, 4096.0, stack_constants(both, index))
    single = [gemm_time_s(float(m[i]), 4096.0, 4096.0, both[index[i]]) for i in range(3)]
    np.testing.assert_allclose(column, np.asarray(single), rtol=1e-12)
