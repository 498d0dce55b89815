"""Explanations: where the time goes, what binds, and why another config is not better."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from search.companions import with_companions
from search.ranking import rank
from search.space import Space
from specs.config import AXES, TrainingConfig
from studies.job import Job
from studies.oracles import projection
from studies.wording import describe

PART_WORDS = {
    "gemm": "dense GEMMs",
    "expert_gemm": "expert GEMMs",
    "attention": "attention",
    "elementwise": "element-wise kernels",
    "host": "host and launches",
    "tp": "tensor-parallel communication",
    "cp": "context-parallel communication",
    "ep": "MoE dispatch and combine",
    "recompute": "recomputation",
    "output": "output layer and loss",
    "bubble": "pipeline bubble",
    "pp": "pipeline point-to-point",
    "dp": "data-parallel communication",
    "optimizer": "optimizer step",
    "constant": "constant cost of a step",
}
"""Parts of the breakdown of a step in words."""
SMALLEST_SHARE = 0.0005
"""Parts of a step below this are not told: they would read 0.0%."""
USEFUL = ("gemm", "expert_gemm", "attention", "output")
"""Parts that are the model's own arithmetic; all others are overhead that a config could avoid."""


def step_shares(projected: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(part in words, seconds, fraction of the step) of a projection, largest first; those of
    SMALLEST_SHARE and more."""
    parts: Mapping[str, float] = projected["throughput"]["breakdown_s"]
    total = sum(parts.values())
    rows = [(PART_WORDS.get(name, name), value, value / total) for name, value in parts.items()]
    return sorted((row for row in rows if row[2] >= SMALLEST_SHARE), key=lambda row: -row[1])


def bottleneck(projected: Mapping[str, Any]) -> str:
    """What holds the config back: the largest overhead, or compute, and how full memory is."""
    parts: Mapping[str, float] = projected["throughput"]["breakdown_s"]
    memory = projected["memory"]
    total = sum(parts.values())
    overhead = {name: value for name, value in parts.items() if name not in USEFUL}
    largest = max(overhead, key=lambda name: overhead[name])
    share = overhead[largest] / total
    useful = sum(parts.get(name, 0.0) for name in USEFUL) / total
    worst = max(memory["stages"], key=lambda stage: stage["total_gib"])
    full = memory["peak_gib"] / memory["capacity_gib"]
    return (
        f"{useful:.0%} of the step is the model's arithmetic; the largest overhead is "
        f"{PART_WORDS.get(largest, largest)} ({share:.0%}); memory is {full:.0%} full on stage "
        f"{worst['stage']}."
    )


NOTABLE_CHANCE = 0.02
"""Difference of P(fits) from which it is named among the reasons."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Why a config is not the best: ``verdict`` is illegal, memory, slower or faster."""

    config: TrainingConfig
    verdict: str
    sentences: tuple[str, ...]
    projection: dict[str, Any] | None

    def as_json(self, best_with_it: str) -> dict[str, Any]:
        """The answer as JSON; ``best_with_it`` is what ``best_with`` says."""
        return {
            "config": self.config.as_labels(),
            "verdict": self.verdict,
            "sentences": [*self.sentences, best_with_it],
            "projection": self.projection,
        }


def why_not(job: Job, anchor: TrainingConfig, changes: Mapping[str, str]) -> WhyNot:
    """Why ``anchor`` with some axes changed is not better than ``anchor``.

    Raises:
        InputError: an axis or a value is not known.
    """
    values = TrainingConfig.from_labels(changes)
    config = with_companions(anchor, {name: getattr(values, name) for name in changes})
    reasons = job.why_illegal(config)
    if reasons:
        return WhyNot(config, "illegal", tuple(reasons), None)
    if config == anchor:
        return WhyNot(config, "same", ("it is the same config.",), projection(job, config))
    there, here = projection(job, config), projection(job, anchor)
    followed = [
        f"{name} {AXES[name].label(getattr(config, name))}"
        for name in AXES
        if name not in changes and getattr(config, name) != getattr(anchor, name)
    ]
    sentences = [f"it also needs {', '.join(followed)}."] if followed else []
    memory = there["memory"]
    if not memory["fits"]:
        gap = memory["peak_gib"] - memory["capacity_gib"]
        worst = max(memory["stages"], key=lambda stage: stage["total_gib"])
        sentences.append(
            f"it does not fit: {memory['peak_gib']:.1f} GiB on stage {worst['stage']} of "
            f"{memory['capacity_gib']:.0f} GiB, {gap:.1f} GiB too much "
            f"(P(fits) {memory['fit_probability']:.0%})."
        )
        sentences.append(_speed(there, here))
        return WhyNot(config, "memory", tuple(sentences), there)
    chance, best_chance = memory["fit_probability"], here["memory"]["fit_probability"]
    if best_chance - chance > NOTABLE_CHANCE:
        sentences.append(
            f"it fits with {chance:.0%} only, and a run out of memory is worth nothing; the best "
            f"fits with {best_chance:.0%}."
        )
    faster = there["throughput"]["step_time_s"] < here["throughput"]["step_time_s"]
    return WhyNot(
        config, "faster" if faster else "slower", (*sentences, _speed(there, here)), there
    )


def best_with(job: Job, best: TrainingConfig, changes: Mapping[str, str]) -> str:
    """How the best config that keeps to ``changes`` compares with ``best``, as one sentence.

    Raises:
        InputError: an axis or a value is not known.
    """
    values = TrainingConfig.from_labels(changes)
    pinned = {name: (getattr(values, name),) for name in changes}
    settings = job.experiment.settings
    narrowed = replace(settings, axes={**settings.axes, **pinned})
    space = Space.of(replace(job.experiment, settings=narrowed), job.cluster, full=True)
    words = ", ".join(f"{name} {value}" for name, value in changes.items())
    capacity_gib = job.cluster.gpu.hbm_gib.value
    ranking = rank(space, job, capacity_gib, keep=1)
    if ranking.leanest is None:
        return f"no config with {words} is legal: {space.why_empty()}."
    if not len(ranking):
        return (
            f"no config with {words} fits: the leanest needs {ranking.missing_gib:.1f} GiB more "
            f"than the {capacity_gib:.0f} GiB of a GPU."
        )
    rival = ranking.table.config(0)
    speed = _speed(projection(job, rival), projection(job, best)).removeprefix("it is ")
    return f"the best config with {words} is {describe(rival)}: {speed}"


def _speed(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """How much slower or faster, and the parts of the step that make the difference."""
    new, old = there["throughput"], here["throughput"]
    ratio = new["tokens_per_s_per_gpu"] / old["tokens_per_s_per_gpu"] - 1
    deltas = {
        name: value - old["breakdown_s"].get(name, 0.0)
        for name, value in new["breakdown_s"].items()
    }
    main = sorted(deltas, key=lambda name: -abs(deltas[name]))[:3]
    moved = ", ".join(
        f"{PART_WORDS.get(name, name)} {deltas[name]:+.3g} s"
        for name in main
        if abs(deltas[name]) > 0.002 * old["step_time_s"]
    )
    word = "slower" if ratio < 0 else "faster"
    text = f"it is {abs(ratio):.1%} {word}: {new['tokens_per_s_per_gpu']:,.0f} instead of "
    text += f"{old['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU"
    return f"{text} ({moved})." if moved else f"{text}."
