"""A tiny random Qwen2 and the differences of whatever is done to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

TINY = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="session")
def needs_torch() -> None:
    """Skips where torch or transformers is not installed."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'foretune[toolbox]'")
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'foretune[toolbox]'"
    )


@pytest.fixture
def tiny_config(tmp_path: Path, needs_torch: None) -> Path:  # noqa: ARG001
    """The config.json of a tiny Qwen2."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def tiny_model(dtype: str = "float32", attention: str = "eager") -> Any:
    """A tiny Qwen2 with random weights that attend far and unevenly, as trained ones do."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from studies.toolbox.models import cast_parameters

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**TINY)).eval()
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            projection.weight.data *= 4
    model.set_attn_implementation(attention)
    cast_parameters(model, dtype)
    return model
