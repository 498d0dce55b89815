"""Megatron arguments and the architecture of a model: both directions."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from specs.errors import InputError
from specs.formats.layer_pattern import layer_flags
from specs.formats.megatron.values import Values
from specs.model import MOST_LAYERS, Mla, Model, unsupported

# Arguments whose mere presence means an architecture that is not projected.
_UNSUPPORTED = {
    "lfm_layer_types": "short-convolution layers (lfm_layer_types)",
    "hybrid_override_pattern": "a Mamba hybrid (hybrid_override_pattern)",
    "linear_attention_freq": "linear attention (linear_attention_freq)",
    "linear_num_key_heads": "linear attention (linear_num_key_heads)",
    "heterogeneous_layers_config_path": "layers of different shapes (heterogeneous_layers_config)",
    "heterogeneous_layers_config_encoded_json": "layers of different shapes",
    "routed_expert_hidden_size": "latent MoE (routed_expert_hidden_size)",
    "moe_latent_size": "latent MoE (moe_latent_size)",
    "num_joint_layers": "a diffusion transformer (num_joint_layers)",
    "num_single_layers": "a diffusion transformer (num_single_layers)",
    "encoder_num_layers": "an encoder-decoder (encoder_num_layers)",
    "compress_ratios": "compressed attention (compress_ratios)",
    "index_topk": "sparse attention (index_topk)",
    "attn_res_block_size": "attention residuals (attn_res_block_size)",
}
_UNSUPPORTED_FLAGS = {
    "is_hybrid_model": "a Mamba hybrid (is_hybrid_model)",
    "hybrid_attention_enabled": "hybrid sparse attention (hybrid_attention_enabled)",
    "use_legacy_models": "Megatron's legacy model code (use_legacy_models)",
    "retro_add_retriever": "a retrieval model (retro_add_retriever)",
    "vision_pretraining": "a vision model (vision_pretraining)",
    "attention_output_gate": "gated attention output (attention_output_gate)",
}

ARCHITECTURE_KEYS = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "group_query_attention",
    "num_query_groups",
    "kv_channels",
    "vocab_size",
    "untie_embeddings_and_output_weights",
    "swiglu",
    "quick_geglu",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "normalization",
    "position_embedding_type",
    "hidden_dropout",
    "attention_dropout",
    "multi_latent_attention",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
    "num_experts",
    "moe_layer_freq",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "moe_shared_expert_gate",
    "mtp_num_layers",
)


# Fields that no Megatron argument sets.
_ONLY_CATALOG = (
    "attention_output_bias",
    "norms_per_layer",
    "router_bias",
    "expert_bias",
    "embedding_norm",
    "parallel_block",
)


def check_supported(values: Values) -> None:
    """Refuses what is no decoder-only transformer with softmax attention.

    Raises:
        InputError: the arguments describe another architecture.
    """
    kind = values.text("model_type", "gpt")
    if kind != "gpt":
        raise unsupported(f"model_type {kind!r}", values.where)
    variant = values.text("experimental_attention_variant")
    if variant:
        raise unsupported(f"the attention variant {variant}", values.where)
    for key, what in _UNSUPPORTED.items():
        if values.given(key):
            raise unsupported(what, values.where)
    for key, what in _UNSUPPORTED_FLAGS.items():
        if values.flag(key):
            raise unsupported(what, values.where)


def read_model(values: Values, name: str, base: Model | None = None) -> Model:
    """The architecture that the arguments describe.

    ``base`` fills in what the arguments leave out (null or missing).

    Raises:
        InputError: a size is missing or contradictory, or the architecture is not supported.
    """
    check_supported(values)
    fields = _sizes(values, base) | _details(values, base)
    fields |= _window(values, fields["num_layers"], base)
    fields |= _experts(values, fields, base)
    return build_model(fields, name, values.where)


def build_model(fields: dict[str, Any], name: str, where: str) -> Model:
    """A Model from its fields.

    Raises:
        InputError: the fields contradict each other.
    """
    try:
        return Model(name=name, **fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        problem = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}: {field + ': ' if field else ''}{problem}.") from None


def _sizes(values: Values, base: Model | None) -> dict[str, Any]:
    """Layers, widths, heads and vocabulary."""

    def size(key: str, field: str) -> int:
        number = values.integer(key, 1)
        return number if number is not None or base is None else int(getattr(base, field))  # type: ignore[return-value]

    layers, hidden = size("num_layers", "num_layers"), size("hidden_size", "hidden_size")
    heads = size("num_attention_heads", "num_attention_heads")
    if None in (layers, hidden, heads):
        raise values.fail("num_layers, hidden_size or num_attention_heads is missing; add it.")
    ffn = size("ffn_hidden_size", "ffn_hidden_size") or _default_ffn(values, hidden)
    vocab = size("vocab_size", "vocab_size")
    if vocab is None:
        raise values.fail("vocab_size is unknown; add vocab_size to the overrides.")
    head_dim = values.integer("kv_channels", 1)
    if (
        head_dim is None
        and base
        and (hidden, heads)
        == (
            base.hidden_size,
            base.num_attention_heads,
        )
    ):
        head_dim = base.head_dim
    if head_dim is None and hidden % heads:
        raise values.fail(
            f"hidden_size {hidden} does not divide by {heads} heads; state kv_channels."
        )
    return {
        "num_layers": layers,
        "hidden_size": hidden,
        "ffn_hidden_size": ffn,
        "num_attention_heads": heads,
        "num_query_groups": _query_groups(values, heads, base),
        "head_dim": head_dim or hidden // heads,
        "vocab_size": vocab,
    }


def _default_ffn(values: Values, hidden: int) -> int:
    """Megatron's MLP width: 4h, or two thirds of it in steps of 64 where gated (arguments.py)."""
    return (4 * hidden * 2 // 3) // 64 * 64 if values.flag("swiglu") else 4 * hidden


def _query_groups(values: Values, heads: int, base: Model | None) -> int:
    """Key-value groups: all heads without grouped-query attention, and under latent attention."""
    if base is not None and not values.given("group_query_attention"):
        groups = values.integer("num_query_groups", 1)
        return groups or (heads if base.mla else base.num_query_groups)
    if values.flag("multi_latent_attention") or not values.flag("group_query_attention"):
        return heads
    return values.integer("num_query_groups", 1) or heads


def _details(values: Values, base: Model | None) -> dict[str, Any]:
    """Biases, norms, positions, dropout and attention kind.

    Rotary base and norm epsilon are those of ``megatron/training/arguments.py``.
    """

    def flag(key: str, field: str) -> bool:
        if base is not None and not values.given(key):
            return bool(getattr(base, field))
        return values.flag(key)

    fields: dict[str, Any] = {
        "linear_bias": flag("add_bias_linear", "linear_bias"),
        "qkv_bias": flag("add_qkv_bias", "qkv_bias"),
        "mla": _latent(values, base),
        "mtp_layers": _or_base(values.integer("mtp_num_layers"), base, "mtp_layers"),
    }
    fields["qk_norm"] = flag("qk_layernorm", "qk_norm") and fields["mla"] is None
    untied = values.given("untie_embeddings_and_output_weights")
    if base is None or untied:
        fields["tied_embeddings"] = not values.flag("untie_embeddings_and_output_weights")
    else:
        fields["tied_embeddings"] = base.tied_embeddings
    if base is None or values.given("swiglu"):
        fields["gated_mlp"] = values.flag("swiglu") or values.flag("quick_geglu")
    else:
        fields["gated_mlp"] = base.gated_mlp
    if base is None or values.given("normalization"):
        norms = {"LayerNorm": True, "RMSNorm": False}
        fields["layer_norm_bias"] = values.choice("normalization", norms, "LayerNorm")
    else:
        fields["layer_norm_bias"] = base.layer_norm_bias
    if base is None or values.given("position_embedding_type"):
        learned = values.text("position_embedding_type", "learned_absolute") == "learned_absolute"
        positions = values.integer("max_position_embeddings", 1) or values.integer("seq_length", 1)
        fields["learned_positions"] = (positions or 0) if learned else 0
    else:
        fields["learned_positions"] = base.learned_positions
    if base is None or values.given("hidden_dropout"):
        dropouts = (values.number("hidden_dropout"), values.number("attention_dropout"))
        fields["dropout"] = any(dropouts)
    else:
        fields["dropout"] = base.dropout
    for name, smallest in (("rotary_base", 1.0), ("norm_epsilon", 1e-12)):
        number = values.number(name, smallest)
        fields[name] = number if number is not None or base is None else getattr(base, name)
    if base is not None:
        fields |= {name: getattr(base, name) for name in _ONLY_CATALOG}
    return fields


def _or_base(number: int | None, base: Model | None, field: str) -> int:
    """A number, that of the base where it is not given, else 0."""
    if number is not None:
        return number
    return int(getattr(base, field)) if base is not None else 0


def _latent(values: Values, base: Model | None) -> Mla | None:
    """Multi-latent attention dimensions."""
    if base is not None and not values.given("multi_latent_attention"):
        return base.mla
    if not values.flag("multi_latent_attention"):
        return None
    below = base.mla if base else None
    return Mla(
        q_lora_rank=values.integer("q_lora_rank") or (below.q_lora_rank if below else 0),
        kv_lora_rank=values.integer("kv_lora_rank", 1) or (below.kv_lora_rank if below else 512),
        qk_nope_head_dim=values.integer("qk_head_dim", 1)
        or (below.qk_nope_head_dim if below else 128),
        qk_rope_head_dim=values.integer("qk_pos_emb_head_dim")
        or (below.qk_rope_head_dim if below else 64),
        v_head_dim=values.integer("v_head_dim", 1) or (below.v_head_dim if below else 128),
    )


def _window(values: Values, num_layers: int, base: Model | None) -> dict[str, Any]:
    """Sliding window and attention sinks.

    Megatron: window_size with window_attn_skip_freq, softmax_type learnable. Primus-Turbo:
    use_sink_attention with sink_sliding_window, inert without enable_primus_turbo and
    use_turbo_attention.
    """
    turbo = values.flag("enable_primus_turbo") and values.flag("use_turbo_attention")
    sinks = values.text("softmax_type", "vanilla") != "vanilla"
    window = layers = 0
    if values.flag("use_sink_attention"):
        if turbo:
            sinks = True
            window = values.integer("sink_sliding_window") or 0
            every_second = values.flag("sink_window_even_layers_only")
            layers = (num_layers + 1) // 2 if every_second else num_layers
        else:
            values.note("use_sink_attention has no effect without Turbo attention.")
    sizes = values.arguments.get("window_size")
    if sizes is not None:
        if not isinstance(sizes, list | tuple) or not sizes or not isinstance(sizes[0], int):
            raise values.fail("window_size must be two whole numbers, for example [128, 0].")
        window, layers = max(sizes[0], 0), num_layers
        skip = values.arguments.get("window_attn_skip_freq")
        skip = int(skip) if isinstance(skip, str) and skip.isdigit() else skip
        if isinstance(skip, int) and not isinstance(skip, bool) and skip > 0:
            layers = num_layers - num_layers // skip
        elif skip is not None:
            layers = sum(layer_flags(skip, num_layers, "window_attn_skip_freq"))
    if base is not None and not (sinks or window):
        kept = ("attention_sinks", "sliding_window", "window_layers")
        return {name: getattr(base, name) for name in kept}
    return {
        "attention_sinks": sinks,
        "sliding_window": window if layers else 0,
        "window_layers": layers if window else 0,
    }


def _experts(values: Values, fields: dict[str, Any], base: Model | None) -> dict[str, Any]:
    """Experts, their routing and which layers have them."""
    layers = fields["num_layers"]
    if layers > MOST_LAYERS:
        raise values.fail(f"num_layers {layers} is more than {MOST_LAYERS:,}.")
    num_experts = _or_base(values.integer("num_experts"), base, "num_experts")
    if not num_experts:
        return {}
    topk = values.integer("moe_router_topk", 1) or _or_base(None, base, "moe_topk")
    width = values.integer("moe_ffn_hidden_size", 1) or _or_base(None, base, "moe_ffn_hidden_size")
    shared = values.integer("moe_shared_expert_intermediate_size")
    if base is not None and not values.given("moe_layer_freq"):
        pattern = base.layer_is_moe().tolist() if layers == base.num_layers else None
        if pattern is None:
            pattern = [layer >= base.dense_layers for layer in range(layers)]
        flags = tuple(pattern)
    else:
        frequency = values.arguments.get("moe_layer_freq")
        try:
            flags = layer_flags(1 if frequency is None else frequency, layers, "moe_layer_freq")
        except InputError as error:
            raise values.fail(str(error)) from None
    gate = values.flag("moe_shared_expert_gate")
    if base is not None and not values.given("moe_shared_expert_gate"):
        gate = base.shared_expert_gate
    return {
        "num_experts": num_experts,
        "moe_topk": topk,
        "moe_ffn_hidden_size": width or fields["ffn_hidden_size"],
        "shared_expert_ffn": _or_base(shared, base, "shared_expert_ffn"),
        "shared_expert_gate": gate,
    } | moe_pattern(flags)


def moe_pattern(flags: tuple[bool, ...]) -> dict[str, Any]:
    """``dense_layers`` where the dense layers lead, ``moe_layers`` where they mix otherwise."""
    dense = flags.index(True) if any(flags) else len(flags)
    if all(flags[dense:]):
        return {"dense_layers": dense}
    return {"moe_layers": flags, "dense_layers": 0}


def write_model(model: Model) -> dict[str, Any]:
    """The Megatron arguments that describe ``model`` (without biases that Megatron cannot mix).

    Raises:
        InputError: Megatron has no arguments for this architecture.
    """
    if model.norms_per_layer != 2 or model.embedding_norm:
        raise InputError(
            f"{model.name} has norms that Megatron arguments cannot express (two a layer and one "
            "at the end); start from a YAML of its own."
        )
    if model.parallel_block:
        raise InputError(
            f"{model.name} runs attention and MLP in parallel, which Megatron arguments cannot "
            "express; start from a YAML of its own."
        )
    biased = model.linear_bias or model.attention_output_bias or model.expert_bias
    arguments: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "group_query_attention": model.mla is None
        and model.num_query_groups != model.num_attention_heads,
        "num_query_groups": None,
        "kv_channels": model.head_dim,
        "vocab_size": model.vocab_size,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "swiglu": model.gated_mlp,
        "add_bias_linear": biased,
        "add_qkv_bias": model.qkv_bias,
        "qk_layernorm": model.qk_norm or model.mla is not None,
        "normalization": "LayerNorm" if model.layer_norm_bias else "RMSNorm",
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "hidden_dropout": 0.1 if model.dropout else 0.0,
        "attention_dropout": 0.1 if model.dropout else 0.0,
        "multi_latent_attention": model.mla is not None,
        "mtp_num_layers": model.mtp_layers or None,
    }
    if arguments["group_query_attention"]:
        arguments["num_query_groups"] = model.num_query_groups
    if model.mla is not None:
        arguments |= {
            "q_lora_rank": model.mla.q_lora_rank or None,
            "kv_lora_rank": model.mla.kv_lora_rank,
            "qk_head_dim": model.mla.qk_nope_head_dim,
            "qk_pos_emb_head_dim": model.mla.qk_rope_head_dim,
            "v_head_dim": model.mla.v_head_dim,
        }
    if model.sliding_window and model.window_layers:
        skip = [1] * model.window_layers + [0] * (model.num_layers - model.window_layers)
        arguments |= {"window_size": [model.sliding_window, 0], "window_attn_skip_freq": skip}
    if model.attention_sinks:
        arguments["softmax_type"] = "learnable"
    if model.norm_epsilon is not None:
        arguments["norm_epsilon"] = model.norm_epsilon
    if model.rotary_base is not None and not model.learned_positions:
        if not model.rotary_base.is_integer():
            raise InputError(
                f"{model.name} has a rotary base of {model.rotary_base:g}, and --rotary-base of "
                "Megatron takes whole numbers alone; start from a YAML of its own."
            )
        arguments["rotary_base"] = int(model.rotary_base)
    return arguments | _write_experts(model)


def _write_experts(model: Model) -> dict[str, Any]:
    """The arguments of an MoE model's experts; num_experts null for a dense one."""
    if not model.is_moe:
        return {"num_experts": None}
    flags = model.layer_is_moe()
    pattern = "+".join(f"[{int(flag)}]*{count}" for flag, count in _runs(flags.tolist()))
    return {
        "num_experts": model.num_experts,
        "moe_layer_freq": f"({pattern})",
        "moe_router_topk": model.moe_topk,
        "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": model.shared_expert_ffn or None,
        "moe_shared_expert_gate": model.shared_expert_gate,
    }


def _runs(flags: list[bool]) -> list[tuple[bool, int]]:
    """Run-length encoding of layer flags."""
    runs: list[tuple[bool, int]] = []
    for flag in flags:
        if runs and runs[-1][0] == flag:
            runs[-1] = (flag, runs[-1][1] + 1)
        else:
            runs.append((flag, 1))
    return runs
