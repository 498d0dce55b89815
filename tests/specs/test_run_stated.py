"""Rows that leave open what decides their memory."""

from __future__ import annotations

import pytest

from specs import catalog
from specs.runs import table_of

FULL = {
    "run_id": "a", "source": "owner/repo", "gpu": "H100-SXM", "num_gpus": "64",
    "framework": "NeMo", "model": "llama3-70b", "precision": "bf16", "seq_len": "8192",
    "gbs": "128", "mbs": "1", "tp": "4", "pp": "4", "dp": "4", "sharding": "zero1",
    "recompute": "none", "peak_mem_gb": "60", "memory_unit": "GiB", "memory_counter": "allocated",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, ""),
        ({"recompute": "", "mbs": ""}, "recompute, mbs"),
        ({"recompute": "", "framework": "MaxText"}, ""),
        ({"sharding": ""}, "sharding"),
        ({"sharding": "", "dp": "1", "num_gpus": "16"}, ""),
        ({"schedule": "interleaved"}, "vpp"),
        ({"schedule": "interleaved", "vpp": "5"}, ""),
        ({"memory_counter": "unknown"}, "memory_counter"),
        ({"memory_counter": "", "run_id": "x-oom"}, ""),
        ({"notes": "per-GPU figure, rank not stated"}, "rank"),
        ({"notes": "rank not stated", "pp": "1", "dp": "16"}, ""),
        ({"notes": "cpu_offloading_num_layers=20"}, "offload"),
        ({"notes": "cpu_offloading_num_layers=0; activation_offload=no"}, ""),
        ({"run_id": "moe_fine_grained_offloading"}, "offload"),
        ({"gbs": "2"}, "dp"),
        ({"gbs": "63"}, "dp"),
    ],
)
def test_what_a_row_leaves_open_is_named(change: dict[str, str], names: str) -> None:
    assert table_of([FULL | change], catalog.model, catalog.gpu).unstated[0] == names
