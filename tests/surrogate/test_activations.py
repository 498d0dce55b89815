"""Activation bytes per layer: arXiv 2205.05198 exactly, and what newer layers add."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_cases import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X22B, gpt, prior_constants, study

from specs.choices import (
    MoeDispatcher,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
)
from specs.config import TrainingConfig
from specs.model import Model
from specs.stack import Framework, Stack
from surrogate.activations import LayerBytes, expert_tokens, layer_bytes

MIB = 2**20
UNFUSED = Stack(flash_attention=False)
CORE = RecomputeModules.CORE_ATTN


def kept(
    model: Model,
    config: TrainingConfig,
    seq_len: int = 4096,
    stack: Stack | None = None,
    **workload: object,
) -> LayerBytes:
    cases = study(model, config, seq_len=seq_len, stack=stack, **workload)
    return layer_bytes(cases, prior_constants())


@pytest.mark.parametrize(
    ("model", "mbs", "none", "tp", "tp_sp", "tp_selective", "tp_sp_selective", "full"),
    [
        (gpt("22b", 48, 6144, 64), 4, 6752, 1264, 844, 624, 204, 96),
        (gpt("175b", 96, 12288, 96), 1, 2736, 552, 342, 312, 102, 48),
        (gpt("530b", 105, 20480, 128), 1, 3920, 840, 490, 520, 170, 80),
        (gpt("1t", 128, 25600, 160), 1, 4900, 1050, 612.5, 650, 212.5, 100),
    ],
)
def test_korthikanti(
    model: Model,
    mbs: int,
    none: float,
    tp: float,
    tp_sp: float,
    tp_selective: float,
    tp_sp_selective: float,
    full: float,
) -> None:
    """MiB per layer of 16-bit training with dropout and without flash attention, t = 8."""
    selective = {"recompute": Recompute.SELECTIVE, "recompute_modules": CORE}
    one = TrainingConfig(mbs=mbs)
    eight = TrainingConfig(tp=8, etp=8, mbs=mbs)
    sequence = eight.changed(sequence_parallel=True)
    expected = {
        one: none,
        eight: tp,
        sequence: tp_sp,
        eight.changed(**selective): tp_selective,
        sequence.changed(**selective): tp_sp_selective,
    }
    for config, mib in expected.items():
        assert float(kept(model, config, 2048, UNFUSED).dense[0]) == mib * MIB
    rebuilt = TrainingConfig(
        mbs=mbs, recompute=Recompute.FULL, recompute_method=RecomputeMethod.UNIFORM
    )
    assert float(kept(model, rebuilt, 2048, UNFUSED).checkpoint[0]) == full * MIB
    # Under sequence parallelism the checkpointed input is the shard of a rank.
    sharded = rebuilt.changed(tp=8, sequence_parallel=True)
    assert float(kept(model, sharded, 2048, UNFUSED).checkpoint[0]) == full * MIB / 8


def test_flash_attention_keeps_no_scores() -> None:
    model = gpt("175b", 96, 12288, 96)
    flash = float(kept(model, TrainingConfig(), 2048).dense[0])
    unfused = float(kept(model, TrainingConfig(), 2048, UNFUSED).dense[0])
    scores = 5 * 96 * 2048 * 2048
    assert unfused - flash == scores - 4 * 96 * 2048


def test_flash_attention_makes_core_recomputation_pointless() -> None:
    """Only the statistics are saved: 4 bytes a head and token."""
    config = TrainingConfig(recompute=Recompute.SELECTIVE, recompute_modules=CORE)
    saved = kept(LLAMA_8B, TrainingConfig()).dense[0] - kept(LLAMA_8B, config).dense[0]
    assert float(saved) == 4 * 32 * 4096


def test_swiglu_llama_layer_by_hand() -> None:
    h, q, kv, f, heads = 4096, 4096, 2 * 1024, 14336, 32
    per_token = 2 * 2 * h + 2 * 2 * h + 2 * (q + kv) + 2 * q + 4 * heads + 2 * 3 * f
    assert float(kept(LLAMA_8B, TrainingConfig()).dense[0]) == 4096 * per_token


def test_mixtral_layer_by_hand() -> None:
    h, q, kv, f, experts, k = 6144, 6144, 2 * 1024, 16384, 8, 2
    attention = 8 * h + 2 * (q + kv) + 2 * q + 4 * 48
    routed = 12 * experts + k * (2 * h + 2 * h + 2 * 3 * f)
    layer = kept(MIXTRAL_8X22B, TrainingConfig(ep=8))
    assert float(layer.moe[0]) == 4096 * (attention + routed)


def test_latent_attention_layer_by_hand() -> None:
    heads, latents = 128, 2 * 1536 + 2 * 512 + 64
    attention = 8 * 7168 + 2 * latents + 2 * heads * (2 * 192 + 128) + 2 * heads * 128 + 4 * heads
    dense = attention + 2 * 3 * 18432
    assert float(kept(DEEPSEEK_V3, TrainingConfig()).dense[0]) == 4096 * dense


SELECTIVE = TrainingConfig(recompute=Recompute.SELECTIVE)


@pytest.mark.parametrize(
    ("module", "per_token"),
    [
        (RecomputeModules.LAYERNORM, 4 * 7168),
        (RecomputeModules.MLA_UP_PROJ, 2 * 128 * (2 * 192 + 128)),
        (RecomputeModules.MOE_ACT, 8 * 2 * 2048),
        (RecomputeModules.SHARED_EXPERTS, 2 * 3 * 2048),
        (RecomputeModules.MOE, 12 * 256 + 8 * (4 * 7168 + 6 * 2048) + 6 * 2048),
    ],
)
def test_selective_modules(module: RecomputeModules, per_token: int) -> None:
    plain = kept(DEEPSEEK_V3, TrainingConfig(ep=8)).moe[0]
    chosen = kept(DEEPSEEK_V3, SELECTIVE.changed(ep=8, recompute_modules=module))
    assert float(plain - chosen.moe[0]) == 4096 * per_token
    assert float(chosen.rebuilt_moe[0]) == 4096 * per_token


def test_selective_mlp_touches_dense_layers_only() -> None:
    plain = kept(DEEPSEEK_V3, TrainingConfig())
    chosen = kept(DEEPSEEK_V3, SELECTIVE.changed(recompute_modules=RecomputeModules.MLP))
    assert float(plain.dense[0] - chosen.dense[0]) == 4096 * 6 * 18432
    assert float(plain.moe[0]) == float(chosen.moe[0])


def test_operator_level_checkpointing_keeps_a_fraction() -> None:
    titan = Stack(framework=Framework.TORCHTITAN)
    plain = kept(LLAMA_8B, TrainingConfig(), stack=titan)
    chosen = kept(LLAMA_8B, SELECTIVE.changed(recompute_modules=CORE), stack=titan)
    assert 0.2 < float(chosen.dense[0] / plain.dense[0]) < 0.7


def test_saved_gemm_inputs_shrink_in_fp8() -> None:
    plain = kept(LLAMA_8B, TrainingConfig()).dense[0]
    cast = kept(LLAMA_8B, TrainingConfig(precision=Precision.FP8)).dense[0]
    assert 0.6 < float(cast / plain) < 0.95


def test_fused_dispatch_keeps_less() -> None:
    plain = kept(MIXTRAL_8X22B, TrainingConfig(ep=8)).moe[0]
    fused = kept(MIXTRAL_8X22B, TrainingConfig(ep=8, moe_dispatcher=MoeDispatcher.DEEPEP)).moe[0]
    assert float(fused) < float(plain)


@pytest.mark.parametrize(
    ("config", "workload", "expected"),
    [
        (TrainingConfig(ep=8), {}, 2.0),
        (TrainingConfig(tp=2, etp=1, ep=8, sequence_parallel=True), {}, 1.0),
        (TrainingConfig(tp=2, etp=2, ep=4, sequence_parallel=True), {}, 2.0),
        (TrainingConfig(ep=8), {"routing_imbalance": 1.5}, 3.0),
        (TrainingConfig(ep=1), {"routing_imbalance": 1.5}, 2.0),
        (TrainingConfig(ep=8), {"capacity_factor": 1.25}, 2.5),
    ],
)
def test_rows_of_the_expert_gemms(
    config: TrainingConfig, workload: dict[str, float], expected: float
) -> None:
    cases = study(MIXTRAL_8X22B, config, num_gpus=64, **workload)
    assert float(expert_tokens(cases)[0]) == expected


@pytest.mark.parametrize(
    ("model", "config", "capacity_factor", "expected"),
    [
        (DEEPSEEK_V3, TrainingConfig(ep=8), 0.0, 8 * 8),
        (DEEPSEEK_V3, TrainingConfig(ep=32), 0.0, 32 * 8),
        (DEEPSEEK_V3, TrainingConfig(ep=64), 0.0, 64 * 4),
        (MIXTRAL_8X22B, TrainingConfig(ep=8), 0.0, 8 * 1),
        (DEEPSEEK_V3, TrainingConfig(ep=8), 2.0, 2 * 8),
        (DEEPSEEK_V3, TrainingConfig(ep=8, moe_dispatcher=MoeDispatcher.DEEPEP), 0.0, 8),
        (DEEPSEEK_V3, TrainingConfig(ep=1), 0.0, 8),
    ],
)
def test_xla_holds_rows_for_every_token_of_the_group(
    model: Model, config: TrainingConfig, capacity_factor: float, expected: int
) -> None:
    """MaxText moe.py: EP * min(experts of a rank, top-k) rows a token without a capacity factor."""
    stack = Stack(framework=Framework.MAXTEXT)
    cases = study(model, config, num_gpus=64, stack=stack, capacity_factor=capacity_factor)
    assert float(expert_tokens(cases)[0]) == expected


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    sequence_parallel=st.booleans(),
    modules=st.integers(0, 127),
    cp=st.sampled_from([1, 2, 4]),
)
def test_recomputation_never_keeps_more(
    tp: int, sequence_parallel: bool, modules: int, cp: int
) -> None:
    for model in (DEEPSEEK_V3, LLAMA_8B):
        config = TrainingConfig(tp=tp, etp=1, cp=cp, sequence_parallel=sequence_parallel)
        plain = kept(model, config)
        chosen = kept(
            model,
            config.changed(
                recompute=Recompute.SELECTIVE, recompute_modules=RecomputeModules(modules)
            ),
        )
        for name in ("dense", "moe"):
            size, smaller = getattr(plain, name)[0], getattr(chosen, name)[0]
            assert 0 < smaller <= size
            rebuilt = getattr(chosen, f"rebuilt_{name}")
            assert float(size) == pytest.approx(float(smaller + rebuilt[0]))
        assert plain.checkpoint[0] < plain.dense[0]
