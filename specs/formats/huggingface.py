"""Hugging Face ``config.json``: the architecture of a model.

Fields and their defaults are those of the ``transformers`` configuration classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specs.formats.megatron.model import build_model, moe_pattern
from specs.formats.megatron.values import Values
from specs.formats.yaml_files import read_json
from specs.model import MOST_LAYERS, Mla, Model, unsupported

Fields = dict[str, Any]


def is_huggingface(content: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a Hugging Face model config."""
    return "model_type" in content


def read_huggingface(path: Path) -> Model:
    """The model of a ``config.json``.

    Raises:
        InputError: the file is no model config, lacks a size or describes another architecture.
    """
    return model_of(read_json(path), str(path), _name(path))


def model_of(content: Mapping[str, Any], where: str, name: str) -> Model:
    """The model of a parsed ``config.json``; its own name wins over ``name``.

    Raises:
        InputError: the config lacks a size or describes another architecture.
    """
    values = Values(content, where)
    kind = values.text("model_type")
    if not kind:
        raise values.fail("model_type is missing; this is no Hugging Face model config.")
    reader = _READERS.get(kind)
    if reader is None:
        raise unsupported(f"model_type {kind!r} (known are {', '.join(_READERS)})", where)
    fields = _common(values) | reader(values)
    own = values.text("_name_or_path").rstrip("/").rsplit("/", 1)[-1]
    return build_model(fields | {"source": f"Hugging Face config {where}"}, own or name, where)


def _name(path: Path) -> str:
    """A model name from the path: the folder of a ``config.json``, else the file's own name."""
    return path.resolve().parent.name if path.stem == "config" else path.stem


def _layers(values: Values) -> int:
    """The number of layers, which readers spell out."""
    layers = values.required("num_hidden_layers")
    if layers > MOST_LAYERS:
        raise values.fail(f"num_hidden_layers {layers} is more than {MOST_LAYERS:,}.")
    return layers


def _common(values: Values) -> Fields:
    """Sizes that every decoder has."""
    hidden, heads = values.required("hidden_size"), values.required("num_attention_heads")
    head_dim = values.integer("head_dim", 1)
    if head_dim is None and hidden % heads:
        raise values.fail(f"hidden_size {hidden} does not divide by {heads} heads; add head_dim.")
    return {
        "num_layers": _layers(values),
        "hidden_size": hidden,
        "ffn_hidden_size": values.required("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": values.integer("num_key_value_heads", 1) or heads,
        "head_dim": head_dim or hidden // heads,
        "vocab_size": values.required("vocab_size"),
        "tied_embeddings": values.flag("tie_word_embeddings"),
        "rotary_base": _rotary_base(values),
        "norm_epsilon": values.number("rms_norm_eps") or None,
    }


def _rotary_base(values: Values) -> float | None:
    """Base of the rotary frequencies: a field of its own, since transformers 5 in a mapping."""
    base = values.number("rope_theta", 1.0)
    mapping = values.arguments.get("rope_parameters")
    if base is None and isinstance(mapping, Mapping):
        return Values(mapping, f"{values.where}: rope_parameters").number("rope_theta", 1.0)
    return base


def _llama(values: Values) -> Fields:
    if values.flag("mlp_bias"):
        raise unsupported("a bias in the MLP only (mlp_bias)", values.where)
    bias = values.flag("attention_bias")
    return {"qkv_bias": bias, "attention_output_bias": bias}


def _mistral(values: Values) -> Fields:
    return _full_window(values, values.integer("sliding_window"))


def _full_window(values: Values, window: int | None) -> Fields:
    """A sliding window on all layers, none where it is null."""
    layers = _layers(values)
    return {"sliding_window": window or 0, "window_layers": layers if window else 0}


def _mixtral(values: Values) -> Fields:
    return _mistral(values) | {
        "num_experts": values.integer("num_local_experts", 1) or 8,
        "moe_topk": values.integer("num_experts_per_tok", 1) or 2,
        "moe_ffn_hidden_size": values.required("intermediate_size"),
    }


def _qwen2(values: Values) -> Fields:
    return _qwen_window(values) | {"qkv_bias": True}


def _qwen3(values: Values) -> Fields:
    return _qwen_window(values) | _llama(values) | {"qk_norm": True}


def _qwen_window(values: Values) -> Fields:
    """Qwen: a window on the layers from max_window_layers on, if it is switched on."""
    if not values.flag("use_sliding_window"):
        return {}
    layers = _layers(values)
    window = values.integer("sliding_window", 1) or 4096
    full = values.integer("max_window_layers")
    return {
        "sliding_window": window,
        "window_layers": max(layers - (28 if full is None else full), 0),
    }


def _sparse_pattern(values: Values) -> Fields:
    """Qwen MoE: every decoder_sparse_step-th layer has experts, except mlp_only_layers."""
    layers = _layers(values)
    step = values.integer("decoder_sparse_step", 1) or 1
    dense = set(values.integers("mlp_only_layers"))
    return moe_pattern(tuple((i + 1) % step == 0 and i not in dense for i in range(layers)))


def _qwen2_moe(values: Values) -> Fields:
    return (
        _qwen2(values)
        | _sparse_pattern(values)
        | {
            "num_experts": values.required("num_experts"),
            "moe_topk": values.required("num_experts_per_tok"),
            "moe_ffn_hidden_size": values.required("moe_intermediate_size"),
            "shared_expert_ffn": values.integer("shared_expert_intermediate_size") or 0,
            "shared_expert_gate": bool(values.integer("shared_expert_intermediate_size")),
        }
    )


def _qwen3_moe(values: Values) -> Fields:
    return (
        _qwen3(values)
        | _sparse_pattern(values)
        | {
            "num_experts": values.required("num_experts"),
            "moe_topk": values.required("num_experts_per_tok"),
            "moe_ffn_hidden_size": values.required("moe_intermediate_size"),
        }
    )


def _deepseek(values: Values) -> Fields:
    """DeepSeek-V2 and V3: latent attention, shared experts, leading dense layers, MTP.

    The correction bias of the router is a buffer and is not counted.
    """
    layers, heads = _layers(values), values.required("num_attention_heads")
    nope = values.required("qk_nope_head_dim")
    fields: Fields = {
        "num_query_groups": heads,
        "head_dim": nope,
        "mla": Mla(
            q_lora_rank=values.integer("q_lora_rank") or 0,
            kv_lora_rank=values.required("kv_lora_rank"),
            qk_nope_head_dim=nope,
            qk_rope_head_dim=values.required("qk_rope_head_dim", 0),
            v_head_dim=values.required("v_head_dim"),
        ),
        "mtp_layers": values.integer("num_nextn_predict_layers") or 0,
    }
    experts = values.integer("n_routed_experts")
    if not experts:
        return fields
    width = values.required("moe_intermediate_size")
    first = values.integer("first_k_dense_replace") or 0
    every = values.integer("moe_layer_freq", 1) or 1
    flags = tuple(i >= first and i % every == 0 for i in range(layers))
    return (
        fields
        | moe_pattern(flags)
        | {
            "num_experts": experts,
            "moe_topk": values.required("num_experts_per_tok"),
            "moe_ffn_hidden_size": width,
            "shared_expert_ffn": (values.integer("n_shared_experts") or 0) * width,
        }
    )


def _gpt_oss(values: Values) -> Fields:
    """GPT-OSS: biases in attention, router and experts, sinks, a window on alternate layers."""
    layers = _layers(values)
    kinds = values.words("layer_types")
    windows = (layers + 1) // 2 if kinds is None else list(kinds).count("sliding_attention")
    window = values.integer("sliding_window") or 0
    return {
        "qkv_bias": True,
        "attention_output_bias": True,
        "attention_sinks": True,
        "sliding_window": window if windows else 0,
        "window_layers": windows if window else 0,
        "num_experts": values.required("num_local_experts"),
        "moe_topk": values.integer("num_experts_per_tok", 1) or 4,
        "moe_ffn_hidden_size": values.required("intermediate_size"),
        "router_bias": True,
        "expert_bias": True,
    }


def _grok(values: Values) -> Fields:
    """Grok-1: four norms a layer, tied embeddings unless stated."""
    tied = values.flag("tie_word_embeddings") if values.given("tie_word_embeddings") else True
    return {
        "tied_embeddings": tied,
        "norms_per_layer": 4,
        "num_experts": values.integer("num_experts", 1) or 8,
        "moe_topk": values.integer("num_experts_per_tok", 1) or 2,
        "moe_ffn_hidden_size": values.required("intermediate_size"),
    }


_READERS: dict[str, Callable[[Values], Fields]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
    "grok-1": _grok,
}
