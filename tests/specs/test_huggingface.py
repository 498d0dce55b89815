"""Hugging Face configs: parameter counts by equality with the published architectures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specs import catalog
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.huggingface import model_of, read_huggingface
from specs.formats.megatron import arguments, read_arguments
from specs.stack import Stack
from specs.workload import Workload

LLAMA = {"model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8}
LLAMA_70B = {
    **LLAMA,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
MIXTRAL_8X22B = {
    "model_type": "mixtral",
    "hidden_size": 6144,
    "intermediate_size": 16384,
    "num_hidden_layers": 56,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32768,
    "sliding_window": None,
}
QWEN3_30B = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "first_k_dense_replace": 3,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
DEEPSEEK_V2 = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 60,
    "first_k_dense_replace": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "num_nextn_predict_layers": None,
    "vocab_size": 102400,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "vocab_size": 201088,
}
CONFIGS: dict[str, tuple[dict[str, Any], int, int]] = {
    "Llama-2-7B": (
        {
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 32000,
        },
        6_738_415_616,
        6_738_415_616,
    ),
    "Llama-3.1-8B": (
        {
            **LLAMA,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
        },
        8_030_261_248,
        8_030_261_248,
    ),
    "Llama-3.1-70B": (LLAMA_70B, 70_553_706_496, 70_553_706_496),
    "Llama-3.1-405B": (
        {
            **LLAMA,
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
        },
        405_853_388_800,
        405_853_388_800,
    ),
    "Qwen2.5-7B": (
        {
            "model_type": "qwen2",
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152064,
        },
        7_615_616_512,
        7_615_616_512,
    ),
    "Qwen3-8B": (
        {
            "model_type": "qwen3",
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        },
        8_190_735_360,
        8_190_735_360,
    ),
    "Mixtral-8x7B": (
        {
            **MIXTRAL_8X22B,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "vocab_size": 32000,
        },
        46_702_792_704,
        12_879_925_248,
    ),
    "Mixtral-8x22B": (MIXTRAL_8X22B, 140_630_071_296, 39_161_468_928),
    "Qwen3-30B-A3B": (QWEN3_30B, 30_532_122_624, 3_353_032_704),
    "Qwen3-235B-A22B": (
        {
            **QWEN3_30B,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "moe_intermediate_size": 1536,
            "num_hidden_layers": 94,
            "num_attention_heads": 64,
        },
        235_093_634_560,
        22_190_763_520,
    ),
    "DeepSeek-V2-Lite": (
        {
            **DEEPSEEK_V2,
            "hidden_size": 2048,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "n_routed_experts": 64,
            "q_lora_rank": None,
        },
        15_706_484_224,
        2_661_150_208,
    ),
    "DeepSeek-V2": (DEEPSEEK_V2, 235_741_434_880, 21_375_800_320),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_404_352, 37_552_282_624),
    "GPT-OSS-20B": (GPT_OSS_20B, 20_914_757_184, 4_187_440_704),
    "GPT-OSS-120B": (
        {
            **GPT_OSS_20B,
            "num_hidden_layers": 36,
            "num_local_experts": 128,
            "layer_types": ["sliding_attention", "full_attention"] * 18,
        },
        116_829_156_672,
        5_711_982_912,
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameter_counts(name: str) -> None:
    content, total, active = CONFIGS[name]
    model = model_of(content, "config.json", name)
    assert model.total_parameters() == total
    assert model.active_parameters() == active


def test_grok_is_that_of_the_catalog() -> None:
    content = {
        "model_type": "grok-1",
        "hidden_size": 6144,
        "intermediate_size": 32768,
        "num_hidden_layers": 64,
        "num_attention_heads": 48,
        "num_key_value_heads": 8,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "vocab_size": 131072,
    }
    model, known = model_of(content, "config.json", "Grok-1"), catalog.model("grok-1")
    assert model.total_parameters() == known.total_parameters()
    assert model.active_parameters() == known.active_parameters()


def test_deepseek_v3_with_mtp() -> None:
    model = model_of(DEEPSEEK_V3, "config.json", "DeepSeek-V3")
    assert model.mtp_parameters() == 11_610_067_968
    assert model.total_parameters(with_mtp=True) == 682_636_472_320


def test_kimi_k2_without_its_router_biases() -> None:
    content = {
        **DEEPSEEK_V3,
        "model_type": "kimi_k2",
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "first_k_dense_replace": 1,
        "n_routed_experts": 384,
        "num_nextn_predict_layers": 0,
        "vocab_size": 163840,
    }
    model = model_of(content, "config.json", "Kimi-K2")
    assert model.total_parameters() + 60 * 384 == 1_026_408_232_448
    assert model.active_parameters() + 60 * 384 == 32_861_500_928


def test_windows_and_shared_experts() -> None:
    mistral = {**CONFIGS["Llama-3.1-8B"][0], "model_type": "mistral", "sliding_window": 4096}
    assert model_of(mistral, "c", "m").window_layers == 32
    gpt_oss = model_of(GPT_OSS_20B, "c", "m")
    assert (gpt_oss.sliding_window, gpt_oss.window_layers) == (128, 12)
    qwen2_moe = {
        **QWEN3_30B,
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    }
    model = model_of(qwen2_moe, "c", "m")
    assert model.shared_expert_ffn == 5632
    assert model.shared_expert_gate
    flags = model.layer_is_moe()
    assert flags.sum() == 23
    assert not flags[1]
    assert flags[3]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "mamba2"}, "mamba2"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": -3}, "num_attention_heads"),
        ({"num_key_value_heads": 7}, "num_query_groups"),
        ({"mlp_bias": True}, "mlp_bias"),
    ],
)
def test_bad_configs_are_one_sentence(change: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        model_of({**LLAMA_70B, **change}, "config.json", "x")


@pytest.mark.parametrize("layers", [10_001, 2**31, "2147483648"])
def test_layers_beyond_any_model_are_not_spelled_out(layers: object) -> None:
    experts = {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 64,
        "v_head_dim": 64,
        "model_type": "deepseek_v3",
    }
    with pytest.raises(InputError, match="is more than 10,000"):
        model_of({**LLAMA_70B, **experts, "num_hidden_layers": layers}, "config.json", "x")


def test_name_comes_from_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_70B))
    assert read_huggingface(folder / "config.json").name == "My-Llama"


@pytest.mark.parametrize("theta", [{"rope_theta": 1e6}, {"rope_parameters": {"rope_theta": 1e6}}])
def test_rotary_base_and_epsilon_reach_the_launch_file(theta: dict[str, Any]) -> None:
    model = model_of(MIXTRAL_8X22B | theta | {"rms_norm_eps": 1e-5}, "config.json", "m")
    assert (model.rotary_base, model.norm_epsilon) == (1e6, 1e-5)
    workload = Workload(model=model, seq_len=8192, global_batch_size=8)
    flags = arguments(TrainingConfig(), workload, Stack())
    assert flags[flags.index("--rotary-base") + 1] == "1000000"
    assert flags[flags.index("--norm-epsilon") + 1] == "1e-05"
    read = read_arguments(flags)[1].model
    assert (read.rotary_base, read.norm_epsilon) == (1e6, 1e-5)
    unstated = model_of(MIXTRAL_8X22B, "config.json", "m")
    silent = arguments(TrainingConfig(), workload.model_copy(update={"model": unstated}), Stack())
    assert "--rotary-base" not in silent
    assert "--norm-epsilon" not in silent


def test_a_rotary_base_that_megatron_cannot_take_is_refused() -> None:
    model = model_of(MIXTRAL_8X22B | {"rope_theta": 10000.5}, "config.json", "m")
    workload = Workload(model=model, seq_len=8192, global_batch_size=8)
    with pytest.raises(InputError, match="whole numbers"):
        arguments(TrainingConfig(), workload, Stack())
