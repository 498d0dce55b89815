"""The correctness gate: structural faults are rejected, transforms without fault pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from studies.toolbox.correctness import (
    CASES,
    Difference,
    Differences,
    Gate,
    case_logits,
    difference,
    tier1,
    tier2,
    worst_of,
)
from studies.toolbox.generation import Generator
from tests.studies.toolbox.tiny import tiny_model

pytestmark = pytest.mark.usefixtures("needs_torch")
VOCABULARY = 512
LOSSY_BUDGET = 100.0


@cache
def reference() -> dict[str, Any]:
    return logits_of(Generator(tiny_model()))


def logits_of(generator: Generator) -> dict[str, Any]:
    found = {}
    for case in CASES:
        for part, logits in case_logits(generator, case, VOCABULARY, "cpu").items():
            found[f"{case.name}: {part}"] = logits
    return found


def differences(generator: Generator) -> Differences:
    found = logits_of(generator)
    return {name: difference(found[name], reference()[name]) for name in found}


@cache
def budget(dtype: str) -> Differences:
    return differences(Generator(tiny_model(dtype)))


def gate_of(make: Callable[[str], Generator], dtype: str) -> Gate:
    """Both tiers of a transform that claims to lose nothing."""
    return worst_of(
        [tier1(differences(make("float32"))), tier2(differences(make(dtype)), budget(dtype))]
    )


# ------------------------------------------------------------------------------------ faults


class LostRows(Generator):
    """Forgets the first four tokens of the prompt after prefill."""

    def prefill(self, every: bool = False) -> Any:
        logits = super().prefill(every)
        for layer in self.cache.layers:
            layer.keys[:, :, -8:-4] = 0
            layer.values[:, :, -8:-4] = 0
        return logits


class PositionJump(Generator):
    """Positions jump by one in the middle of the prompt."""

    def start(self, ids: Any, mask: Any, new_tokens: int) -> None:
        super().start(ids, mask, new_tokens)
        self._positions[:, self.fed_tokens // 2 :] += 1


class UnmaskedPadding(Generator):
    """Pads and attends to the padding."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, pad_multiple=64)

    def start(self, ids: Any, mask: Any, new_tokens: int) -> None:
        super().start(ids, mask, new_tokens)
        self._mask = None


def skipped_layer(dtype: str) -> Generator:
    model = tiny_model(dtype)
    del model.model.layers[0]
    model.config.num_hidden_layers = 1
    model.model.layers[0].self_attn.layer_idx = 0
    return Generator(model)


def non_causal(dtype: str) -> Generator:
    import torch

    model = tiny_model(dtype)
    for layer in model.model.layers:
        inner = layer.self_attn.forward

        def forward(*args: Any, inner: Any = inner, **kwargs: Any) -> Any:
            mask = kwargs.get("attention_mask")
            if mask is not None:
                # Only padding stays hidden: a column that the last row does not see.
                kwargs["attention_mask"] = torch.where(mask[..., -1:, :] < 0, mask, 0.0).to(mask)
            return inner(*args, **kwargs)

        layer.self_attn.forward = forward
    return Generator(model)


def rolled_kv_heads(dtype: str) -> Generator:
    model = tiny_model(dtype)
    attention = model.model.layers[1].self_attn
    for projection in (attention.k_proj, attention.v_proj):
        projection.weight.data = projection.weight.data.roll(32, 0)
        projection.bias.data = projection.bias.data.roll(32, 0)
    return Generator(model)


def scaled_projection(dtype: str) -> Generator:
    model = tiny_model(dtype)
    model.model.layers[1].mlp.down_proj.weight.data *= 1.05
    return Generator(model)


STRUCTURAL: dict[str, Callable[[str], Generator]] = {
    "skipped layer": skipped_layer,
    "lost cache rows": lambda dtype: LostRows(tiny_model(dtype)),
    "non-causal mask": non_causal,
    "position jump": lambda dtype: PositionJump(tiny_model(dtype)),
    "rolled KV heads": rolled_kv_heads,
    "unmasked padding": lambda dtype: UnmaskedPadding(tiny_model(dtype)),
    "x1.05 projection": scaled_projection,
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("fault", STRUCTURAL)
def test_every_structural_fault_is_rejected(fault: str, dtype: str) -> None:
    gate = gate_of(STRUCTURAL[fault], dtype)
    assert not gate.passed, gate.sentence


@pytest.mark.parametrize("fault", sorted(set(STRUCTURAL) - {"x1.05 projection"}))
def test_all_but_a_small_scaling_show_in_16_bits_too(fault: str) -> None:
    assert not tier2(differences(STRUCTURAL[fault]("bfloat16")), budget("bfloat16")).passed


def test_a_small_scaling_needs_the_float32_tier() -> None:
    assert tier2(differences(scaled_projection("bfloat16")), budget("bfloat16")).passed
    assert not tier1(differences(scaled_projection("float32"))).passed


# ------------------------------------------------------------------------------------ benign

BENIGN: dict[str, Callable[[str], Generator]] = {
    "nothing": lambda dtype: Generator(tiny_model(dtype)),
    "sdpa": lambda dtype: Generator(tiny_model(dtype, "sdpa")),
    "static cache": lambda dtype: Generator(tiny_model(dtype), cache="static"),
    "masked padding": lambda dtype: Generator(tiny_model(dtype), pad_multiple=64),
    "sdpa, static cache, padding": lambda dtype: Generator(
        tiny_model(dtype, "sdpa"), cache="static", pad_multiple=64
    ),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("transform", BENIGN)
def test_no_transform_without_fault_is_rejected(transform: str, dtype: str) -> None:
    gate = gate_of(BENIGN[transform], dtype)
    assert gate.passed, gate.sentence


def test_a_static_cache_is_used_again_without_what_it_held() -> None:
    generator = Generator(tiny_model(), cache="static")
    first, second = logits_of(generator), logits_of(generator)
    for name, logits in first.items():
        np.testing.assert_array_equal(logits, second[name])


def int8(dtype: str) -> Generator:
    from studies.toolbox.int8_linear import to_int8

    model = tiny_model(dtype)
    to_int8(model)
    return Generator(model)


def int4(dtype: str) -> Generator:
    import torch

    model = tiny_model(dtype)
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            scale = module.weight.abs().amax(1, keepdim=True) / 7
            module.weight.data = (module.weight / scale).round().clamp(-7, 7) * scale
    return Generator(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_weights_pass_a_budget_that_int4_weights_break(dtype: str) -> None:
    unit = budget("bfloat16")
    assert tier2(differences(int8(dtype)), unit, LOSSY_BUDGET).passed
    assert not tier2(differences(int4(dtype)), unit, LOSSY_BUDGET).passed


def test_int8_weights_are_no_lossless_tool() -> None:
    assert not tier1(differences(int8("float32"))).passed


# ----------------------------------------------------------------------------------- metrics


def test_the_metrics_of_known_logits() -> None:
    target = np.log(np.array([[0.5, 0.25, 0.25]]))
    other = np.log(np.array([[0.25, 0.5, 0.25]]))
    found = difference(other, target)
    assert found.kl == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2))
    assert found.relative_rms == pytest.approx(
        np.linalg.norm(other - target) / np.linalg.norm(target)
    )
    assert difference(target, target) == Difference(0.0, 0.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_fail_every_gate(value: float) -> None:
    logits = np.zeros((2, 3))
    logits[1, 1] = value
    found = {"case": difference(logits, np.zeros((2, 3)))}
    assert not tier1(found).passed
    assert not tier2(found, {"case": Difference(1.0, 1.0)}).passed
