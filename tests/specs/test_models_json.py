"""Reading the models.json that accompanies measured runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specs import catalog
from specs.errors import InputError
from specs.models_json import models_json

DENSE: dict[str, Any] = {
    "attention": "gqa",
    "num_layers": 4,
    "hidden_size": 256,
    "ffn_hidden_size": 512,
    "num_attention_heads": 8,
    "num_query_groups": 4,
    "head_dim": 32,
    "vocab_size": 1000,
    "tied_embeddings": False,
    "mla": None,
    "num_experts": None,
}


def _write(tmp_path: Path, **models: Any) -> Path:
    file = tmp_path / "models.json"
    file.write_text(json.dumps(models))
    return file


def test_a_model_that_the_catalog_does_not_know(tmp_path: Path) -> None:
    file = models_json(_write(tmp_path, new=DENSE))
    assert file.find("new").num_query_groups == 4
    assert file.find("new").gated_mlp
    assert file.find("llama3.1-8b") == catalog.model("llama3.1-8b")
    with pytest.raises(InputError, match="no model"):
        file.find("newer")


def test_mla_and_moe_fields(tmp_path: Path) -> None:
    mla = {"q_lora_rank": None, "kv_lora_rank": 64, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8}
    moe = {"num_experts": 8, "moe_topk": 2, "moe_ffn_hidden_size": 128, "ffn_hidden_size": None}
    entry = DENSE | moe | {"attention": "mla", "mla": mla | {"v_head_dim": 16}, "head_dim": None}
    model = models_json(_write(tmp_path, new=entry)).find("new")
    assert model.mla is not None
    assert (model.mla.q_lora_rank, model.mla.qk_nope_head_dim, model.head_dim) == (0, 16, 16)
    assert model.num_moe_layers == 4
    assert model.ffn_hidden_size == 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": None}, "lacks vocab_size"),
        ({"hybrid": "mamba2"}, "hybrid"),
        ({"linear_attention_freq": 4}, "linear attention"),
        ({"attention": "dsa"}, "dsa"),
        ({"num_query_groups": 3}, "multiple"),
        ({"num_experts": 8, "moe_topk": 9, "moe_ffn_hidden_size": 8}, "moe_topk"),
        ({"moe_topk": 2, "moe_ffn_hidden_size": 8}, "lacks num_experts"),
        ({"attention": "mla"}, "lacks mla"),
    ],
)
def test_why_a_model_is_not_projected(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = models_json(_write(tmp_path, new=DENSE | change))
    assert file.models == {}
    with pytest.raises(InputError, match=message):
        file.find("new")


def test_one_empty_entry_does_not_spoil_the_others(tmp_path: Path) -> None:
    file = models_json(_write(tmp_path, new=DENSE, empty=None))
    assert file.find("new").num_layers == 4
    with pytest.raises(InputError, match="holds no fields"):
        file.find("empty")


def test_the_catalog_fills_only_models_of_the_same_shape(tmp_path: Path) -> None:
    known = {key: getattr(catalog.model("gpt-oss-20b"), key) for key in DENSE if key != "attention"}
    known |= {"moe_topk": 4, "moe_ffn_hidden_size": 2880, "vocab_size": None}
    file = models_json(_write(tmp_path, **{"gpt-oss-20b": known, "llama3-8b": DENSE}))
    assert file.find("gpt-oss-20b").attention_sinks
    assert file.notes == {"gpt-oss-20b": "vocab_size from the catalog"}
    assert file.find("llama3-8b").hidden_size == 256


def test_the_measured_models(shared: Path) -> None:
    file = models_json(shared / "measured" / "models.json")
    assert len(file.models) + len(file.unsupported) == 170
    assert set(file.unsupported) == set(catalog.unsupported_models())
