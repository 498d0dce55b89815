"""The least time of a run, and the peaks that it stands on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.toolbox.profiling import bottlenecks, kind_of
from studies.toolbox.roofline import Peaks, bound, catalog_peaks
from studies.toolbox.workload import Generation

QWEN = {
    "layers": 28, "heads": 28, "kv_heads": 4, "head_dim": 128,
    "parameters": 7.62e9, "multiplied_parameters": 7.07e9,
}  # fmt: skip
WORK = Generation(8, 256, 512)


def peaks() -> Peaks:
    found = catalog_peaks("AMD Instinct MI300X")
    assert found is not None
    return found


def test_qwen_on_an_mi300x_by_hand() -> None:
    """7.07e9 weights of 2 bytes at 5.3 TB/s are 2.7 ms a step: about 3,000 tokens/s at batch 8."""
    limit = bound(QWEN, 15.2e9, "bfloat16", WORK, peaks())
    assert limit.limited_by == "memory bandwidth"
    assert limit.decode_s / 511 == pytest.approx(2.7e-3, rel=0.05)
    assert WORK.useful_tokens / limit.run_s == pytest.approx(2900, rel=0.05)


@given(st.integers(1, 256), st.integers(2, 2048), st.floats(1.01, 10))
def test_more_work_is_never_faster_and_more_bandwidth_never_slower(
    batch: int, new_tokens: int, factor: float
) -> None:
    work = Generation(batch, 64, new_tokens)
    limit = bound(QWEN, 15.2e9, "bfloat16", work, peaks())
    faster = replace(peaks(), bytes_per_s=peaks().bytes_per_s * factor)
    assert bound(QWEN, 15.2e9, "bfloat16", work, faster).run_s <= limit.run_s
    longer = Generation(batch, 64, new_tokens + 1)
    assert bound(QWEN, 15.2e9, "bfloat16", longer, peaks()).run_s > limit.run_s
    assert bound(QWEN, 7.6e9, "bfloat16", work, peaks()).run_s <= limit.run_s


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
    ],
)
def test_names_that_torch_gives_are_found_in_the_catalog(device: str, gpu: str) -> None:
    found = catalog_peaks(device)
    assert found is not None
    assert found.source.endswith(gpu)
    assert found.guaranteed


def test_a_gpu_that_the_catalog_does_not_know_has_no_peaks() -> None:
    assert catalog_peaks("NVIDIA GeForce GT 710") is None


def test_kinds_of_work() -> None:
    known = {
        "aten::_scaled_dot_product_flash_attention": "attention",
        "aten::addmm": "matmul",
        "Cijk_Alik_Bljk_HHS_BH_MT128x128x32": "matmul",
        "triton_poi_fused_add_0": "compiled",
        "aten::copy_": "copy and cast",
        "aten::silu": "element-wise",
        "aten::argmax": "other",
    }
    assert {name: kind_of(name) for name in known} == known


def test_a_gpu_that_waits_for_the_host_is_called_out() -> None:
    phase: dict[str, Any] = {"wall_s": 1.0, "busy_s": 0.2, "kinds": {"matmul": 0.9, "other": 0.1}}
    limit = bound(QWEN, 15.2e9, "bfloat16", WORK, peaks())
    run = {"prefill_wall_s": 0.1, "decode_wall_s": 20.0}
    says = bottlenecks({"prefill": phase, "decode": phase}, run, limit, on_gpu=True)
    assert any("waits for the host" in line for line in says)
    assert any("of what memory bandwidth allows" in line for line in says)
