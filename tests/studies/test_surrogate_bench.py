"""What the bench of the surrogate judges, and how its page words it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from studies.accuracy_page import _beside_rows
from studies.surrogate_bench import beside_memory

ROW = {
    "source": "owner/repo issue 1", "gpu": "A100-80GB", "gpus_per_node": "8", "num_gpus": "1",
    "framework": "HF Trainer", "model": "llama3-8b", "precision": "bf16", "seq_len": "4096",
    "gbs": "8", "mbs": "1", "tp": "1", "pp": "1", "recompute": "full",
}  # fmt: skip


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A folder with three runs that were published for their memory."""
    rows = [
        ROW | {"run_id": "trainer", "tokens_per_s_per_gpu": "2500"},
        ROW | {"run_id": "other", "framework": "DeepSpeed", "tokens_per_s_per_gpu": "3000"},
        ROW | {"run_id": "too-fast", "tokens_per_s_per_gpu": "50000"},
    ]
    with (tmp_path / "memory_runs.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["run_id", *ROW, "tokens_per_s_per_gpu"])
        writer.writeheader()
        writer.writerows(rows)
    (tmp_path / "models.json").write_text("{}", encoding="utf-8")
    return tmp_path


def test_runs_of_memory_are_judged_without_those_faster_than_their_gpus(measured: Path) -> None:
    found = beside_memory(measured)
    assert found["n"] == 2
    assert [found[name]["n"] for name in ("trainers", "others")] == [1, 1]
    lines = dict(_beside_rows(found))
    assert "throughput of runs published for their memory, none learned from (1 runs)" in lines
    assert all("in the 90% interval" in value for value in lines.values())


def test_without_such_runs_there_is_no_line(tmp_path: Path) -> None:
    assert _beside_rows(beside_memory(tmp_path)) == []
