"""Whether a bundle computes what the model computes, in two tiers.

Tier 1 runs the lossless tools of a bundle in float32 against plain float32: rounding explains 1e-5
and no more, so faults that would hide under 16-bit rounding show. Tier 2 runs the bundle in its own
format against float32; what it may differ is measured: as much as a few times the difference of the
plain model in that format. Tools that lose precision by design get a budget that the user states.

All checks are teacher-forced logits of prefill and of cached decoding. Greedy text, top-1 agreement
or the loss alone decide nothing: they miss faults or refuse rounding. Absolute tolerances decide
nothing either: between random and trained weights they differ a hundredfold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from studies.toolbox.generation import Generator
from studies.toolbox.workload import Generation

Tensor = Any

TIER1_RELATIVE_RMS = 1e-5
"""Measured: lossless transforms differ by 2e-6 or less in float32, a 5% scaling by 5e-3."""
TIER2_KL, TIER2_RELATIVE_RMS = 10.0, 4.0
"""Multiples of the plain model's rounding. Measured: transforms without fault reach 5.9 and 2.4 at
most, structural faults begin at 11.7 and 3.5 (random and trained weights)."""
LOSSY_REFERENCE = "bfloat16"
"""Format whose rounding is the unit of the budget for lossy tools."""
NOT_A_NUMBER = 9.0
"""Score of outputs that are not finite."""


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts of a check and how many tokens are decoded after them."""

    batch: int
    tokens: int
    decoded: int
    ragged: bool
    seed: int

    @property
    def name(self) -> str:
        """``3x40+8 ragged, seed 1``."""
        ragged = " ragged" if self.ragged else ""
        return f"{self.batch}x{self.tokens}+{self.decoded}{ragged}, seed {self.seed}"


CASES = (
    Case(2, 17, 6, False, 0),
    Case(3, 40, 8, True, 1),
    Case(3, 40, 8, True, 2),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far logits are from the reference: mean KL divergence in nats and relative RMS."""

    kl: float
    relative_rms: float

    @property
    def finite(self) -> bool:
        """Whether all logits were numbers."""
        return math.isfinite(self.kl) and math.isfinite(self.relative_rms)


Differences = dict[str, Difference]
"""By case and part, such as ``3x40+8 ragged, seed 1: decode``."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The result of the checks: ``score`` is log10 of the worst value over its limit."""

    score: float
    sentence: str

    @property
    def passed(self) -> bool:
        """Whether every value is within its limit."""
        return self.score <= 0


def case_logits(generator: Generator, case: Case, vocab_size: int, device: str) -> Any:
    """Logits of every real token: float32 arrays ``prefill`` and ``decode``, (tokens, vocabulary).

    Decoded tokens are given, not chosen, so that every implementation sees the same ones.
    """
    import torch

    work = Generation(case.batch, case.tokens, case.decoded + 1, case.ragged, case.seed)
    ids, mask = (torch.from_numpy(array).to(device) for array in work.prompts(vocab_size))
    forced = np.random.default_rng([case.seed, 8]).integers(
        0, vocab_size, (case.batch, case.decoded), dtype=np.int64
    )
    tokens = torch.from_numpy(forced).to(device)
    with torch.inference_mode():
        generator.start(ids, mask, case.decoded)
        prefill = generator.prefill(every=True)[:, -case.tokens :][mask.bool()].float().cpu()
        steps = [
            generator.step(tokens[:, index : index + 1])[:, -1].float().cpu()
            for index in range(case.decoded)
        ]
    return {"prefill": prefill.numpy(), "decode": torch.cat(steps).numpy()}


def difference(logits: Any, reference: Any) -> Difference:
    """The difference of two float arrays (tokens, vocabulary), in float64 token by token."""
    if not np.isfinite(logits).all():
        return Difference(math.nan, math.nan)
    squares = scale = kl = 0.0
    for row, target in zip(logits.astype(np.float64), reference.astype(np.float64), strict=True):
        squares += float(((row - target) ** 2).sum())
        scale += float((target**2).sum())
        log_p, log_q = _log_softmax(target), _log_softmax(row)
        kl += float((np.exp(log_p) * (log_p - log_q)).sum())
    return Difference(max(kl / len(reference), 0.0), math.sqrt(squares / max(scale, 1e-300)))


def _log_softmax(row: Any) -> Any:
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum())


def write_reference(generator: Generator, vocab_size: int, device: str, folder: Path) -> None:
    """Keeps the logits of all cases as the reference."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, case in enumerate(CASES):
        for part, logits in case_logits(generator, case, vocab_size, device).items():
            np.save(folder / f"{index}-{part}.npy", logits)


def compare_with_reference(
    generator: Generator, vocab_size: int, device: str, folder: Path
) -> Differences:
    """The differences of all cases and parts from the kept reference."""
    found: Differences = {}
    for index, case in enumerate(CASES):
        for part, logits in case_logits(generator, case, vocab_size, device).items():
            reference = np.load(folder / f"{index}-{part}.npy", mmap_mode="r")
            found[f"{case.name}: {part}"] = difference(logits, reference)
    return found


def tier1(twin: Differences) -> Gate:
    """The gate of the float32 twin of lossless tools."""
    return _worst(
        "in float32",
        {name: {"relative RMS": (d.relative_rms, TIER1_RELATIVE_RMS)} for name, d in twin.items()},
        twin,
    )


def tier2(found: Differences, budget: Differences, kl_multiple: float = TIER2_KL) -> Gate:
    """The gate of a bundle in its own format against a measured budget.

    The limit on the relative RMS grows with the square root of that on KL, which is quadratic in
    small differences.
    """
    rms_multiple = TIER2_RELATIVE_RMS * math.sqrt(kl_multiple / TIER2_KL)
    limits = {
        name: {
            "KL": (d.kl, kl_multiple * budget[name].kl),
            "relative RMS": (d.relative_rms, rms_multiple * budget[name].relative_rms),
        }
        for name, d in found.items()
    }
    return _worst("in its own format", limits, found)


def worst_of(gates: list[Gate]) -> Gate:
    """The gate with the highest score."""
    return max(gates, key=lambda gate: gate.score)


def _worst(
    where: str, limits: Mapping[str, Mapping[str, tuple[float, float]]], found: Differences
) -> Gate:
    """The value that is furthest beyond its limit."""
    for name, item in found.items():
        if not item.finite:
            return Gate(NOT_A_NUMBER, f"{where}: logits are not finite ({name}).")
    score, sentence = -math.inf, ""
    for name, values in limits.items():
        for metric, (value, limit) in values.items():
            over = math.log10(max(value, 1e-300) / max(limit, 1e-300))
            if over > score:
                score = over
                sentence = f"{where}: {metric} {value:.1e}, limit {limit:.1e} ({name})."
    return Gate(min(score, NOT_A_NUMBER), sentence)
