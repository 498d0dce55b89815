"""Valid samples that damage starts from, made by our own writers where there is one."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specs import catalog
from specs.config import TrainingConfig

ROOT = Path(__file__).parents[2]
PRIMUS = ROOT.parent / "shared" / "primus"
COLLECTED = ROOT / "tests" / "collectors" / "samples"

HF = (
    {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
        "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "hidden_act": "silu",
    },
    {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "moe_layer_freq": 1,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
        "n_group": 8, "topk_group": 4, "hidden_act": "silu",
    },
    {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
        "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128,
        "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "sliding_window": None, "layer_types": ["full_attention"] * 48,
        "tie_word_embeddings": False, "hidden_act": "silu",
    },
)  # fmt: skip
RUN = {
    "run_id": "a", "source": "owner/repo docs/x.md, 1", "gpu": "H100-SXM", "gpus_per_node": "8",
    "num_gpus": "64", "framework": "NeMo", "model": "llama3-70b", "precision": "bf16",
    "seq_len": "8192", "gbs": "128", "mbs": "1", "tp": "4", "pp": "4", "dp": "4", "cp": "1",
    "ep": "1", "recompute": "none", "tokens_per_s_per_gpu": "800", "memory_gib": "70",
}  # fmt: skip
CLUSTERS = (
    {"gpu": "MI355X", "num_nodes": 2, "gpus_per_node": 8, "price_usd_per_gpu_hour": 2.0,
     "overrides": {"hbm_gib": 100, "peak_flops": {"bf16": 1e15}, "link_topology": "mesh"},
     "scaled": {"nic_bytes_per_s": 2}},
    {"target_cluster": {"name": "x", "num_nodes": 2, "gpus_per_node": 8, "gpu_arch": "mi355x"},
     "optimization": {"hbm_capacity_gb": 288}},
    {"hardware_config": {"node_bw": 448.0, "pod_bw": 50, "node_size": 8, "nics_per_node": 8,
                         "node_lat": 0.5, "pod_lat": 2, "node_topology": "mesh"}},
)  # fmt: skip
GPUS = {
    "sources": {"lab": "our lab, 2026-11-30"},
    "gpus": {
        "MI300X-slow-nic": {"extends": "MI300X", "nic_bytes_per_s": [25.0e9, "measured", "lab"]},
        "MI300X-small": {"extends": "MI300X", "hbm_gib": [96, "vendor", "lab"], "aliases": ["s"]},
    },
}
RESULT = {
    "schema_version": 1, "run": 0, "study": "x", "exit_code": 0, "out_of_memory": False,
    "step_time_s": 1.5, "tokens_per_s_per_gpu": 2000.0, "log": "run.0.log",
}  # fmt: skip
TORCHTITAN = {
    "modules": {
        "pre_trainer": {
            "framework": "torchtitan", "config": "pre_trainer.yaml",
            "model": "llama3.1_8B-fp8.yaml",
            "overrides": {
                "training": {"local_batch_size": 2, "seq_len": 4096, "global_batch_size": -1},
                "parallelism": {
                    "pipeline_parallel_degree": 2, "tensor_parallel_degree": 2,
                    "pipeline_parallel_schedule": "Interleaved1F1B",
                    "data_parallel_shard_degree": -1,
                },
                "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"},
                "model": {"n_layers": 30, "converters": []},
            },
        }
    }
}  # fmt: skip


def studies() -> list[bytes]:
    """The shipped studies, with what they extend."""
    from specs.formats.yaml_files import read_chain
    from studies.inputs import shipped_studies

    return [yaml.safe_dump(read_chain(path)).encode() for path in shipped_studies().values()]


def plans() -> list[bytes]:
    """The shipped plans."""
    from studies.plan.files import shipped_plans

    return [path.read_bytes() for path in shipped_plans().values()]


def gpus() -> list[bytes]:
    """GPUs of one's own."""
    return [yaml.safe_dump(GPUS).encode()]


def results() -> list[bytes]:
    """Result files of real runs: one that ended well, one out of memory, one that crashed."""
    nothing = {"step_time_s": None, "tokens_per_s_per_gpu": None, "exit_code": 1}
    runs = (RESULT, {**RESULT, **nothing, "out_of_memory": True}, {**RESULT, **nothing, "run": 3})
    return [json.dumps(run).encode() for run in runs]


def toolbox() -> list[bytes]:
    """The shipped toolbox studies; a model in a file beside them becomes a name."""
    from studies.toolbox.request import shipped_requests

    read = (yaml.safe_load(path.read_bytes()) for path in shipped_requests().values())
    return [
        yaml.safe_dump({**fields, "model": "Qwen/Qwen2.5-7B-Instruct"}).encode() for fields in read
    ]


def primus() -> list[bytes]:
    """Primus experiments: those that we would export, and one of torchtitan with a checkout."""
    from specs.formats.primus.writer import write_experiment
    from studies.inputs import resolve

    job = resolve("mixtral_8x22b_mi355x")
    configs = (job.baseline, job.baseline.changed(tp=2, mbs=1))
    written = [write_experiment(job.experiment, config) for config in configs]
    if PRIMUS.is_dir():
        os.environ["PRIMUS_PATH"] = str(PRIMUS)
        written.append(TORCHTITAN)
    return [yaml.safe_dump(content).encode() for content in written]


def models_json() -> list[bytes]:
    """Models as ``models.json`` holds them."""
    from specs.models_json import models_text

    names = ("llama3.1-8b", "mixtral-8x7b", "deepseek-v3")
    return [models_text([catalog.model(name) for name in names]).encode()]


def megatron() -> list[bytes]:
    """Megatron-LM command lines."""
    from specs.formats.megatron import arguments
    from specs.stack import Framework, Stack
    from specs.workload import Workload

    stack = Stack(framework=Framework.MEGATRON)
    jobs = (
        ("llama3.1-70b", TrainingConfig(tp=8, pp=4, sequence_parallel=True)),
        ("mixtral-8x7b", TrainingConfig(tp=2, pp=2, ep=4, etp=1, sequence_parallel=True)),
    )
    return [
        " ".join(
            arguments(
                config,
                Workload(model=catalog.model(model), seq_len=4096, global_batch_size=128),
                stack,
            )
        ).encode()
        for model, config in jobs
    ]


def runs() -> list[bytes]:
    """A table of measured runs."""
    other = {**RUN, "run_id": "b", "model": "mixtral-8x7b", "ep": "8", "tp": "1", "dp": "16"}
    lines = [",".join(RUN), *(",".join(r[k].replace(",", "") for k in RUN) for r in (RUN, other))]
    return ["\n".join(lines).encode()]


def logs() -> list[bytes]:
    """Logs of every format."""
    return [path.read_bytes() for path in sorted(COLLECTED.glob("*.log"))]


def smi_tables() -> list[bytes]:
    """Memory tables of nvidia-smi and rocm-smi."""
    names = ("nvidia_smi.txt", "nvidia_smi_query.csv", "rocm_smi_meminfo.txt")
    return [(COLLECTED / name).read_bytes() for name in names]


def traces() -> list[bytes]:
    """Profiler traces with a few dozen events."""
    shortened = []
    for path in sorted(COLLECTED.glob("trace_*.json")):
        content = json.loads(path.read_bytes())
        content["traceEvents"] = content["traceEvents"][:60]
        shortened.append(json.dumps(content).encode())
    return shortened


@cache
def calibration() -> list[bytes]:
    """A calibration from one run."""
    from specs.runs import table_of
    from surrogate.calibration_file import calibration_json
    from surrogate.learned import shipped

    table = table_of([dict(RUN)], catalog.model, catalog.gpu)
    return [json.dumps(calibration_json(shipped().calibrated(table).calibration)).encode()]


def learned() -> list[bytes]:
    """What was learned, with few constants and few facts of the residual."""
    from surrogate.learned import SHIPPED

    content = json.loads(SHIPPED.read_bytes())
    constants = content["constants"]
    constants["constants"] = dict(list(constants["constants"].items())[:6])
    _shorten(content["residual"], 4)
    return [json.dumps(content).encode()]


def _shorten(node: Any, most: int) -> None:
    """Cuts every list of a tree that has a row a run."""
    for key, value in node.items():
        if isinstance(value, list) and len(value) > 100:
            node[key] = value[:most]
        elif isinstance(value, dict):
            _shorten(value, most)


def constants() -> list[bytes]:
    """A constants file with few constants."""
    content = json.loads((ROOT / "surrogate/data/memory_constants.json").read_bytes())
    content["constants"] = dict(list(content["constants"].items())[:6])
    return [json.dumps(content).encode()]


def profiles() -> list[bytes]:
    """Lines of a node profile."""
    environment = {"schema_version": 1, "environment": {"gpu": "MI300X", "torch": "2.9"}}
    lines: list[dict[str, Any]] = [environment]
    from specs.profile_rows import KINDS, VARIANTS

    for kind, sizes in KINDS.items():
        for seconds in (0.001, 0.0011):
            lines.append(
                {"kind": kind, "variant": VARIANTS.get(kind, ("",))[0], "dtype": "bf16",
                 "sizes": dict.fromkeys(sizes, 8), "forward_s": seconds, "backward_s": 2 * seconds,
                 "spread": 0.01, "samples": 5, "peak_bytes": 100, "saved_bytes": 50}
            )  # fmt: skip
    return ["\n".join(map(json.dumps, lines)).encode() + b"\n"]


def recordings() -> list[bytes]:
    """Recordings of a language model."""
    from search.llm.recording import SCHEMA_VERSION

    lines = [
        {"schema_version": SCHEMA_VERSION, "kind": "study", "study": {"name": "x"}},
        {"schema_version": SCHEMA_VERSION, "kind": "call", "request_sha256": "0" * 64,
         "fields": {"hypotheses": []}, "seconds": 1.0},
    ]  # fmt: skip
    return ["\n".join(map(json.dumps, lines)).encode() + b"\n"]


def hf() -> list[bytes]:
    """Model configs of Hugging Face."""
    return [json.dumps(content).encode() for content in HF]


def clusters() -> list[bytes]:
    """Cluster YAML of all three kinds."""
    return [yaml.safe_dump(content).encode() for content in CLUSTERS]
