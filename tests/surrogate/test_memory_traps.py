"""Mistakes that a memory model of this kind has been seen to make, each shown not to be made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from memory_cases import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X22B, gpu, prior_constants, study

from specs.choices import (
    MoeDispatcher,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.config import ConfigTable, TrainingConfig
from specs.model import Model
from specs.stack import Stack
from surrogate.memory import StageMemory, fit_probability, memory, memory_by_stage

LLAMA_70B = LLAMA_8B.model_copy(
    update={
        "name": "llama-3.1-70b",
        "num_layers": 80,
        "hidden_size": 8192,
        "ffn_hidden_size": 28672,
        "num_attention_heads": 64,
    }
)
BASE = TrainingConfig(pp=4, ep=8, mbs=2)


def device(model: Model, config: TrainingConfig, num_gpus: int = 64, **job: object) -> float:
    """Projected device GiB."""
    return float(memory(study(model, config, num_gpus, **job), prior_constants()).device_gib[0])


def stages(model: Model, config: TrainingConfig, **job: object) -> StageMemory:
    return memory_by_stage(study(model, config, **job), prior_constants())


def test_tensor_parallelism_divides_weights() -> None:
    held = [stages(LLAMA_70B, TrainingConfig(tp=tp)).weights_gib[0, 0] for tp in (1, 2, 4, 8)]
    for larger, smaller in itertools.pairwise(held):
        assert smaller == pytest.approx(larger / 2, rel=0.01)


def test_expert_parallelism_divides_experts_and_not_attention() -> None:
    one, eight = (stages(MIXTRAL_8X22B, BASE.changed(ep=ep)).weights_gib[0, 1] for ep in (1, 8))
    experts = 14 * 8 * MIXTRAL_8X22B.expert_parameters() * 2 / 2**30
    assert one - eight == pytest.approx(experts * 7 / 8)


def test_expert_tensor_parallelism_counts() -> None:
    plain, cut = (stages(MIXTRAL_8X22B, BASE.changed(etp=etp)).weights_gib[0, 1] for etp in (1, 2))
    assert cut < 0.7 * plain


def test_every_sharding_level_saves() -> None:
    levels = (Sharding.NONE, Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)
    held = [device(LLAMA_8B, TrainingConfig(sharding=level), 8) for level in levels]
    assert all(later < earlier for earlier, later in itertools.pairwise(held))
    states = [
        stages(LLAMA_8B, TrainingConfig(sharding=level), num_gpus=8).optimizer_gib[0, 0]
        for level in (Sharding.NONE, Sharding.FSDP)
    ]
    assert states[1] == pytest.approx(states[0] / 8)


def test_fsdp_of_70b_fits_one_node() -> None:
    """An 8-GPU FSDP2 run of Llama-3.1-70B exists; it must not be projected at several times HBM."""
    config = TrainingConfig(
        sharding=Sharding.FSDP, recompute=Recompute.FULL, recompute_method=RecomputeMethod.UNIFORM
    )
    assert device(LLAMA_70B, config, 8, seq_len=8192) < 288


def test_dense_and_expert_states_have_their_own_data_parallel_size() -> None:
    """32 GPUs, PP4 EP8: experts are not sharded at all, the dense side over 8 ranks."""
    few, many = (stages(MIXTRAL_8X22B, BASE, num_gpus=n).optimizer_gib[0, 1] for n in (32, 64))
    assert few - many > 20


def test_selective_recomputation_is_no_flat_discount() -> None:
    """It touches activations only, and with flash attention core_attn saves next to nothing."""
    selective = BASE.changed(
        recompute=Recompute.SELECTIVE, recompute_modules=RecomputeModules.CORE_ATTN
    )
    plain, chosen = stages(MIXTRAL_8X22B, BASE), stages(MIXTRAL_8X22B, selective)
    assert np.array_equal(plain.weights_gib, chosen.weights_gib)
    assert chosen.total_gib.max() > 0.98 * plain.total_gib.max()


def test_recomputing_more_layers_than_a_chunk_has_gains_nothing() -> None:
    block = TrainingConfig(
        pp=4,
        vpp=2,
        ep=8,
        schedule=Schedule.INTERLEAVED,
        recompute=Recompute.FULL,
        recompute_method=RecomputeMethod.BLOCK,
    )
    exact, beyond = (
        device(MIXTRAL_8X22B, block.changed(recompute_layers=layers)) for layers in (7, 14)
    )
    assert exact == beyond


def test_block_recomputation_counts_layers_of_each_chunk() -> None:
    block = BASE.changed(recompute=Recompute.FULL, recompute_method=RecomputeMethod.BLOCK)
    held = [device(MIXTRAL_8X22B, block.changed(recompute_layers=n)) for n in (1, 4, 8, 14)]
    assert all(later < earlier for earlier, later in itertools.pairwise(held))
    zero = block.changed(recompute_layers=0)
    assert device(MIXTRAL_8X22B, zero) == device(MIXTRAL_8X22B, BASE)


@pytest.mark.parametrize("model", [LLAMA_8B, MIXTRAL_8X22B, DEEPSEEK_V3])
@pytest.mark.parametrize(("pp", "vpp", "mbs"), [(1, 1, 4), (4, 1, 1), (4, 2, 4)])
def test_a_layer_more_recomputed_never_needs_more(
    model: Model, pp: int, vpp: int, mbs: int
) -> None:
    """The first layers are rebuilt when what the others kept is freed: not on top of it."""
    plain = TrainingConfig(
        pp=pp,
        vpp=vpp,
        mbs=mbs,
        ep=8 if model.is_moe else 1,
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
    )
    block = plain.changed(recompute=Recompute.FULL, recompute_method=RecomputeMethod.BLOCK)
    held = [device(model, block.changed(recompute_layers=n)) for n in (0, 1, 2, 4, 8, 61)]
    assert held == sorted(held, reverse=True)
    assert held[1] < held[0]


def test_the_layer_being_rebuilt_is_there() -> None:
    full = BASE.changed(recompute=Recompute.FULL, recompute_method=RecomputeMethod.UNIFORM)
    one, four = (device(MIXTRAL_8X22B, full.changed(recompute_layers=layers)) for layers in (1, 7))
    assert four > one, "a unit of seven layers rebuilds seven layers at once"


def test_context_parallelism_cuts_activations_not_weights() -> None:
    plain = stages(LLAMA_8B, TrainingConfig(sharding=Sharding.NONE), seq_len=32768)
    cut = stages(LLAMA_8B, TrainingConfig(cp=4, sharding=Sharding.NONE), seq_len=32768)
    assert cut.activations_gib[0, 0] == pytest.approx(plain.activations_gib[0, 0] / 4)
    assert cut.weights_gib[0, 0] == plain.weights_gib[0, 0]


@pytest.mark.parametrize(
    ("schedule", "vpp", "microbatches"),
    [
        (Schedule.ONE_F_ONE_B, 1, 4),
        (Schedule.INTERLEAVED, 2, 5.5),
        (Schedule.ZB_H1, 1, 4),
        (Schedule.ZB_H2, 1, 7),
        (Schedule.ZBV, 2, 4),
        (Schedule.V_HALF, 2, 3),
        (Schedule.V_MIN, 2, 2),
        (Schedule.GPIPE, 1, 16),
    ],
)
def test_every_schedule_holds_its_own_microbatches(
    schedule: Schedule, vpp: int, microbatches: float
) -> None:
    config = TrainingConfig(pp=4, vpp=vpp, schedule=schedule, sharding=Sharding.NONE)
    job = {"num_gpus": 4, "global_batch_size": 16}
    held = stages(LLAMA_8B, config, **job).activations_gib[0, 0]
    working = stages(LLAMA_8B, config.changed(schedule=Schedule.ONE_F_ONE_B, vpp=1), **job)
    # Stage 3 of 1F1B holds one microbatch and the same gradients of a layer as stage 0.
    per_microbatch = (working.activations_gib[0, 0] - working.activations_gib[0, 3]) / 3
    extra = working.activations_gib[0, 3] - per_microbatch
    assert held == pytest.approx(microbatches * per_microbatch + extra)


def test_few_microbatches_hold_less() -> None:
    config = TrainingConfig(pp=8, sharding=Sharding.NONE)
    one, many = (
        device(LLAMA_8B, config, 8, global_batch_size=batch, seq_len=8192) for batch in (1, 64)
    )
    assert one < many


def test_every_stage_is_looked_at() -> None:
    """The fullest stage of DeepSeek-V3 is in the middle, not the first."""
    layout = "Et*1|t*1|" + "t*2|" * 29 + "t*1,L"
    model = DEEPSEEK_V3.model_copy(update={"mtp_layers": 0})
    config = TrainingConfig(pp=16, vpp=2, ep=8, layout=layout, schedule=Schedule.INTERLEAVED, mbs=1)
    cases = study(model, config, num_gpus=256, global_batch_size=2048)
    assert memory(cases, prior_constants()).stage[0] == 3


def test_logits_count_on_the_last_stage_and_fusion_saves() -> None:
    model = LLAMA_8B
    plain = stages(model, TrainingConfig(pp=4, mbs=4))
    fused = stages(model, TrainingConfig(pp=4, mbs=4, cross_entropy_fusion=True))
    assert plain.logits_gib[0, :3].tolist() == [0, 0, 0]
    assert fused.logits_gib[0, 3] < plain.logits_gib[0, 3]


def test_dispatchers_and_sync_free_stages_differ() -> None:
    config = TrainingConfig(ep=8, pp=4)
    alltoall = device(MIXTRAL_8X22B, config)
    deepep = config.changed(moe_dispatcher=MoeDispatcher.DEEPEP)
    assert device(MIXTRAL_8X22B, deepep) != alltoall
    stage = [device(MIXTRAL_8X22B, deepep.changed(sync_free_stage=s)) for s in (1, 2, 3)]
    assert stage[0] <= stage[1] <= stage[2]
    assert stage[0] < stage[2]


def test_fp8_changes_memory() -> None:
    plain = stages(MIXTRAL_8X22B, BASE)
    cast = stages(MIXTRAL_8X22B, BASE.changed(precision=Precision.FP8))
    assert cast.weights_gib.max() > plain.weights_gib.max()
    assert cast.activations_gib.max() < plain.activations_gib.max()


def test_unbalanced_routing_needs_more() -> None:
    config = TrainingConfig(ep=8, pp=4)
    balanced, unbalanced = (
        device(MIXTRAL_8X22B, config, routing_imbalance=imbalance) for imbalance in (1.0, 1.6)
    )
    assert unbalanced > balanced


def test_padded_vocabulary_is_that_of_the_model() -> None:
    small, large = (
        stages(MIXTRAL_8X22B.model_copy(update={"vocab_size": v}), BASE).weights_gib[0, 0]
        for v in (32_000, 100_352)
    )
    rows = 100_352 - 32_000
    assert large - small == pytest.approx(rows * 6144 * 2 / 2**30)


def test_gradient_dtype_counts() -> None:
    half, full = (
        device(MIXTRAL_8X22B, BASE, stack=Stack(gradient_bytes=size)) for size in (2.0, 4.0)
    )
    assert full - half > 5


def test_a_run_near_capacity_is_neither_refused_nor_promised() -> None:
    """Real runs are seen at 99.7% of HBM: a flat 10% margin would refuse them."""
    near = fit_probability(285.0, 288.0, 0.06)
    assert 0.3 < near < 0.7
    assert fit_probability(321.5, 288.0, 0.06) < 0.06, "tails of a Student-t, not of a Gaussian"


def test_microbatch_size_raises_memory() -> None:
    table = ConfigTable.from_columns({"mbs": [1, 2, 4, 8], "pp": 4, "ep": 8})
    cases = study(MIXTRAL_8X22B, table, global_batch_size=1024, device=gpu("nvidia", 80))
    assert (np.diff(memory(cases, prior_constants()).device_gib) > 0).all()
