"""Buffers beside states and activations, with the sizes that frameworks state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from memory_cases import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X22B, gpu, prior_constants, study
from numpy.typing import NDArray

from specs.choices import MoeDispatcher, Precision, Sharding
from specs.config import TrainingConfig
from specs.model import Model
from specs.stack import Framework, Stack
from surrogate.buffers import (
    bucket_bytes,
    communicators,
    dispatch_bytes,
    logits_bytes,
    outside,
    unsharded_bytes,
)
from surrogate.cases import Cases
from surrogate.pipeline.stages import stage_columns
from surrogate.states import stage_parameters

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "seq_len", "stage_2_gib", "stage_3_gib", "balanced_gib"),
    [(DEEPSEEK_V3, 4096, 0.875, 7.0, 0.875), (MIXTRAL_8X22B, 8192, 1.5, 3.0, 0.375)],
)
def test_sync_free_stages_size_for_the_worst_case(
    model: Model, seq_len: int, stage_2_gib: float, stage_3_gib: float, balanced_gib: float
) -> None:
    """Primus primus_turbo.py: tokens*TP*EP rows, and that times top-k, at MBS 2 and EP 8."""
    constants = replace(prior_constants(), dispatch_copies=np.array(0.0))
    held = []
    for stage in (1, 2, 3):
        config = TrainingConfig(
            ep=8, mbs=2, moe_dispatcher=MoeDispatcher.DEEPEP, sync_free_stage=stage
        )
        held.append(float(dispatch_bytes(study(model, config, seq_len=seq_len), constants)[0]))
    assert held[0] == 0
    assert held[1] == stage_2_gib * GIB
    assert held[2] == (stage_2_gib + stage_3_gib - balanced_gib) * GIB


def test_all_to_all_holds_what_it_sends() -> None:
    cases = study(MIXTRAL_8X22B, TrainingConfig(ep=8))
    assert float(dispatch_bytes(cases, prior_constants())[0]) == 4096 * 2 * 6144 * 2
    alone = study(MIXTRAL_8X22B, TrainingConfig(ep=1))
    assert float(dispatch_bytes(alone, prior_constants())[0]) == 0


def test_xla_sends_what_it_has_and_receives_into_the_worst_case() -> None:
    config, stack = TrainingConfig(ep=8), Stack(framework=Framework.MAXTEXT)
    fixed = study(MIXTRAL_8X22B, config, stack=stack)
    plain = study(MIXTRAL_8X22B, config)
    assert dispatch_bytes(fixed, prior_constants())[0] == dispatch_bytes(plain, prior_constants())


def test_logits_are_cut_by_tensor_parallelism() -> None:
    constants = prior_constants()
    one, eight = (
        logits_bytes(study(LLAMA_8B, TrainingConfig(tp=tp)), constants)[0] for tp in (1, 8)
    )
    # Beside the logits, whole inputs of the final norm and of the output layer.
    kept = (2 + 2) * 4096
    assert float(one) == 4096 * (128_256 * 6 + kept)
    assert float(eight) == 4096 * (129_024 / 8 * 6 + kept)


def test_sequence_parallelism_cuts_the_inputs_of_the_ends_and_gathers_them() -> None:
    constants = prior_constants()
    whole, cut = (
        logits_bytes(study(LLAMA_8B, TrainingConfig(tp=8, sequence_parallel=on)), constants)[0]
        for on in (False, True)
    )
    gathered, kept = 2 * 2 * 4096, (2 + 2) * 4096
    assert float(cut - whole) == 4096 * (gathered - kept * 7 / 8)


def test_fully_sharded_training_gathers_layers() -> None:
    constants = prior_constants()
    for sharding, gathers in ((Sharding.ZERO1, False), (Sharding.FSDP, True)):
        cases = study(LLAMA_8B, TrainingConfig(sharding=sharding), num_gpus=8)
        held = np.sum(unsharded_bytes(cases, stage_columns(cases), constants))
        assert (held > 2 * 128_256 * 4096) == gathers
    alone = study(LLAMA_8B, TrainingConfig(sharding=Sharding.FSDP), num_gpus=1)
    assert np.sum(unsharded_bytes(alone, stage_columns(alone), constants)) == 0


@pytest.mark.parametrize(
    ("precision", "pp", "sharding", "reduces"),
    [
        (Precision.FP16, 1, Sharding.ZERO1, True),
        (Precision.FP16, 2, Sharding.ZERO1, False),
        (Precision.FP16, 1, Sharding.NONE, False),
        (Precision.BF16, 1, Sharding.NONE, True),
        (Precision.BF16, 2, Sharding.NONE, True),
        (Precision.BF16, 2, Sharding.ZERO1, True),
    ],
)
def test_deepspeed_reduces_in_buckets(
    precision: Precision, pp: int, sharding: Sharding, reduces: bool
) -> None:
    """Without a pipeline where states are sharded; BF16_Optimizer shards them without ZERO and
    copies fp32 gradients into buckets with a pipeline too (deepspeed/runtime/engine.py)."""
    stack = Stack(framework=Framework.MEGATRON_DEEPSPEED)
    config = TrainingConfig(pp=pp, precision=precision, sharding=sharding)
    cases = study(LLAMA_8B, config, stack=stack)
    held = buckets(cases)
    assert bool(held.max() > 0) is reduces
    if pp > 1 and reduces:
        assert held.max() == 4 * max(5e8, 128_256 * 4096)


def buckets(cases: Cases) -> NDArray[np.float64]:
    """Bytes of the buckets of each stage."""
    stages = stage_columns(cases)
    return bucket_bytes(cases, stages, stage_parameters(cases, stages), prior_constants())


def test_buckets_hold_no_more_than_there_is_to_reduce() -> None:
    small = LLAMA_8B.model_copy(update={"num_layers": 4, "vocab_size": 1024})
    cases = study(small, TrainingConfig(pp=4), stack=Stack(framework=Framework.DEEPSPEED))
    stages = stage_columns(cases)
    assert buckets(cases).max() == 4 * stage_parameters(cases, stages).total.max() < 4 * 5e8


def test_communicators_are_counted_by_dimension() -> None:
    assert communicators(study(LLAMA_8B, TrainingConfig(), num_gpus=1))[0] == 0
    assert communicators(study(LLAMA_8B, TrainingConfig(tp=2), num_gpus=2))[0] == 1
    full = study(MIXTRAL_8X22B, TrainingConfig(tp=2, pp=2, cp=2, ep=4), num_gpus=64)
    assert communicators(full)[0] == 7


def test_expandable_segments_fragment_less() -> None:
    constants = prior_constants()
    config = TrainingConfig()
    device = gpu("nvidia", 80)
    plain, expandable = (
        outside(study(LLAMA_8B, config, stack=stack, device=device), constants)
        for stack in (Stack(), Stack(expandable_segments=True))
    )
    assert np.ravel(expandable.reserved_factor)[0] < np.ravel(plain.reserved_factor)[0]
