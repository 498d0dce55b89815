"""Junk: whatever a file holds, a reader returns an experiment or raises one sentence."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specs.errors import InputError
from specs.formats.cluster import read_cluster
from specs.formats.megatron import read_arguments
from specs.formats.primus import read_primus
from specs.formats.reader import read_experiment
from tests.specs.test_huggingface import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_70B, QWEN3_30B

MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=12),
    st.sampled_from(
        ["", "none", "null", "full", "block", "fp8", "${X}", "${X:1}", "Et*2|t,L", "1e3", "[0]*3"]
    ),
)
JUNK = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)

PRIMUS = {
    "modules": {
        "pre_trainer": {
            "framework": "megatron",
            "config": "pre_trainer.yaml",
            "model": "mixtral_8x22B_v0.1.yaml",
            "overrides": {
                "seq_length": 4096,
                "max_position_embeddings": 4096,
                "global_batch_size": 256,
                "micro_batch_size": 2,
                "tensor_model_parallel_size": 2,
                "pipeline_model_parallel_size": 4,
                "expert_model_parallel_size": 8,
                "expert_tensor_parallel_size": 1,
                "context_parallel_size": 1,
                "pipeline_model_parallel_layout": None,
                "num_virtual_stages_per_pipeline_rank": 2,
                "num_layers_per_virtual_pipeline_stage": None,
                "decoder_last_pipeline_num_layers": None,
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": 3,
                "recompute_layer_ids": None,
                "moe_layer_freq": 1,
                "num_layers": 56,
                "hidden_size": 6144,
                "num_experts": 8,
                "moe_router_topk": 2,
                "num_query_groups": 8,
                "group_query_attention": True,
                "multi_latent_attention": False,
                "kv_channels": 128,
                "mtp_num_layers": 0,
                "window_size": None,
                "window_attn_skip_freq": None,
                "fp8": "hybrid",
                "fp8_recipe": "tensorwise",
                "optimizer": "adam",
                "use_precision_aware_optimizer": True,
                "exp_avg_dtype": "bf16",
                "optimizer_cpu_offload": False,
                "optimizer_offload_fraction": 0.5,
                "enable_primus_turbo": True,
                "use_turbo_deepep": True,
                "turbo_sync_free_moe_stage": 1,
                "lora": {"enabled": True, "dim": 16, "target_modules": ["linear_qkv"]},
                "moe_expert_capacity_factor": None,
                "patch_primus_pipeline": False,
                "pp_algorithm": "zero-bubble",
            },
        }
    }
}
STUDY = {
    "model": "llama3.1-70b",
    "seq_len": 4096,
    "global_batch_size": 64,
    "cluster": {"gpu": "MI355X", "num_nodes": 2, "overrides": {"hbm_gib": 100}},
    "stack": {"framework": "Primus", "optimizer_bytes": 12},
    "baseline": {"tp": 2, "layout": "even", "overlap": "dp", "recompute_layer_ids": "none"},
    "axes": {"tp": [1, 2], "precision": "fp8"},
    "gpus": {},
    "trials": 3,
}
TORCHTITAN = {
    "modules": {
        "pre_trainer": {
            "framework": "torchtitan",
            "config": "pre_trainer.yaml",
            "model": "llama3.1_8B-fp8.yaml",
            "overrides": {
                "training": {"local_batch_size": 2, "seq_len": 4096, "global_batch_size": -1},
                "parallelism": {
                    "pipeline_parallel_degree": 2,
                    "pipeline_parallel_schedule": "Interleaved1F1B",
                    "data_parallel_shard_degree": -1,
                    "tensor_parallel_degree": 2,
                },
                "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"},
                "model": {"n_layers": 30, "converters": []},
                "quantize": {"linear": {"float8": {"recipe_name": None}}},
            },
        }
    }
}
TARGET = {
    "target_cluster": {"num_nodes": 2, "gpus_per_node": 8, "gpu_arch": "mi355x"},
    "optimization": {"hbm_capacity_gb": 288},
}
HARDWARE = {"hardware_config": {"node_bw": 448.0, "pod_bw": 50, "node_size": 8, "nics_per_node": 8}}


def _paths(content: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in nested mappings."""
    if not isinstance(content, dict):
        return [above]
    below = [path for key, value in content.items() for path in _paths(value, (*above, key))]
    return [above, *below] if above else below


@st.composite
def damaged(draw: st.DrawFn, content: dict[str, Any]) -> dict[str, Any]:
    """The content with one to three values replaced by junk, or a key added."""
    content = copy.deepcopy(content)
    for path in draw(st.lists(st.sampled_from(_paths(content)), min_size=1, max_size=3)):
        target = content
        for key in path[:-1]:
            if not isinstance(target, dict):
                break
            target = target.get(key, {})
        if isinstance(target, dict):
            key = draw(st.sampled_from((path[-1], path[-1], path[-1], "extends", "unknown")))
            target[key] = draw(JUNK)
    return content


def _reads_or_says_why(path: Path) -> None:
    for read in (read_experiment, lambda p: read_cluster(str(p))):
        with suppress(InputError):
            read(path)


@MANY
@given(data=st.data(), content=st.sampled_from([PRIMUS, PRIMUS, STUDY, STUDY, TARGET, HARDWARE]))
def test_damaged_yaml(
    data: st.DataObject, content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("junk") / "mi355x.yaml"
    path.write_text(yaml.safe_dump(data.draw(damaged(content)), allow_unicode=True), "utf-8")
    _reads_or_says_why(path)


@MANY
@given(content=damaged(TORCHTITAN))
def test_damaged_torchtitan(
    content: dict[str, Any], shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("junk") / "titan.yaml"
    path.write_text(yaml.safe_dump(content, allow_unicode=True), "utf-8")
    with suppress(InputError):
        read_primus(path, {"PRIMUS_PATH": str(shared / "primus")})


@MANY
@given(
    data=st.data(),
    content=st.sampled_from([LLAMA_70B, DEEPSEEK_V3, GPT_OSS_20B, QWEN3_30B]),
)
def test_damaged_model_configs(
    data: st.DataObject, content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("junk") / "config.json"
    path.write_text(json.dumps(data.draw(damaged(content))))
    _reads_or_says_why(path)


@MANY
@given(text=st.text(max_size=60) | st.binary(max_size=60), ending=st.sampled_from(["yaml", "json"]))
def test_any_bytes(
    text: str | bytes, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("junk") / f"x.{ending}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    _reads_or_says_why(path)


@MANY
@given(text=st.text(max_size=40))
def test_any_name(text: str) -> None:
    for read in (read_cluster, read_arguments):
        with suppress(InputError):
            read(text)
