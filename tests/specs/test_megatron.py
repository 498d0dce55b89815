"""Megatron-LM arguments: what is written reads back as the same job."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from specs import catalog
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
    TrainingKind,
)
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.layer_pattern import layer_flags
from specs.formats.megatron import arguments, environment, megatron_arguments, read_arguments
from specs.formats.megatron.axes import read_config
from specs.formats.megatron.model import read_model, write_model
from specs.formats.megatron.stack import read_stack
from specs.formats.megatron.values import Values
from specs.stack import Framework, Stack
from specs.workload import Workload
from tests.specs.configs import MODELS, legal_configs, workload

SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SIZES = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "swiglu": True,
    "bf16": True,
}
DENSE = read_model(Values(SIZES, "x"), "dense")
MOE = read_model(Values({**SIZES, "num_experts": 8, "moe_router_topk": 2}, "x"), "moe")


@SLOW
@given(st.data(), st.sampled_from(MODELS))
def test_arguments_read_back_as_the_same_config(data: st.DataObject, name: str) -> None:
    model, stack = catalog.model(name), Stack()
    config = data.draw(legal_configs(model, stack))
    assume(config.precision is not Precision.MXFP4)
    flags = shlex.join(arguments(config, workload(model), stack))
    read, job, read_stack_ = read_arguments(flags, name)
    assert read == config
    assert job.model.total_parameters() == model.total_parameters()
    assert (job.seq_len, job.global_batch_size) == (8192, 4096)
    assert read_stack_.optimizer_bytes == (stack.optimizer_bytes if _mixed(config) else _of(config))


def _mixed(config: TrainingConfig) -> bool:
    return config.precision not in (Precision.FP16, Precision.FP32)


def _of(config: TrainingConfig) -> float:
    return 16.0 if config.precision is Precision.FP16 else 8.0


@pytest.mark.parametrize("name", [n for n in catalog.model_names() if "ci-" not in n])
def test_every_model_of_the_catalog_is_written(name: str) -> None:
    model = catalog.model(name)
    try:
        written = write_model(model)
    except InputError:
        assert model.norms_per_layer != 2 or model.embedding_norm
        return
    written |= {"max_position_embeddings": model.learned_positions or None}
    read = read_model(Values(written, "x"), name)
    extra = model.router_parameters() - model.num_experts * model.hidden_size
    difference = model.total_parameters() - read.total_parameters()
    assert difference in (0, extra * model.num_moe_layers), name
    assert read.layer_is_moe().tolist() == model.layer_is_moe().tolist()


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"schedule": Schedule.ZB_H1, "pp": 4}, "zb-h1"),
        ({"sync_free_stage": 1}, "sync_free_stage"),
        ({"sharding": Sharding.HSDP, "replicate": 2}, "HSDP"),
        ({"precision": Precision.MXFP4}, "mxfp4"),
        ({"recompute": Recompute.FULL, "recompute_layer_ids": (1,)}, "recompute_layer_ids"),
        ({"recompute": Recompute.FULL}, "method"),
        ({"recompute": Recompute.SELECTIVE}, "recompute_modules"),
        ({"layout": "Et*16|t*16,L", "pp": 2, "vpp": 2}, "layout"),
    ],
)
def test_what_megatron_lacks_is_refused(config: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        arguments(TrainingConfig(**config), workload(MOE), Stack())


def test_lora_has_no_megatron_arguments() -> None:
    job = workload(DENSE).model_copy(update={"kind": TrainingKind.LORA})
    with pytest.raises(InputError, match="LoRA"):
        megatron_arguments(TrainingConfig(), job, Stack())


def _read(model_kind: str = "dense", **arguments_: Any) -> TrainingConfig:
    model = MOE if model_kind == "moe" else DENSE
    return read_config(Values({"bf16": True, **arguments_}, "x.yaml"), model)


@pytest.mark.parametrize("name", ["llama3.1-8b", "mixtral-8x7b"])
def test_only_a_model_with_experts_gets_a_grouped_gemm(name: str) -> None:
    job = Workload(model=catalog.model(name), seq_len=4096, global_batch_size=64)
    flags = arguments(TrainingConfig(), job, Stack(framework=Framework.MEGATRON))
    assert ("--moe-grouped-gemm" in flags) is job.model.is_moe


def test_null_expert_tensor_parallel_size_is_tp() -> None:
    assert _read("moe", tensor_model_parallel_size=4).etp == 4
    assert _read("moe", tensor_model_parallel_size=4, expert_tensor_parallel_size=1).etp == 1


def test_sequence_parallelism_is_off_without_tp() -> None:
    assert not _read(sequence_parallel=True).sequence_parallel
    assert _read(sequence_parallel=1, tensor_model_parallel_size=2).sequence_parallel


@pytest.mark.parametrize(
    ("arguments_", "vpp"),
    [
        ({"num_virtual_stages_per_pipeline_rank": 4}, 4),
        ({"num_layers_per_virtual_pipeline_stage": 2}, 8),
        ({"virtual_pipeline_model_parallel_size": 4}, 1),
        ({"pipeline_model_parallel_layout": "Et*8|t*8|t*8|t*8,L"}, 2),
        ({"pipeline_model_parallel_layout": "E|(t*16|)*2L"}, 2),
    ],
)
def test_model_chunks_come_from_one_of_three_arguments(
    arguments_: dict[str, Any], vpp: int
) -> None:
    config = _read(pipeline_model_parallel_size=2, **arguments_)
    assert config.vpp == vpp
    expected = Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B
    assert config.schedule is expected


def test_an_inert_vpp_argument_is_noted() -> None:
    values = Values(
        {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 4}, "x"
    )
    read_config(values, DENSE)
    assert any("no effect" in note for note in values.notes)


@pytest.mark.parametrize(
    ("arguments_", "schedule"),
    [
        ({"enable_zero_bubble": True}, Schedule.ONE_F_ONE_B),
        ({"patch_zero_bubble": True}, Schedule.ONE_F_ONE_B),
        (
            {
                "patch_zero_bubble": True,
                "enable_zero_bubble": True,
                "zero_bubble_max_pending_backward": 4,
            },
            Schedule.ZB_H1,
        ),
        (
            {
                "patch_zero_bubble": True,
                "enable_zero_bubble": True,
                "zero_bubble_max_pending_backward": 8,
            },
            Schedule.ZB_H2,
        ),
        (
            {
                "patch_zero_bubble": True,
                "enable_zero_bubble": True,
                "zero_bubble_v_schedule": True,
                "zero_bubble_v_schedule_mem_setup": "min",
            },
            Schedule.V_MIN,
        ),
        ({"patch_primus_pipeline": True, "pp_algorithm": "zbv-formatted"}, Schedule.ZBV),
        ({"pp_algorithm": "zbv-formatted"}, Schedule.ONE_F_ONE_B),
    ],
)
def test_schedules_run_only_under_their_patch(
    arguments_: dict[str, Any], schedule: Schedule
) -> None:
    config = _read(pipeline_model_parallel_size=4, **arguments_)
    assert config.schedule is schedule
    assert config.vpp == (2 if schedule.is_v_shaped else 1)


def test_full_recompute_over_no_layers_is_none() -> None:
    config = _read(recompute_granularity="full", recompute_method="block", recompute_num_layers=0)
    assert config.recompute is Recompute.NONE
    full = _read(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    assert full.recompute_method is RecomputeMethod.UNIFORM
    selective = _read(recompute_granularity="selective")
    assert selective.recompute_modules is RecomputeModules.CORE_ATTN
    ids = _read(recompute_granularity="full", recompute_layer_ids="3,0,1")
    assert ids.recompute_layer_ids == (0, 1, 3)


def test_turbo_switches_need_the_master_switch() -> None:
    inert = {"use_turbo_deepep": True, "turbo_sync_free_moe_stage": 2}
    base = {"moe_token_dispatcher_type": "alltoall", "expert_model_parallel_size": 8}
    config = _read("moe", **base, **inert)
    assert (config.moe_dispatcher, config.sync_free_stage) == (MoeDispatcher.ALLTOALL, 0)
    config = _read("moe", **base, **inert, enable_primus_turbo=True)
    assert (config.moe_dispatcher, config.sync_free_stage) == (MoeDispatcher.DEEPEP, 2)
    single = _read("moe", moe_token_dispatcher_type="alltoall", use_turbo_deepep=True,
                   enable_primus_turbo=True)  # fmt: skip
    assert single.moe_dispatcher is MoeDispatcher.ALLTOALL


def test_overlap_bundle() -> None:
    on = _read(overlap_grad_reduce=True, overlap_param_gather=True, tp_comm_overlap=True)
    assert on.overlap == Overlap.DP | Overlap.TP
    assert _read(overlap_param_gather=True).overlap is Overlap.NONE


@pytest.mark.parametrize(
    ("arguments_", "word"),
    [
        ({"fp8": "hybrid", "fp4": "e2m1"}, "exclude"),
        ({"fp8": "e5m2"}, "fp8"),
        ({"fp8": "hybrid", "fp8_recipe": "custom"}, "fp8_recipe"),
        ({"patch_primus_pipeline": True, "patch_zero_bubble": True}, "exclude"),
        ({"recompute_granularity": "full"}, "recompute_method"),
        ({"recompute_granularity": "some"}, "recompute_granularity"),
        ({"recompute_granularity": "full", "recompute_layer_ids": [99]}, "99"),
        ({"recompute_granularity": "selective", "recompute_num_layers": 3}, "null"),
        ({"num_virtual_stages_per_pipeline_rank": 2}, "pipeline_model_parallel_size"),
        ({"use_torch_fsdp2": True, "use_distributed_optimizer": True}, "use_torch_fsdp2"),
        ({"expert_model_parallel_size": 2}, "no experts"),
        ({"tensor_model_parallel_size": -1}, "tensor_model_parallel_size"),
        ({"tensor_model_parallel_size": "two"}, "tensor_model_parallel_size"),
        ({"pipeline_model_parallel_layout": "Ex|L"}, "layout"),
        ({"context_parallel_size": 2, "cp_comm_type": "a2a+p2p"}, "cp_comm_type"),
        ({"sequence_parallel": "perhaps"}, "sequence_parallel"),
    ],
)
def test_contradictions_are_one_sentence(arguments_: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        _read(**arguments_)


@pytest.mark.parametrize(
    ("arguments_", "expected"),
    [
        ({}, (2, 4, 12)),
        ({"grad_reduce_in_bf16": True}, (2, 2, 12)),
        ({"optimizer": "sgd"}, (2, 4, 8)),
        (
            {
                "use_precision_aware_optimizer": True,
                "main_grads_dtype": "bf16",
                "exp_avg_dtype": "bf16",
                "exp_avg_sq_dtype": "bf16",
            },
            (2, 2, 6),
        ),
        (
            {
                "use_precision_aware_optimizer": True,
                "store_param_remainders": False,
                "exp_avg_dtype": "bf16",
                "exp_avg_sq_dtype": "bf16",
            },
            (2, 4, 8),
        ),
        ({"bf16": False, "fp16": True}, (2, 2, 16)),
        ({"bf16": False}, (4, 4, 8)),
    ],
)
def test_state_bytes(arguments_: dict[str, Any], expected: tuple[float, ...]) -> None:
    values = Values({"bf16": True, **arguments_}, "x")
    stack = read_stack(values, Framework.PRIMUS, "Primus", {})
    assert (stack.weight_bytes, stack.gradient_bytes, stack.optimizer_bytes) == expected


def test_moments_in_bf16_need_the_precision_aware_optimizer() -> None:
    with pytest.raises(InputError, match="use_precision_aware_optimizer"):
        read_stack(Values({"bf16": True, "exp_avg_dtype": "bf16"}, "x"), Framework.PRIMUS, "", {})
    with pytest.raises(InputError, match="optimizer"):
        read_stack(Values({"bf16": True, "optimizer": "muon"}, "x"), Framework.PRIMUS, "", {})


def test_environment_of_a_launch() -> None:
    stack = Stack(expandable_segments=True)
    config = TrainingConfig(tp=2, precision=Precision.MXFP8)
    assert environment(config, stack, amd=True) == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NVTE_ROCM_ENABLE_MXFP8": "1",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    fsdp = TrainingConfig(sharding=Sharding.FSDP)
    assert environment(fsdp, Stack(), amd=False) == {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}


@pytest.mark.parametrize("text", ["--tp 'unclosed", "stray --x 1", "--seq-length 4096"])
def test_bad_command_lines(text: str) -> None:
    with pytest.raises(InputError):
        read_arguments(text)


@pytest.mark.parametrize("frequency", [None, 2])
def test_layers_beyond_any_model_are_not_spelled_out(frequency: int | None) -> None:
    sizes = {**SIZES, "num_layers": 2**31, "num_experts": 8, "moe_router_topk": 2}
    values = sizes if frequency is None else {**sizes, "moe_layer_freq": frequency}
    with pytest.raises(InputError, match="more than 10,000"):
        read_model(Values(values, "x"), "moe")
    with pytest.raises(InputError, match="more than 10,000"):
        read_model(Values({"num_layers": 2**31}, "x"), "moe", catalog.model("mixtral-8x7b"))
    with pytest.raises(InputError, match="at most 4,096"):
        layer_flags(1, 2**31, "moe_layer_freq")
