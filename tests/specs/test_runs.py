"""The measured-runs format: defaults, refusals, units and what words say."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specs import catalog
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    TrainingKind,
)
from specs.errors import InputError
from specs.models_json import models_json
from specs.run_rows import model_flops_per_token, publisher_of
from specs.run_words import NATURAL_IMBALANCE
from specs.runs import comparison_sets, folds, read_runs, table_of
from specs.stack import Framework

DENSE = {
    "run_id": "a", "source": "owner/repo docs/x.md, 1", "gpu": "H100-SXM", "gpus_per_node": "8",
    "num_gpus": "64", "framework": "NeMo", "model": "llama3-70b", "precision": "bf16",
    "seq_len": "8192", "gbs": "128", "mbs": "1", "tp": "4", "pp": "4", "dp": "4",
    "recompute": "none", "tokens_per_s_per_gpu": "800",
}  # fmt: skip


MOE = {"model": "mixtral-8x7b", "tp": "1", "pp": "1", "dp": ""}


def read(*rows: dict[str, str]) -> Any:
    """A table of rows, each DENSE with changes."""
    return table_of([DENSE | row for row in rows], catalog.model, catalog.gpu)


def test_defaults_are_those_of_the_format() -> None:
    table = read({})
    config = table.config.config(0)
    assert (config.cp, config.ep, config.vpp, config.etp) == (1, 1, 1, 1)
    assert config.sharding.label == "none"
    assert table.defaults["etp"] == table.defaults["cp"] == table.defaults["overlap"] == 1
    assert "overlap" not in read({"overlap": "dp"}).defaults
    sixteen_bit = read({"precision": ""})
    assert sixteen_bit.config.config(0).precision is Precision.BF16


@pytest.mark.parametrize("change", [{}, {"tokens_per_s_per_gpu": "900", "tp": "2", "dp": "8"}])
def test_a_run_is_in_a_table_of_results_once(change: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [DENSE | {"gpu": "none"}, DENSE, DENSE | {"run_id": "b"}, DENSE | change, DENSE | change]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(DENSE))
        writer.writeheader()
        writer.writerows(rows)
    table = read_runs(path)
    assert list(table.row) == [1, 2], "a row that could not be used is no copy"
    assert [refusal.row for refusal in table.refused] == [0, 3, 4]
    assert "run_id a is there already, in row 2" in table.refused[1].reason
    assert list(read_runs(path, with_results=False).row) == [1, 2, 3, 4]


def test_data_parallel_follows_from_the_gpu_count() -> None:
    assert read({"dp": ""}).config.data_parallel(64)[0] == 4
    assert read({"num_gpus": "", "dp": "4"}).clusters[0].num_gpus == 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": ""}, "model is missing"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"gpu": "no-such-gpu"}, "no-such-gpu"),
        ({"seq_len": ""}, "seq_len is missing"),
        ({"gbs": "", "mbs": ""}, "gbs"),
        ({"gbs": "10000000000"}, "from 1 to 2,147,483,647"),
        ({"sequence_parallel": "maybe"}, "use 1 or 0"),
        ({"tp": "", "dp": ""}, "tp is missing"),
        ({"tp": "five"}, "tp"),
        ({"tp": "-1"}, "tp"),
        ({"num_gpus": "63"}, "num_gpus 63"),
        ({"dp": "8"}, "dp 8 contradicts num_gpus 64"),
        ({"pp": "500", "num_gpus": "2000", "dp": "1"}, "more than the 80 layers"),
        ({"vpp": "21"}, "pp*vpp 84 is more than the 80 layers"),
        ({"precision": "int1"}, "int1"),
        ({"precision": "nvfp4"}, "H100-SXM does not run nvfp4; it runs bf16"),
        ({"precision": "mxfp8"}, "H100-SXM does not run mxfp8"),
        ({"precision": "mxfp8", "gpu": "MI300X"}, "MI300X does not run mxfp8"),
        ({"precision": "nvfp4", "gpu": "MI355X"}, "MI355X does not run nvfp4"),
        ({"precision": "bf16", "gpu": "V100-32GB"}, "V100-32GB does not run bf16; it runs fp16"),
        ({"tp": "3", "num_gpus": "48"}, "64 attention heads do not divide by tp 3"),
        ({**MOE, "ep": "16"}, "8 experts do not divide by ep 16"),
        ({**MOE, "ep": "3", "num_gpus": "192", "gbs": "192"}, "8 experts do not divide by ep 3"),
        ({"gbs": "63"}, "gbs 63 is not a multiple of mbs*dp 4 (1*4)"),
        ({"gbs": "2"}, "gbs 2 is not a multiple of mbs*dp 4 (1*4)"),
        ({"mbs": "3"}, "gbs 128 is not a multiple of mbs*dp 12 (3*4)"),
        ({"gbs": "63", "peak_mem_gb": "60"}, "gbs 63 is not a multiple"),
        ({"schedule": "zigzag"}, "zigzag"),
        ({"layout": "Et|L"}, "layout"),
        ({"peak_mem_gb": "10", "memory_unit": "acres"}, "memory_unit"),
        ({"tokens_per_s_per_gpu": "fast"}, "tokens_per_s_per_gpu"),
        ({"tokens_per_s_per_gpu": "1e-320"}, "tokens_per_s_per_gpu is '1e-320', which nothing"),
        ({"step_time_s": "1e-320"}, "step_time_s is '1e-320', which nothing measures"),
        ({"tflops_per_gpu": "1e308", "tokens_per_s_per_gpu": ""}, "tflops_per_gpu is '1e308'"),
        ({"peak_mem_gb": "1e308", "memory_unit": "GB"}, "peak_mem_gb is '1e308', which nothing"),
        (
            {"step_time_s": "100"},
            "tokens_per_s_per_gpu 800 and step_time_s 100 contradict each other: with gbs 128 and "
            "seq_len 8192 the step time means 163.8 tokens/s/GPU",
        ),
        ({"step_time_s": "18.4"}, "the step time means 890.4 tokens/s/GPU"),
    ],
)
def test_a_bad_row_is_refused_alone_with_its_reason(change: dict[str, str], words: str) -> None:
    table = read({"run_id": "good"}, {"run_id": "bad", **change})
    assert list(table.run_id) == ["good"]
    (refusal,) = table.refused
    assert refusal.run_id == "bad"
    assert refusal.row == 1
    assert words in refusal.reason


def test_a_batch_that_does_not_divide_leaves_what_does_not_depend_on_it() -> None:
    alone = {"gbs": "6", "tokens_per_s_per_gpu": ""}
    table = read({"run_id": "memory", "peak_mem_gb": "60", **alone},
                 {"run_id": "printed", "tflops_per_gpu": "400", **alone},
                 {"run_id": "nothing", **alone})  # fmt: skip
    assert list(table.run_id) == ["memory", "printed"]
    assert list(table.throughput_from) == ["", "tflops"]
    assert np.isnan(table.tokens_per_s_per_gpu[0])
    assert all("dp" in facts.split(", ") for facts in table.unstated)


def test_sixteen_bits_are_those_of_the_gpu() -> None:
    table = read({"precision": "", "gpu": "V100-32GB"}, {"run_id": "b", "precision": "16-bit"})
    assert table.config.config(0).precision is Precision.FP16
    assert table.config.config(1).precision is Precision.BF16


def test_throughput_comes_from_tokens_then_step_time_then_tflops() -> None:
    tokens = read({"step_time_s": "20", "tflops_per_gpu": "1"})
    assert (tokens.throughput_from[0], tokens.tokens_per_s_per_gpu[0]) == ("tokens", 800)
    step = read({"tokens_per_s_per_gpu": "", "step_time_s": "20.48", "tflops_per_gpu": "1"})
    assert step.throughput_from[0] == "step"
    assert step.tokens_per_s_per_gpu[0] == pytest.approx(128 * 8192 / 20.48 / 64)
    tflops = read({"tokens_per_s_per_gpu": "", "tflops_per_gpu": "400"})
    flops = model_flops_per_token(catalog.model("llama3-70b"), 8192, causal=False)
    assert tflops.throughput_from[0] == "tflops"
    assert tflops.tokens_per_s_per_gpu[0] == pytest.approx(400e12 / flops)


def test_a_step_time_says_nothing_of_tokens_where_the_batch_is_assumed() -> None:
    assumed = read({"gbs": "", "pp": "1", "dp": "16", "step_time_s": "100"})
    assert assumed.throughput_from.tolist() == ["tokens"]


def test_memory_units_become_gib() -> None:
    table = read(
        {"peak_mem_gb": "64", "memory_unit": "GiB", "memory_counter": "reserved"},
        {"peak_mem_gb": "64", "memory_unit": "GB", "memory_counter": "device"},
    )
    assert table.peak_memory_gib == pytest.approx([64.0, 64e9 / 2**30])
    assert list(table.memory_counter) == ["reserved", "device"]


@pytest.mark.parametrize(
    ("label", "run_id", "schedule", "vpp"),
    [
        ("zb", "x-zb-1p", Schedule.ZB_H1, 1),
        ("zb", "x-zb-2p", Schedule.ZB_H2, 1),
        ("zb-v", "x", Schedule.ZBV, 2),
        ("zbv", "x", Schedule.ZBV, 2),
        ("v-half", "x", Schedule.V_HALF, 2),
        ("v-min", "x", Schedule.V_MIN, 2),
        ("1f1b", "x", Schedule.ONE_F_ONE_B, 1),
        ("Interleaved1F1B", "x", Schedule.INTERLEAVED, 10),
        ("ZBVZeroBubble", "x", Schedule.ZBV, 2),
        ("", "x", Schedule.ONE_F_ONE_B, 1),
    ],
)
def test_schedule_labels(label: str, run_id: str, schedule: Schedule, vpp: int) -> None:
    config = read({"schedule": label, "run_id": run_id}).config.config(0)
    assert (config.schedule, config.vpp) == (schedule, vpp)


@pytest.mark.parametrize(("pp", "chunks"), [("4", 10), ("40", 2), ("80", 1)])
def test_interleaved_without_chunks_has_about_two_layers_each(pp: str, chunks: int) -> None:
    sizes = {"pp": pp, "tp": "1", "num_gpus": "80", "dp": "", "gbs": "160"}
    config = read({"schedule": "interleaved", **sizes})
    assert config.config.vpp.tolist() == [chunks], "llama3.1-70b has 80 layers"


def test_virtual_stages_without_a_label_are_interleaved() -> None:
    assert read({"vpp": "5"}).config.config(0).schedule is Schedule.INTERLEAVED


@pytest.mark.parametrize(
    ("version", "gpu", "model", "fused"),
    [
        ("25.05", "GB200", "deepseek-v3", False),
        ("25.09", "GB200", "deepseek-v3", True),
        ("25.05", "H100-SXM", "deepseek-v3", True),
        ("25.05", "GB200", "mixtral-8x7b", True),
        ("", "GB200", "deepseek-v3", True),
    ],
)
def test_latent_attention_is_not_fused_in_early_releases_on_blackwell(
    version: str, gpu: str, model: str, fused: bool
) -> None:
    row = {"framework": "NeMo", "framework_version": version, "gpu": gpu, "model": model}
    assert read(row).stacks[0].flash_attention == fused


@pytest.mark.parametrize(
    ("framework", "model", "on"),
    [
        ("Megatron-LM", "llama3.1-70b", False),
        ("Megatron-LM", "mixtral-8x7b", True),
        ("TorchTitan", "llama3.1-70b", True),
    ],
)
def test_sequence_parallelism_that_is_not_stated(framework: str, model: str, on: bool) -> None:
    row = {"framework": framework, "model": model, "sequence_parallel": ""}
    assert read(row).config.sequence_parallel.tolist() == [on]


def test_recompute_that_is_not_stated_is_unknown_or_the_default_of_the_framework() -> None:
    unknown = read({"recompute": ""})
    assert unknown.recompute_unknown[0]
    for framework in ("MaxText", "HF Trainer", "LlamaFactory (DeepSpeed)"):
        full = read({"recompute": "", "framework": framework})
        assert not full.recompute_unknown[0]
        assert full.config.config(0).recompute is Recompute.FULL
    some = read({"recompute": "full", "recompute_layers": "2"}).config.config(0)
    assert (some.recompute_method, some.recompute_layers) == (RecomputeMethod.BLOCK, 2)


def test_words_about_the_run_are_read() -> None:
    table = read(
        {"run_id": "x-70b-lora"},
        {"run_id": "y-sft"},
        {"run_id": "z-dense-cf1.25-pdbs4"},
        {"notes": "capacity-factor 2 token dropping; cuda_graph_impl=full_iteration"},
    )
    assert [w.routing_imbalance for w in table.workloads] == [1.0] * 4
    assert read({"notes": "dropless; REAL C4 data (routing skew)"}).workloads[
        0
    ].routing_imbalance == pytest.approx(NATURAL_IMBALANCE)
    kinds = [workload.kind for workload in table.workloads]
    assert kinds[:3] == [TrainingKind.LORA, TrainingKind.FINETUNE, TrainingKind.PRETRAIN]
    assert [w.capacity_factor for w in table.workloads] == [0.0, 0.0, 1.25, 2.0]
    assert [stack.cuda_graphs for stack in table.stacks] == [False, False, False, True]
    assert [stack.full_iteration_graphs for stack in table.stacks] == [False, False, False, True]


@pytest.mark.parametrize(
    ("notes", "overlap"),
    [
        ("overlap-grad-reduce, overlap-param-gather, tp-comm-overlap on", Overlap.DP | Overlap.TP),
        ("float8 tensorwise; asyncTP", Overlap.TP),
        ("float8 tensorwise; vanillaTP", Overlap.NONE),
        ("activation offloading required, A2A overlap", Overlap.EP),
        ("moe_a2a_overlap=True", Overlap.EP),
        ("no EP overlap; moe_a2a_overlap=False; tp_comm_overlap=False", Overlap.NONE),
    ],
)
def test_what_a_run_says_to_overlap_does(notes: str, overlap: Overlap) -> None:
    row = read({"notes": notes, "framework": "Megatron-LM", "sharding": "none"})
    assert Overlap(int(row.config.overlap[0])) == overlap


def test_an_exchange_that_is_called_naive_goes_peer_by_peer() -> None:
    table = read(
        {"notes": "dropless; naive one-shot ragged a2a"},
        {"notes": "one-shot all-to-all"},
        {"notes": "naive data loader; alltoall dispatcher"},
        {"notes": "RCCL ragged_all_to_all"},
    )
    assert [stack.one_peer_exchange for stack in table.stacks] == [True, True, False, False]


def test_a_dispatcher_that_is_not_stated_is_that_of_the_recipes() -> None:
    bridge = {
        "framework": "Megatron-Bridge", "model": "qwen3-30b-a3b", "gpu": "B200", "ep": "8",
        "tp": "1", "pp": "1", "dp": "", "etp": "1",
    }  # fmt: skip
    table = read(
        bridge | {"framework_version": "25.11"},
        bridge | {"framework_version": "26.02.01"},
        bridge | {"framework_version": "25.11", "gpu": "GB200", "gpus_per_node": "4"},
        bridge | {"framework_version": "26.04", "gpu": "H100-SXM"},
        bridge | {"framework": "Megatron-LM", "framework_version": "core 0.16"},
        bridge | {"framework_version": "26.02", "moe_dispatcher": "alltoall"},
    )
    plain, fused = MoeDispatcher.ALLTOALL, MoeDispatcher.HYBRIDEP
    assert table.config.moe_dispatcher.tolist() == [plain, fused, fused, plain, plain, plain]


def test_recipes_of_25_09_capture_what_blackwell_drops_and_hide_what_hopper_does_not() -> None:
    bridge = {
        "framework": "Megatron-Bridge", "model": "qwen3-30b-a3b", "gpu": "B200", "ep": "8",
        "tp": "1", "pp": "1", "dp": "", "etp": "1", "framework_version": "25.09",
    }  # fmt: skip
    drops = {"notes": "(tokendrop)"}
    table = read(
        bridge | drops,
        bridge,
        bridge | drops | {"framework_version": "25.11"},
        bridge | drops | {"gpu": "H100-SXM"},
        bridge | {"gpu": "H100-SXM"},
        bridge | {"gpu": "H100-SXM", "framework_version": "25.11"},
    )
    assert [s.cuda_graphs for s in table.stacks] == [True, False, False, False, False, False]
    hidden = (table.config.overlap & int(Overlap.EP)) > 0
    assert hidden.tolist() == [False, False, False, False, True, False]
    fused = table.config.moe_dispatcher == int(MoeDispatcher.DEEPEP)
    assert fused.tolist() == hidden.tolist()


def test_fsdp_that_keeps_parameters_gathered_overlaps_as_well() -> None:
    table = read(
        {"framework": "llm-foundry (PyTorch FSDP)", "sharding": "zero2"},
        {"framework": "DeepSpeed", "sharding": "zero2"},
    )
    assert table.config.overlap.tolist() == [Overlap.DP, Overlap.NONE]


@pytest.mark.parametrize(
    ("notes", "graphs"),
    [
        ("cuda_graph_impl=local", True),
        ("cuda_graph_impl=none", False),
        ("CUDA graphs on", True),
        ("CUDA graphs attn+moe_router", True),
        ("recipe TE CUDA graph scopes moe_router", True),
        ("CUDA graphs once", False),
    ],
)
def test_graphs_are_read(notes: str, graphs: bool) -> None:
    assert read({"notes": notes}).stacks[0].cuda_graphs is graphs


def test_operands_scaled_by_row_are_finer_than_by_tensor() -> None:
    table = read(
        {"precision": "fp8", "notes": "float8 rowwise"},
        {"precision": "fp8", "notes": "float8 tensorwise"},
        {"precision": "bf16", "notes": "no rowwise scales"},
    )
    assert table.config.precision.tolist() == [Precision.FP8_SC, Precision.FP8, Precision.BF16]


def test_gathers_that_are_said_not_to_overlap_are_coarse() -> None:
    table = read(
        {"notes": "image-default XLA; total 236 GiB"},
        {"notes": "8 GiB combine thresholds: all-gathers not overlapped"},
        {"notes": "all-gather combine 1 GiB in env file"},
    )
    assert [stack.coarse_gathers for stack in table.stacks] == [True, True, False]


@pytest.mark.parametrize(
    ("row", "stage"),
    [
        ({"notes": "+DeepEP; +sync-free stage 1"}, 1),
        ({"notes": "sync-free MoE stage 2"}, 2),
        ({"notes": "sync-free MoE stage 2", "sync_free_stage": "3"}, 3),
        ({"notes": "ZeRO stage 1"}, 0),
    ],
)
def test_the_stage_of_sync_free_experts_is_read(row: dict[str, str], stage: int) -> None:
    assert read(row).config.config(0).sync_free_stage == stage


def test_a_dispatcher_between_ranks_implies_expert_parallelism() -> None:
    row = {
        "framework": "NeMo-AutoModel", "model": "gpt-oss-20b", "num_gpus": "8",
        "tp": "1", "pp": "1", "dp": "", "sharding": "fsdp",
    }  # fmt: skip
    table = read(
        row | {"moe_dispatcher": "deepep"},
        row | {"moe_dispatcher": "deepep", "ep": "4"},
        row | {"moe_dispatcher": "alltoall"},
        row | {"moe_dispatcher": "deepep", "model": "llama3-8b"},
        row | {"moe_dispatcher": "deepep", "model": "gpt-oss-120b", "num_gpus": "64"},
        row | {"moe_dispatcher": "deepep", "num_gpus": "64", "framework": "Primus-Megatron"},
    )
    assert table.config.ep.tolist() == [8, 4, 1, 1, 64, 8]


def test_megascale_trains_parallel_blocks_and_hides_tensor_parallelism() -> None:
    run = {"framework": "MegaScale", "gpu": "A100-80GB", "model": "gpt3-175b"}
    table = read(run, run | {"framework": "Megatron-LM"})
    assert [w.model.parallel_block for w in table.workloads] == [True, False]
    assert table.config.overlap.tolist() == [Overlap.DP | Overlap.TP, Overlap.NONE]


def test_the_zero_bubble_fork_has_no_flash_attention() -> None:
    forks = read(
        {"framework": "Megatron-LM (sail-sg fork)"},
        {"framework": "Megatron-LM (sail-sg VocabularyParallelism)"},
        {"framework": "Megatron-LM", "source_date": "2021-04"},
        {"framework": "Megatron-LM", "source_date": "2025-04"},
    )
    assert [s.flash_attention for s in forks.stacks] == [False, True, False, True]
    assert {s.framework for s in forks.stacks} == {Framework.MEGATRON}


@pytest.mark.parametrize(
    ("notes", "flash", "compiled", "offloaded"),
    [
        ("attention-backend=unfused; deterministic-mode=True", False, False, 0.0),
        ("transformer-impl=local", False, False, 0.0),
        ("attention-backend=flash", True, False, 0.0),
        ("torch.compile; selective op AC", True, True, 0.0),
        ("SimpleFSDP (compiler); batch 1", True, True, 0.0),
        ("no compile; recompiled twice", True, False, 0.0),
        ("activation checkpoints offloaded to CPU; chunked loss", True, False, 1.0),
        ("OOM at the 141GB card with no activation offload", True, False, 0.0),
    ],
)
def test_words_say_what_is_kept_of_a_layer(
    notes: str, flash: bool, compiled: bool, offloaded: float
) -> None:
    stack = read({"framework": "Megatron-LM", "source_date": "2026-01", "notes": notes}).stacks[0]
    found = (stack.flash_attention, stack.compiled, stack.checkpoint_offload_fraction)
    assert found == (flash, compiled, offloaded)


@pytest.mark.parametrize(
    ("date", "precision", "notes", "layers", "loss"),
    [
        ("2024-06", "bf16", "torch.compile", True, False),
        ("2024-11-25", "fp8", "float8 dynamic scaling", True, True),
        ("2024-12", "bf16", "torch.compile", True, False),
        ("2025-06", "bf16", "torch.compile", True, True),
        ("", "bf16", "compiled", True, True),
        ("2026-03", "bf16", "graph-pass selective AC", True, False),
        ("2026-03", "bf16", "eager", False, False),
    ],
)
def test_torchtitan_compiles_the_loss_in_some_of_its_times(
    date: str, precision: str, notes: str, layers: bool, loss: bool
) -> None:
    row = {"framework": "TorchTitan", "source_date": date, "precision": precision, "notes": notes}
    stack = read(row).stacks[0]
    assert (stack.compiled, stack.compiled_loss) == (layers, loss)


def test_fine_tuning_routes_real_data_unless_it_says_otherwise() -> None:
    experts = {"model": "qwen3-30b-a3b", "ep": "8", "tp": "1", "dp": "16"}
    table = read(
        experts | {"notes": "LoRA r16"},
        experts | {"notes": "LoRA r16; forced balanced routing"},
        experts | {"notes": "LoRA r16; force_load_balancing=true (router learning)"},
        experts | {"framework": "Megatron-SWIFT"},
        experts | {"framework": "Megatron-LM"},
        {"notes": "LoRA r16"},
    )
    found = [w.routing_imbalance for w in table.workloads]
    assert found == pytest.approx([NATURAL_IMBALANCE, 1.0, 1.0, NATURAL_IMBALANCE, 1.0, 1.0])


def test_recomputed_modules_are_read_from_a_list() -> None:
    notes = "recompute-modules=[layernorm mla_up_proj mlp moe_act]; mtp-num-layers=1"
    modules = RecomputeModules(
        int(read({"recompute": "selective", "notes": notes}).config.recompute_modules[0])
    )
    assert modules == (
        RecomputeModules.LAYERNORM
        | RecomputeModules.MLA_UP_PROJ
        | RecomputeModules.MLP
        | RecomputeModules.MOE_ACT
    )


def test_batch_that_is_not_stated_says_nothing_of_pipeline_throughput() -> None:
    piped, single = read({"gbs": ""}, {"gbs": "", "pp": "1", "dp": "16"}).throughput_from
    assert (piped, single) == ("", "tokens")


@pytest.mark.parametrize(
    ("source", "publisher"),
    [
        ("NVIDIA-NeMo/Megatron-Bridge docs/a.md, 26.06", "NVIDIA-NeMo/Megatron-Bridge"),
        ("mlcommons/training_results_v5.0 AMD/results/x", "mlcommons/training_results_v5.0"),
        ("Qi et al. 2024 Zero Bubble (arXiv 2401.10241), Table 4", "Qi et al. 2024 Zero Bubble"),
        ("", "unknown"),
    ],
)
def test_publisher_is_the_same_for_all_releases(source: str, publisher: str) -> None:
    assert publisher_of(source) == publisher


def test_folds_and_comparison_sets() -> None:
    table = read(*({"mbs": str(m), "run_id": str(m)} for m in (1, 2, 4, 8)), {"gbs": "64"})
    assert [list(rows) for rows in folds(table).values()] == [[0, 1, 2, 3, 4]]
    assert [list(rows) for rows in comparison_sets(table).values()] == [[0, 1, 2, 3]]


def test_a_file_that_is_no_table_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    with pytest.raises(InputError, match="cannot read"):
        read_runs(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="no table of runs"):
        read_runs(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError):
        read_runs(path)


def test_a_table_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specs.runs.MAX_ROWS", 2)
    path = tmp_path / "x.csv"
    line = ",".join(f'"{value}"' for value in DENSE.values()) + "\n"
    for rows in (2, 3):
        path.write_text(",".join(DENSE) + "\n" + rows * line)
        if rows == 2:
            assert len(read_runs(path)) + len(read_runs(path).refused) == 2
            continue
        with pytest.raises(InputError, match="more than 2 rows; split it"):
            read_runs(path)


def test_results_are_not_read_where_a_table_is_only_projected(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    row = DENSE | {"tokens_per_s_per_gpu": "secret", "peak_mem_gb": "??"}
    path.write_text(",".join(row) + "\n" + ",".join(f'"{v}"' for v in row.values()) + "\n")
    assert len(read_runs(path)) == 0
    table = read_runs(path, with_results=False)
    assert len(table) == 1
    assert not table.throughput_from[0]


def test_public_runs_are_read_in_full(shared: Path) -> None:
    measured = shared / "measured"
    find = models_json(measured / "models.json").find
    table = read_runs(measured / "runs.csv", find)
    assert len(table) + len(table.refused) == 1312
    assert len(table) >= 1230
    assert (table.throughput_from != "").sum() >= 1170
    assert all(refusal.reason for refusal in table.refused)
