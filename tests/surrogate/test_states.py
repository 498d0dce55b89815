"""Parameters and state bytes per rank against numbers computed by hand from the architectures.

DeepSeek-V3 and Mixtral 8x22B per rank: no MTP, no router bias; state bytes per parameter of
Megatron's distributed optimizer (docs/user-guide/features/dist_optimizer.md).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import (
    DEEPSEEK_V3,
    LLAMA_8B,
    MIXTRAL_8X22B,
    gpt,
    prior_constants,
    study,
)

from specs.choices import Precision, Sharding, TrainingKind
from specs.config import TrainingConfig
from specs.stack import Framework, Stack
from surrogate.cases import Cases
from surrogate.pipeline.stages import stage_columns
from surrogate.states import StageParameters, stage_parameters, state_bytes

GIB = 2**30
NO_MTP = DEEPSEEK_V3.model_copy(update={"mtp_layers": 0})
LAYOUT = "Et*1|t*1|" + "t*2|" * 29 + "t*1,L"
BF16_GRADIENTS = Stack(gradient_bytes=2)
BF16_MOMENTS = Stack(gradient_bytes=2, optimizer_bytes=8)


def parameters(cases: Cases) -> StageParameters:
    return stage_parameters(cases, stage_columns(cases, every_stage=True))


def state_gib(cases: Cases) -> list[float]:
    states = state_bytes(cases, parameters(cases), prior_constants())
    total = states.weights + states.gradients + states.optimizer
    return [round(float(value) / GIB, 2) for value in total[0]]


class Rank(NamedTuple):
    rank: int
    dense_side: int
    experts: int
    gib: float
    small_gib: float


@pytest.mark.parametrize(
    "expected",
    [
        Rank(0, 1_976_156_160, 2_818_572_288, 43.92, 29.28),
        Rank(1, 1_049_477_120, 2_818_572_288, 38.10, 25.40),
        Rank(2, 1_282_473_984, 4_227_858_432, 55.31, 36.87),
        *(Rank(r, 931_987_456, 5_637_144_576, 68.86, 45.91) for r in (3, 8, 14)),
        Rank(15, 1_625_676_800, 4_227_858_432, 57.47, 38.31),
    ],
)
def test_deepseek_v3_per_rank(expected: Rank) -> None:
    config = TrainingConfig(pp=16, vpp=2, ep=8, layout=LAYOUT)
    cases = study(NO_MTP, config, num_gpus=256)
    held = parameters(cases)
    assert held.dense_side[0, expected.rank] == expected.dense_side
    assert held.experts[0, expected.rank] == expected.experts
    assert state_gib(cases)[expected.rank] == expected.gib
    small = study(NO_MTP, config, num_gpus=256, stack=BF16_MOMENTS)
    assert state_gib(small)[expected.rank] == expected.small_gib


@pytest.mark.parametrize(
    ("config", "num_gpus", "dense_side", "experts", "gib"),
    [
        (TrainingConfig(tp=1, pp=16, ep=64), 2048, 931_987_456, 704_643_072, 13.16),
        (TrainingConfig(tp=2, pp=16, ep=64), 1024, 499_974_144, 704_643_072, 14.78),
        (TrainingConfig(tp=8, pp=8, ep=64), 2048, 351_928_320, 1_409_286_144, 13.90),
        (TrainingConfig(tp=8, pp=8, ep=8, etp=8), 2048, 351_928_320, 1_409_286_144, 13.90),
    ],
)
def test_deepseek_v3_middle_stages(
    config: TrainingConfig, num_gpus: int, dense_side: int, experts: int, gib: float
) -> None:
    cases = study(NO_MTP, config, num_gpus=num_gpus)
    held = parameters(cases)
    middle = config.pp // 2
    assert held.dense_side[0, middle] == dense_side
    assert held.experts[0, middle] == experts
    assert state_gib(cases)[middle] == gib


@pytest.mark.parametrize(
    ("config", "num_gpus", "stage", "dense_side", "gib", "small_gib"),
    [
        (TrainingConfig(pp=4, ep=8), 32, 0, 1_435_312_128, 80.90, 70.35),
        (TrainingConfig(pp=4, ep=8), 32, 1, 1_233_985_536, 79.49, 69.32),
        (TrainingConfig(pp=4, ep=8), 32, 3, 1_435_318_272, 80.90, 70.35),
        (TrainingConfig(pp=4, ep=8), 64, 1, 1_233_985_536, 55.01, 44.83),
        (TrainingConfig(tp=2, pp=4, ep=8), 64, 1, 617_422_848, 51.56, 42.54),
        (TrainingConfig(tp=8, pp=4, ep=1, etp=8), 32, 1, 155_000_832, 73.47, 65.31),
    ],
)
def test_mixtral_8x22b_per_rank(
    config: TrainingConfig,
    num_gpus: int,
    stage: int,
    dense_side: int,
    gib: float,
    small_gib: float,
) -> None:
    cases = study(MIXTRAL_8X22B, config, num_gpus=num_gpus)
    held = parameters(cases)
    assert held.dense_side[0, stage] == dense_side
    assert held.experts[0, stage] == 4_227_858_432
    assert state_gib(cases)[stage] == gib
    small = study(MIXTRAL_8X22B, config, num_gpus=num_gpus, stack=BF16_GRADIENTS)
    assert state_gib(small)[stage] == small_gib


@pytest.mark.parametrize(
    ("stack", "precision", "none", "sharded"),
    [
        (Stack(), Precision.BF16, 18, 6 + 12 / 8),
        (Stack(gradient_bytes=2, optimizer_bytes=16), Precision.FP16, 20, 4 + 16 / 8),
        (
            Stack(weight_bytes=4, gradient_bytes=4, optimizer_bytes=8),
            Precision.FP32,
            16,
            8 + 8 / 8,
        ),
        (Stack(gradient_bytes=2), Precision.BF16, 16, 4 + 12 / 8),
        (Stack(optimizer_bytes=8), Precision.BF16, 14, 6 + 8 / 8),
        (Stack(optimizer_offload_fraction=0.5), Precision.BF16, 12, 6 + 6 / 8),
    ],
)
def test_bytes_per_parameter(
    stack: Stack, precision: Precision, none: float, sharded: float
) -> None:
    for sharding, expected in ((Sharding.NONE, none), (Sharding.ZERO1, sharded)):
        config = TrainingConfig(sharding=sharding, precision=precision)
        cases = study(LLAMA_8B, config, num_gpus=8, stack=stack)
        held = parameters(cases)
        states = state_bytes(cases, held, prior_constants())
        total = states.weights + states.gradients + states.optimizer
        assert total[0, 0] / held.total[0, 0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("sharding", "replicate", "expected"),
    [
        (Sharding.ZERO2, 1, 2 + (4 + 12) / 8),
        (Sharding.ZERO3, 1, 18 / 8),
        (Sharding.FSDP, 1, 18 / 8),
        (Sharding.HSDP, 2, 18 / 4),
        (Sharding.ZERO1, 2, 6 + 12 / 4),
    ],
)
def test_sharding_levels(sharding: Sharding, replicate: int, expected: float) -> None:
    config = TrainingConfig(sharding=sharding, replicate=replicate)
    cases = study(LLAMA_8B, config, num_gpus=8)
    held = parameters(cases)
    states = state_bytes(cases, held, prior_constants())
    total = states.weights + states.gradients + states.optimizer
    assert total[0, 0] / held.total[0, 0] == pytest.approx(expected, rel=1e-12)


def test_deepspeed_partitions_bf16_optimizers_without_zero() -> None:
    """deepspeed/runtime/bf16_optimizer.py: 2 + 6 bytes stay whole, 12 are shared by 8 ranks."""
    deepspeed = Stack(framework=Framework.MEGATRON_DEEPSPEED, gradient_bytes=6.0)

    def per_parameter(precision: Precision) -> float:
        config = TrainingConfig(sharding=Sharding.NONE, precision=precision)
        cases = study(LLAMA_8B, config, num_gpus=8, stack=deepspeed)
        held = parameters(cases)
        states = state_bytes(cases, held, prior_constants())
        total = states.weights + states.gradients + states.optimizer
        return float(total[0, 0] / held.total[0, 0])

    assert per_parameter(Precision.BF16) == 2 + 6 + 12 / 8
    assert per_parameter(Precision.FP16) == 2 + 6 + 12


def test_context_parallel_ranks_share_the_optimizer() -> None:
    """n is DP*CP (megatron/core/optimizer uses intra_dp_cp_group)."""
    config = TrainingConfig(cp=4, sharding=Sharding.ZERO1)
    cases = study(LLAMA_8B, config, num_gpus=8)
    held = parameters(cases)
    states = state_bytes(cases, held, prior_constants())
    assert states.optimizer[0, 0] == pytest.approx(12 / 8 * held.total[0, 0])


def test_mtp_stage_holds_a_copy_of_the_embedding() -> None:
    config = TrainingConfig(pp=4, ep=8)
    with_mtp = parameters(study(DEEPSEEK_V3, config))
    without = parameters(study(NO_MTP, config))
    added = with_mtp.dense_side[0, 3] - without.dense_side[0, 3]
    added += 8 * (with_mtp.experts[0, 3] - without.experts[0, 3])
    assert added == DEEPSEEK_V3.mtp_parameters() + 926_679_040
    assert with_mtp.total[0, 1] == without.total[0, 1]


def test_tied_embedding_is_there_twice_only_with_a_pipeline() -> None:
    model = gpt("gpt", 8, 1024, 16)
    one = parameters(study(model, TrainingConfig()))
    assert one.total[0, 0] == model.total_parameters()
    two = parameters(study(model, TrainingConfig(pp=2)))
    assert two.total[0].sum() == model.total_parameters() + model.embedding_parameters()


def test_low_rank_adapters_leave_the_base_frozen() -> None:
    config = TrainingConfig(sharding=Sharding.NONE)
    cases = study(LLAMA_8B, config, num_gpus=8, kind=TrainingKind.LORA, lora_rank=16)
    held = parameters(cases)
    states = state_bytes(cases, held, prior_constants())
    total = held.total[0, 0]
    assert 2 * total < states.weights[0, 0] < 2.05 * total
    assert states.gradients[0, 0] < 0.05 * total
    assert states.optimizer[0, 0] < 0.1 * total


@pytest.mark.parametrize(
    ("framework", "at_least", "at_most"),
    [(Framework.MEGATRON, 0.25e9, 1e9), (Framework.HUGGING_FACE, 0.01e9, 0.05e9)],
)
def test_adapters_of_experts_are_those_that_the_framework_trains(
    framework: Framework, at_least: float, at_most: float
) -> None:
    """Rank 16 on Mixtral 8x22B: 36 million on queries, keys, values and outputs (56 layers of
    16 * (4 * 6144 + 2 * 6144 + 2 * 1024)), some 20 times as many on its experts."""
    stack = Stack(framework=framework)
    config = TrainingConfig(sharding=Sharding.NONE)
    cases = study(
        MIXTRAL_8X22B, config, num_gpus=8, stack=stack, kind=TrainingKind.LORA, lora_rank=16
    )
    gradients = state_bytes(cases, parameters(cases), prior_constants()).gradients[0, 0]
    assert at_least < gradients / stack.gradient_bytes < at_most


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 4, 8]),
)
def test_parameters_are_conserved(tp: int, pp: int, ep: int) -> None:
    """TP and EP cut what they shard into equal parts; only replicated tensors are there again."""
    for model in (MIXTRAL_8X22B, NO_MTP, LLAMA_8B):
        config = TrainingConfig(tp=tp, pp=pp, ep=ep if model.is_moe else 1)
        held = parameters(study(model, config, num_gpus=256))
        padding = (model.padded_vocab(tp) - model.vocab_size) * model.hidden_size * 2
        whole = (held.sharded * tp + held.replicated + held.experts * config.ep).sum()
        assert whole - padding == pytest.approx(model.total_parameters(), rel=1e-12)


def test_fp8_caches_weights() -> None:
    plain, cast = (
        study(LLAMA_8B, TrainingConfig(precision=p)) for p in (Precision.BF16, Precision.FP8)
    )
    constants = prior_constants()
    weights = [state_bytes(c, parameters(c), constants).weights[0, 0] for c in (plain, cast)]
    assert weights[1] > weights[0]
    assert np.isfinite(weights).all()
