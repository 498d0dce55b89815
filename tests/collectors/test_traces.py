"""Traces: interval arithmetic against a grid, the streamed reader, goldens of the samples."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.gpu_names import gpu_of
from collectors.ingestion import ingest
from collectors.text import BLOCK_BYTES, Truncation
from collectors.traces.breakdown import device_times
from collectors.traces.events import read_trace
from collectors.traces.intervals import common, length, union
from collectors.traces.json_stream import JsonStream
from collectors.traces.kernels import category_of
from specs.errors import InputError
from tests.collectors.conftest import SAMPLES

spans = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 20)), max_size=30)


def _columns(pairs):
    start = np.array([float(a) for a, _ in pairs])
    return union(start, start + np.array([float(d) for _, d in pairs]))


def _grid(pairs):
    grid = np.zeros(120, dtype=bool)
    for start, duration in pairs:
        grid[start : start + duration] = True
    return grid


@given(spans, spans)
def test_intervals_equal_a_grid(first, second):
    a, b = _columns(first), _columns(second)
    assert length(a) == _grid(first).sum()
    assert common(a, b) == (_grid(first) & _grid(second)).sum()
    assert np.all(a[0][1:] > a[1][:-1])


kernels = st.lists(
    st.tuples(
        st.integers(0, 80),
        st.integers(1, 20),
        st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "Memcpy"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=30,
)


@given(kernels)
def test_breakdown_equals_a_grid_and_adds_up(tmp_path_factory, events):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    content = [
        {
            **{"ph": "X", "name": name, "ts": start, "dur": duration, "pid": 0, "tid": stream},
            "cat": "gpu_memcpy" if name == "Memcpy" else "kernel",
        }
        for start, duration, name, stream in events
    ]
    path.write_text(json.dumps({"traceEvents": content}))
    found = device_times(read_trace(path))[0].whole
    grids = {n: _grid([e[:2] for e in events if e[2] == n]) for n in ("gemm", "Memcpy")}
    talk = _grid([e[:2] for e in events if e[2].startswith("nccl")])
    compute, copies = grids["gemm"], grids["Memcpy"]
    assert found.compute_us == compute.sum()
    assert found.exposed_communication_us == (talk & ~compute).sum()
    assert found.exposed_copy_us == (copies & ~talk & ~compute).sum()
    total = max(e[0] + e[1] for e in events) - min(e[0] for e in events)
    assert found.total_us == total
    parts = found.compute_us + found.exposed_communication_us + found.exposed_copy_us
    assert parts + found.idle_us == pytest.approx(total)


def test_cuda_sample():
    trace = ingest(SAMPLES / "trace_cuda.json", {}).trace
    assert trace is not None
    assert trace.gpu == "H100-SXM"
    device = trace.devices[0]
    # 1000 us a step: GEMM 10-110, attention 150-200 and an add 500-600 compute; the all-reduce
    # runs 60-260 and is exposed where neither runs; the copy takes 30.
    step = device.steps[device.median_step]
    assert (step.total_us, step.compute_us, step.communication_us) == (1000, 250, 200)
    assert (step.exposed_communication_us, step.exposed_copy_us, step.idle_us) == (100, 30, 620)
    gemm = next(row for row in trace.operators if row.category == "gemm")
    assert (gemm.operator, gemm.shape, gemm.dtype) == ("aten::mm", "m=4096,n=2048,k=1024", "bf16")
    assert gemm.tflops == pytest.approx(2 * 4096 * 2048 * 1024 / 100e-6 / 1e12)
    assert "do-not-keep-me" not in repr(trace)


def test_rocm_sample():
    trace = ingest(SAMPLES / "trace_rocm.json", {}).trace
    assert trace is not None
    assert (trace.gpu, trace.devices[0].streams) == ("MI300X", 2)
    # 100.5-120.5 and 130.5-140.5 and 160.5-164.5; all-reduce 135.5-150.5 exposed from 140.5.
    whole = trace.devices[0].whole
    assert (whole.total_us, whole.compute_us, whole.exposed_communication_us) == (64, 34, 10)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("void deep_ep::intranode::dispatch<8, 768>", "communication"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT128", "gemm"),
        ("nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "gemm"),
        ("void ck_tile::kentry<FmhaFwdKernel>", "attention"),
        ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention"),
        ("attn_fwd", "attention"),
        ("igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1", "convolution"),
        ("void at::native::elementwise_kernel<direct_copy_kernel_cuda>", "data_movement"),
        ("void multi_tensor_apply_kernel<AdamFunctor>", "optimizer"),
        ("at::native::vectorized_elementwise_kernel<4, silu_kernel::{lambda()}>", "elementwise"),
        ("void transformer_engine::normalization::rmsnorm_fwd", "normalization"),
        ("something new", "other"),
    ],
)
def test_kernel_names(name, category):
    assert category_of(name) == category


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(header=st.dictionaries(st.text(max_size=6), json_values), items=st.lists(json_values))
def test_stream_reads_what_json_reads(tmp_path_factory, header, items):
    document = {**header, "traceEvents": items}
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_text(json.dumps(document, indent=1))
    seen: list[object] = []
    members = dict(JsonStream(path, Truncation()).members("traceEvents", seen.append))
    assert seen == items
    assert members == {k: v for k, v in header.items() if k != "traceEvents"}


def test_stream_over_block_borders(tmp_path: Path):
    """Values that end, strings that open and numbers that go on at every place near a border."""
    item = {"name": "é" * 40, "n": 123456789, "text": 'quote " and \\ slash'}
    events = [item] * (3 * BLOCK_BYTES // 100)
    for shift in range(0, 120, 7):
        path = tmp_path / "x.json"
        path.write_text(json.dumps({"pad": "x" * shift, "traceEvents": events}))
        seen: list[object] = []
        members = dict(JsonStream(path, Truncation()).members("traceEvents", seen.append))
        assert len(seen) == len(events)
        assert all(event == item for event in seen)
        assert members == {"pad": "x" * shift}


@pytest.mark.parametrize("keep", [0.6, 0.95])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_truncated_traces(tmp_path: Path, name, keep):
    raw = (SAMPLES / "trace_cuda.json").read_bytes()
    content = gzip.compress(raw) if name.endswith("gz") else raw
    path = tmp_path / name
    path.write_bytes(content[: int(len(content) * keep)])
    trace = ingest(path, {}).trace
    assert trace is not None
    assert any("events before count" in note for note in trace.notes)


@pytest.mark.parametrize(
    "content",
    [
        '{"traceEvents": [' + "[" * 200_000,
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": ' + "9" * 6000 + ', "dur": 1}]}',
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": "nan", "dur": "inf"}]}',
        '{"traceEvents": {"not": "an array"}}',
        '{"traceEvents": [1, null, "x", [], {}]}',
        "[]",
        "{",
        '{"a" 1}',
        '{"traceEvents": [{"ph":"X","cat":"kernel","ts":1,"dur":-5}]}',
    ],
)
def test_hostile_traces_are_one_sentence(tmp_path: Path, content):
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(InputError):
        ingest(path, {})


@pytest.mark.parametrize(
    ("printed", "gpu"), [("NVIDIA A100-SXM4-80GB", "A100-80GB"), ("NVIDIA A100-PCIE-40GB", "")]
)
def test_a_device_is_no_other_product_of_its_name(printed: str, gpu: str, tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 5, "args": {"device": 0}}
    content = {"deviceProperties": [{"id": 0, "name": printed}], "traceEvents": [kernel]}
    path = tmp_path / "a100" / "trace.json"
    path.parent.mkdir()
    path.write_text(json.dumps(content))
    trace = ingest(path, {}).trace
    assert trace is not None
    assert trace.gpu == gpu
    refused = [note for note in trace.notes if f"there is no GPU {printed!r}" in note]
    assert len(refused) == (not gpu)
    assert all("--set gpu=NAME" in note for note in refused)


def test_what_a_user_states_wins_over_the_device_and_the_device_over_the_path() -> None:
    assert gpu_of("a100-80gb", "NVIDIA H100 NVL", "MI300X") == ("A100-80GB", "")
    assert gpu_of("", "AMD Instinct MI355X", "MI300X") == ("MI355X", "")
    gpu, note = gpu_of("", "", "MI300X")
    assert gpu == "MI300X"
    assert "from the path" in note
    assert gpu_of("", "", "") == ("", "")
    with pytest.raises(InputError, match="MI9000"):
        gpu_of("MI9000", "", "")
