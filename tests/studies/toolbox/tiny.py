"""A tiny Qwen2 with random weights."""

from __future__ import annotations

from typing import Any

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
