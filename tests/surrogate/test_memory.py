"""Peaks per stage: consistency of the two views, and what must never shrink or grow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X22B, gpu, prior_constants, study
from scipy.special import stdtr

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
from specs.config import ConfigTable, TrainingConfig
from specs.stack import Framework, Stack
from surrogate.activations import layer_bytes
from surrogate.memory import (
    CHUNK_ROWS,
    STUDENT_DEGREES,
    TWO_THIRDS,
    counter_reading,
    explain_gap,
    fit_probability,
    interval_half_width,
    memory,
    memory_by_stage,
)

COMPONENTS = (
    "weights_gib",
    "gradients_gib",
    "optimizer_gib",
    "activations_gib",
    "logits_gib",
    "buffers_gib",
    "overhead_gib",
)
ROUNDING = 1e-12
MODELS = (LLAMA_8B, MIXTRAL_8X22B, DEEPSEEK_V3)

configs = st.builds(
    TrainingConfig,
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4, 8]),
    vpp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 8]),
    mbs=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(list(Schedule)),
    sequence_parallel=st.booleans(),
    recompute=st.sampled_from(list(Recompute)),
    recompute_method=st.sampled_from(list(RecomputeMethod)),
    recompute_layers=st.integers(0, 3),
    recompute_modules=st.builds(RecomputeModules, st.integers(0, 127)),
    moe_dispatcher=st.sampled_from(list(MoeDispatcher)),
    sync_free_stage=st.integers(0, 3),
    precision=st.sampled_from([Precision.BF16, Precision.FP8, Precision.MXFP8]),
    sharding=st.sampled_from(list(Sharding)),
    cross_entropy_fusion=st.booleans(),
    overlap=st.sampled_from([Overlap.NONE, Overlap.EP]),
)
stacks = st.builds(
    Stack,
    framework=st.sampled_from(list(Framework)),
    flash_attention=st.booleans(),
    expandable_segments=st.booleans(),
)


def legal_vpp(config: TrainingConfig) -> TrainingConfig:
    """The config with the chunks that its schedule runs."""
    if config.pp == 1:
        return config.changed(schedule=Schedule.ONE_F_ONE_B, vpp=1)
    if config.schedule.is_v_shaped:
        return config.changed(vpp=2)
    if config.schedule is Schedule.INTERLEAVED:
        return config.changed(vpp=2)
    return config.changed(vpp=1)


@settings(max_examples=40, deadline=None)
@given(st.lists(configs, min_size=1, max_size=4), stacks, st.sampled_from([16, 256, 2048]))
def test_fullest_stage_is_the_peak_and_components_add_up(
    rows: list[TrainingConfig], stack: Stack, global_batch_size: int
) -> None:
    table = ConfigTable.from_configs([legal_vpp(row) for row in rows])
    for model in MODELS:
        cases = study(model, table, num_gpus=1024, global_batch_size=global_batch_size, stack=stack)
        peak, stages = memory(cases), memory_by_stage(cases)
        for name, by_stage in (
            ("allocated_gib", stages.allocated_gib),
            ("reserved_gib", stages.reserved_gib),
            ("device_gib", stages.total_gib),
        ):
            assert getattr(peak, name) == pytest.approx(by_stage.max(axis=1), rel=1e-9)
        total = sum(getattr(stages, name) for name in COMPONENTS)
        assert total == pytest.approx(stages.total_gib)
        for name in COMPONENTS[:-1]:
            assert (getattr(stages, name) >= 0).all()
        assert (peak.allocated_gib > 0).all()
        assert (peak.reserved_gib >= peak.allocated_gib).all()
        assert (peak.device_gib >= peak.reserved_gib).all()


@settings(max_examples=30, deadline=None)
@given(configs, st.sampled_from([1, 2, 4, 8]))
def test_memory_grows_with_the_microbatch_and_the_sequence(
    config: TrainingConfig, mbs: int
) -> None:
    config = legal_vpp(config)
    for model in MODELS:
        # Enough microbatches for every schedule to hold all that it may.
        small, large = (
            memory(study(model, config.changed(mbs=size), num_gpus=1024, global_batch_size=65536))
            for size in (mbs, 2 * mbs)
        )
        assert large.device_gib[0] >= small.device_gib[0] * (1 - ROUNDING)
        short, long = (
            memory(study(model, config, num_gpus=1024, seq_len=s, global_batch_size=65536))
            for s in (4096, 8192)
        )
        assert long.device_gib[0] >= short.device_gib[0] * (1 - ROUNDING)


def test_chunks_do_not_change_the_answer() -> None:
    n = CHUNK_ROWS + 7
    rng = np.random.default_rng(1)
    table = ConfigTable.from_columns(
        {"tp": rng.choice([1, 2, 4], n), "pp": rng.choice([1, 2, 4], n), "mbs": 1, "ep": 8}
    )
    whole = memory(study(MIXTRAL_8X22B, table, num_gpus=1024))
    for row in (0, CHUNK_ROWS - 1, CHUNK_ROWS, n - 1):
        one = memory(study(MIXTRAL_8X22B, table.take([row]), num_gpus=1024))
        assert one.device_gib[0] == whole.device_gib[row]
        assert one.stage[0] == whole.stage[row]


def test_counters_read_what_they_count() -> None:
    config = ConfigTable.from_configs([TrainingConfig(pp=4)] * 6)
    cases = study(LLAMA_8B, config)
    names = np.array(
        ["allocated", "active", "reserved", "device", "unknown", "allocated-last-rank"]
    )
    reading = counter_reading(cases, names)
    peak, stages = memory(cases), memory_by_stage(cases)
    expected = [
        peak.allocated_gib[0],
        peak.allocated_gib[0],
        peak.reserved_gib[0],
        peak.device_gib[0],
        peak.device_gib[0],
        stages.allocated_gib[0, 3],
    ]
    assert reading.tolist() == expected


def test_sharded_gradients_are_freed_before_the_next_forward_pass() -> None:
    titan = Stack(framework=Framework.TORCHTITAN, weight_bytes=4, optimizer_bytes=8)
    config = TrainingConfig(sharding=Sharding.FSDP)
    once = study(LLAMA_8B, config, num_gpus=8, seq_len=8192, global_batch_size=8, stack=titan)
    twice = study(LLAMA_8B, config, num_gpus=8, seq_len=8192, global_batch_size=16, stack=titan)
    assert memory(once).allocated_gib[0] < memory(twice).allocated_gib[0]
    assert memory(once).reserved_gib[0] == memory(twice).reserved_gib[0]


def test_vocabulary_parallelism_spreads_the_ends_and_holds_more_microbatches() -> None:
    config = TrainingConfig(pp=8)
    plain, spread = (study(LLAMA_8B, config, stack=Stack(vocabulary_barriers=b)) for b in (0, 2))
    before, after = memory_by_stage(plain), memory_by_stage(spread)
    assert after.weights_gib.max() < before.weights_gib.max()
    assert after.activations_gib[0, 1] > before.activations_gib[0, 1]


def test_vocabulary_parallelism_exchanges_hidden_states_with_every_rank() -> None:
    """A shard of the logits and, for each rank, two 16-bit hidden states of a microbatch."""
    config = TrainingConfig(pp=8)
    spread = study(LLAMA_8B, config, stack=Stack(vocabulary_barriers=1))
    constants = prior_constants()
    shard = (128_256 * 6 + (2 + 2) * 4096) / 8
    exchanged = 2 * 2 * 4096 * 8
    held = memory_by_stage(spread, constants).logits_gib[0]
    assert held == pytest.approx(4096 * (shard + exchanged) / 2**30)


def test_low_rank_fine_tuning_needs_less() -> None:
    config = TrainingConfig(tp=2)
    full = memory(study(LLAMA_8B, config, kind=TrainingKind.FINETUNE))
    lora = memory(study(LLAMA_8B, config, kind=TrainingKind.LORA, lora_rank=16))
    assert lora.device_gib[0] < full.device_gib[0]


def test_the_gap_of_every_reading_is_explained_by_component() -> None:
    table = ConfigTable.from_configs(
        [TrainingConfig(pp=2), TrainingConfig(mbs=4), TrainingConfig()]
    )
    cases = study(LLAMA_8B, table, num_gpus=8)
    counters = np.array(["allocated-last-rank", "device", "reserved"])
    gaps = explain_gap(cases, np.array([100.0, 100.0, 100.0]), counters)
    reading = counter_reading(cases, counters)
    assert [gap.projected_gib for gap in gaps] == reading.tolist()
    assert gaps[0].stage == 1
    for gap in gaps:
        assert sum(gap.components.values()) == pytest.approx(gap.projected_gib)
        assert gap.gap_gib == pytest.approx(100.0 - gap.projected_gib)


def test_checkpoints_on_the_host_leave_only_the_layer_that_is_rebuilt() -> None:
    config = TrainingConfig(recompute=Recompute.FULL, recompute_method=RecomputeMethod.UNIFORM)
    kept, offloaded = (
        memory_by_stage(
            study(
                LLAMA_8B, config, seq_len=65536, stack=Stack(checkpoint_offload_fraction=fraction)
            ),
            prior_constants(),
        ).activations_gib[0, 0]
        for fraction in (0.0, 1.0)
    )
    checkpoint = 65536 * 4096 * 2 / 2**30
    assert kept - offloaded == pytest.approx((32 - 2) * checkpoint)


def test_compiled_layers_keep_less() -> None:
    plain, compiled = (
        memory(study(LLAMA_8B, TrainingConfig(), stack=Stack(compiled=on)), prior_constants())
        for on in (False, True)
    )
    assert compiled.device_gib[0] < plain.device_gib[0]


def test_a_compiled_loss_keeps_the_logits_in_16_bit() -> None:
    """Known answer: 2 bytes of logits and 2 of their gradient against what eager PyTorch keeps."""
    eager, compiled = (
        memory_by_stage(
            study(
                LLAMA_8B,
                TrainingConfig(),
                stack=Stack(framework=Framework.TORCHTITAN, compiled_loss=on),
            ),
            prior_constants(),
        ).logits_gib[0, 0]
        for on in (False, True)
    )
    entries = 4096 * LLAMA_8B.vocab_size
    assert eager - compiled == pytest.approx((12 - 4) * entries / 2**30, rel=0.02)


def test_attention_scores_count_twice_in_the_backward_pass() -> None:
    """Kept scores of every layer, and their gradients in the layer that runs, where those are more
    than the gradients of its MLP."""
    stored = memory_by_stage(study(LLAMA_8B, TrainingConfig(), stack=Stack(flash_attention=False)))
    flash = memory_by_stage(study(LLAMA_8B, TrainingConfig()))
    one_layer = 32 * 4096 * 4096 * 2 / 2**30
    assert stored.activations_gib[0, 0] - flash.activations_gib[0, 0] > 32 * 0.8 * one_layer


@pytest.mark.parametrize(
    ("framework", "dropout", "tensors"),
    [
        (Framework.MEGATRON, False, 1),
        (Framework.MEGATRON, True, 1),
        (Framework.HUGGING_FACE, True, 1),
        (Framework.HUGGING_FACE, False, 2),
    ],
)
def test_the_gradient_of_scores_is_made_in_place_by_a_fused_softmax(
    framework: Framework, dropout: bool, tensors: int
) -> None:
    """Softmax of plain PyTorch makes another tensor; with dropout, dropout's output is freed."""
    model = LLAMA_8B.model_copy(update={"dropout": dropout})
    stack = Stack(framework=framework, flash_attention=False)
    constants = prior_constants()
    cases = study(model, TrainingConfig(), stack=stack)
    copies = 2 if framework is Framework.MEGATRON else 3
    of_mlp = 14336 * 2 * (copies + 1)
    scores = tensors * 2 * 4096 * 32
    more = max(scores - of_mlp, constants.backward_copies[framework] * of_mlp)
    held = layer_bytes(cases, constants).gradients_dense
    assert float(np.ravel(held)[0]) == pytest.approx(4096 * more)


def test_deepspeed_keeps_the_outputs_of_a_pipeline_stage() -> None:
    config = TrainingConfig(pp=4)
    held = [
        memory_by_stage(
            study(LLAMA_8B, config, stack=Stack(framework=framework)), prior_constants()
        ).activations_gib[0]
        for framework in (Framework.MEGATRON, Framework.MEGATRON_DEEPSPEED)
    ]
    output = 4096 * 4096 * 2 / 2**30
    assert held[1][0] - held[0][0] == pytest.approx(4 * output)
    assert held[1][3] == pytest.approx(held[0][3])


def test_dtensor_keeps_gathered_inputs_of_tensor_parallel_layers() -> None:
    config = TrainingConfig(tp=4, sequence_parallel=True)
    megatron, titan = (
        memory_by_stage(study(LLAMA_8B, config, stack=Stack(framework=framework)))
        for framework in (Framework.MEGATRON, Framework.TORCHTITAN)
    )
    gathered = 32 * 4096 * 4096 * 2 * 2 * 3 / 4 / 2**30
    assert titan.activations_gib[0, 0] - megatron.activations_gib[0, 0] > 0.7 * gathered


def test_fit_probability() -> None:
    assert fit_probability(100.0, 100.0, 0.05) == pytest.approx(0.5)
    assert fit_probability(80.0, 100.0, 0.05) > 0.99
    assert fit_probability(99.0, 100.0, 0.02) > 0.6
    assert fit_probability(120.0, 100.0, 0.05) < 0.01
    # Two thirds within one sd, as a Gaussian; further out a gross error is not ruled out.
    one_sd = fit_probability(100.0 * np.exp(-0.05), 100.0, 0.05)
    assert one_sd == pytest.approx(0.8413, abs=1e-3)
    assert 1e-3 < fit_probability(100.0 * np.exp(0.25), 100.0, 0.05) < 1e-2
    held = np.geomspace(1.0, 1e4, 101)
    expected = stdtr(STUDENT_DEGREES, np.log(100.0 / held) / 0.05 * TWO_THIRDS)
    assert fit_probability(held, 100.0, 0.05) == pytest.approx(expected, rel=1e-9)


def test_the_interval_holds_what_it_says() -> None:
    half = float(interval_half_width(0.05))
    inside = 1 - 2 * float(fit_probability(np.exp(half), 1.0, 0.05))
    assert inside == pytest.approx(0.9)
    assert float(interval_half_width(0.05, 0.6827)) == pytest.approx(0.05, rel=1e-3)


def test_vendor_runtime_differs() -> None:
    amd, nvidia = (
        memory(study(LLAMA_8B, TrainingConfig(tp=2), device=gpu(vendor)), prior_constants())
        for vendor in ("amd", "nvidia")
    )
    assert amd.allocated_gib[0] == nvidia.allocated_gib[0]
    assert amd.device_gib[0] > nvidia.device_gib[0]
