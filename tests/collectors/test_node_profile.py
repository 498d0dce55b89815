"""The program that runs on a node: it measures, keeps what it has, and needs only torch."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from pathlib import Path

import pytest

from specs.errors import InputError
from specs.profile_rows import (
    KINDS,
    VARIANTS,
    PlanItem,
    close_profile,
    plan_json,
    read_profile,
)

PROGRAM = Path(__file__).parents[2] / "collectors" / "node_profile.py"
LAYER = {
    **{"batch": 1, "seq": 32, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim_qk": 16},
    **{"head_dim_v": 16, "ffn": 128, "gated": 1, "q_rank": 0, "kv_rank": 0, "rope_dim": 0},
    **{"experts": 0, "topk": 0, "expert_ffn": 0, "shared_ffn": 0},
}
LATENT = LAYER | {"q_rank": 32, "kv_rank": 16, "rope_dim": 8, "head_dim_qk": 24}
MOE = LAYER | {"experts": 4, "topk": 2, "expert_ffn": 32, "shared_ffn": 32, "ffn": 0}
ITEMS = [
    PlanItem("gemm", {"m": 64, "n": 64, "k": 64}),
    PlanItem(
        "attention",
        {"batch": 1, "seq": 32, "heads": 4, "kv_heads": 2, "head_dim_qk": 16, "head_dim_v": 16},
    ),
    PlanItem("grouped_gemm", {"experts": 4, "rows": 64, "hidden": 32, "ffn": 32, "gated": 1}),
    PlanItem("elementwise", {"elements": 4096}),
    PlanItem("optimizer", {"parameters": 4096}),
    PlanItem("layer", LAYER, variant="dense"),
    PlanItem("layer", LATENT, variant="dense"),
    PlanItem("layer", MOE, variant="moe"),
    PlanItem("collective", {"message_bytes": 4096, "ranks": 2, "ranks_per_node": 2}, variant="p2p"),
]


def test_needs_torch_and_the_standard_library_alone():
    """It is copied into containers: every other import would break there."""
    names = set()
    for node in ast.walk(ast.parse(PROGRAM.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(str(node.module).split(".")[0])
    assert names - set(sys.stdlib_module_names) == {"torch"}


def test_knows_every_kind_of_item():
    from collectors import node_profile

    assert set(node_profile.WORK) == set(KINDS)


def _measure(folder: Path) -> Path:
    """Measures the plan for one round; goes on where the file of rows ends."""
    from collectors.node_profile import main

    plan, out = folder / "plan.json", folder / "rows.jsonl"
    plan.write_text(json.dumps(plan_json(ITEMS)))
    arguments = ["--plan", str(plan), "--out", str(out), "--device", "cpu"]
    assert main([*arguments, "--budget", "10", "--rounds", "1"]) == 0
    return out


@pytest.fixture(scope="module")
def node_rows(tmp_path_factory):
    """The rows of a plan that was measured in an environment with a secret."""
    pytest.importorskip("torch", reason="PyTorch is not installed: nothing can be measured")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HF_TOKEN", "secret")
        return _measure(tmp_path_factory.mktemp("measured"))


def test_measures_every_kind(node_rows, tmp_path):
    profile = read_profile(node_rows)
    keys = {row.item.key for row in profile.rows}
    assert keys == {item.key for item in ITEMS if item.kind != "collective"}
    assert list(profile.failed.values()) == ["needs 2 processes, there are 1"]
    assert all(row.forward_s > 0 for row in profile.rows)
    both = {row.item.kind for row in profile.rows if row.backward_s}
    assert both == {"attention", "grouped_gemm", "layer"}
    for name in ("torch", "python", "device_name", "threads", "variables"):
        assert name in profile.environment
    lines = Path(shutil.copy(node_rows, tmp_path))
    closed = close_profile(lines, tmp_path / "rows.parquet")
    assert read_profile(closed).rows == profile.rows


def test_attention_keeps_its_output_for_backward(node_rows):
    profile = read_profile(node_rows)
    row = next(row for row in profile.rows if row.item.kind == "attention")
    # Query, key and value are inputs; what is kept beside them is the output (and statistics).
    output = 1 * 4 * 32 * 16 * 2
    assert output <= row.saved_bytes <= 2 * output


def test_resumes_and_keeps_whole_lines(node_rows, tmp_path):
    whole = node_rows.read_text()
    out = tmp_path / node_rows.name
    out.write_text(whole[: len(whole) - 30])  # killed while it wrote the last line
    assert _measure(tmp_path) == out
    again = read_profile(out)
    assert len(again.rows) == len(ITEMS) - 1
    assert again.notes
    # Only what was cut was measured again, beside a second line of the environment.
    assert len(out.read_text().splitlines()) == len(whole.splitlines()) + 2


def test_environment_holds_no_secrets(node_rows):
    assert "secret" not in node_rows.read_text()


@pytest.mark.parametrize(
    "line",
    [
        '{"kind": "magic", "sizes": {}}',
        '{"kind": "gemm", "sizes": {"m": -1, "n": 2, "k": 3}}',
        '{"kind": "gemm", "sizes": [], "dtype": "bf16"}',
        '{"schema_version": 99}',
        "",
        "[]",
    ],
)
def test_foreign_rows_are_one_sentence(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InputError):
        read_profile(path)


def test_keys_differ_where_sizes_do():
    assert len({item.key for item in ITEMS}) == len(ITEMS)
    assert set(VARIANTS) <= set(KINDS)
