"""What a study shows to a model: its job, its trials and what they taught, as ``StudyView``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from search.attribution import Attribution, attribute
from search.llm.advice import Advice, notes_of
from search.llm.messages import Breakdown, StudyView, TrialRow
from specs.config import AXES, TrainingConfig
from specs.figures import percent
from studies.explanation import PART_WORDS
from studies.job import Job
from studies.wording import gain_in_words

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "overhead")
"""Components of a stage's memory in a projection's JSON (``surrogate.projection``)."""
MOST_FATES = 16
SHOWN_SYNERGY = 0.005


def view(
    job: Job,
    axes: Mapping[str, Sequence[Any]],
    trials: Sequence[TrialRow],
    best: TrainingConfig,
    projections: Mapping[str, Mapping[str, Any]],
    refused: Sequence[tuple[Mapping[str, Any], Sequence[str]]],
    advice: Sequence[Advice],
    hints: Sequence[str],
) -> StudyView:
    """The study as a model sees it.

    Args:
        job: what is trained where.
        axes: values of each axis that the study tries.
        trials: so far.
        best: the best of them.
        projections: name -> projection JSON of configs whose breakdown is shown.
        refused: (config, reasons) of illegal proposals.
        advice: earlier rounds of the model.
        hints: of the user, without secrets.
    """
    baseline = job.baseline.as_labels()
    changed = best != job.baseline and not job.why_illegal(job.baseline)
    return StudyView(
        job=job_facts(job),
        axes={name: [AXES[name].label(value) for value in axes[name]] for name in axes},
        meanings={name: axis.meaning for name, axis in AXES.items()},
        baseline=baseline,
        best=best.as_labels(),
        trials=trials,
        breakdowns=[breakdown(name, held) for name, held in projections.items()],
        effects=(
            effects(attribute(job.baseline, best, job.project, job.is_legal)) if changed else []
        ),
        refused=[(_changes(baseline, config), why[0]) for config, why in refused if why],
        fate=[line for held in advice for line in _fate(held, trials)][-MOST_FATES:],
        notes=notes_of(advice),
        hints=hints,
    )


def job_facts(job: Job) -> dict[str, Any]:
    """Architecture, batch, cluster and stack, as numbers and names."""
    experiment, cluster, gpu = job.experiment, job.cluster, job.cluster.gpu
    workload, stack = experiment.workload, experiment.stack
    model = workload.model
    facts: dict[str, Any] = {
        "model": model.name,
        "parameters_billions": round(model.total_parameters() / 1e9, 3),
        "layers": model.num_layers,
        "hidden": model.hidden_size,
        "ffn_hidden": model.ffn_hidden_size,
        "heads": model.num_attention_heads,
        "kv_heads": model.num_query_groups,
        "vocabulary": model.vocab_size,
    }
    if model.is_moe:
        facts |= {
            "experts": model.num_experts,
            "experts_per_token": model.moe_topk,
            "expert_ffn_hidden": model.moe_ffn_hidden_size,
            "shared_expert_ffn": model.shared_expert_ffn,
            "dense_layers": model.num_layers - model.num_moe_layers,
        }
    return facts | {
        "attention": "MLA" if model.mla is not None else "GQA",
        "sequence": workload.seq_len,
        "global_batch_sequences": workload.global_batch_size,
        "kind": workload.kind.label,
        "gpu": gpu.name,
        "gpus": cluster.num_gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "memory_gib_per_gpu": float(gpu.hbm_gib.value),
        "peak_bf16_tflops": float(gpu.peak_flops["bf16"].value / 1e12),
        "hbm_tb_per_s": float(gpu.hbm_bytes_per_s.value / 1e12),
        "gb_per_s_within_node": float(gpu.link_bytes_per_s.value / 1e9),
        "gb_per_s_between_nodes": float(gpu.nic_bytes_per_s.value / 1e9),
        "framework": f"{stack.framework_name} {stack.version}".strip(),
    }


def breakdown(name: str, projected: Mapping[str, Any]) -> Breakdown:
    """Where the step and the memory of a projected config go."""
    speed, memory = projected["throughput"], projected["memory"]
    fullest = max(memory["stages"], key=lambda stage: stage["total_gib"])
    return Breakdown(
        name=name,
        step_s={PART_WORDS.get(part, part): s for part, s in speed["breakdown_s"].items()},
        memory_gib={part: float(fullest[f"{part}_gib"]) for part in PARTS},
        capacity_gib=float(memory["capacity_gib"]),
    )


def effects(attribution: Attribution) -> list[str]:
    """What each change brings alone and on top of the others, and what pairs bring together."""
    lines = [
        f"{effect.change}: alone {gain_in_words(effect.alone)}"
        + (" (does not fit alone)" if effect.alone_fits is False else "")
        + f", on top of the others {gain_in_words(effect.last)}"
        for effect in attribution.effects
    ]
    lines += [
        f"{pair.first} with {pair.second}: together {percent(pair.gain, signed=True)} beyond the "
        "product of both"
        for pair in attribution.synergies
        if abs(pair.gain) >= SHOWN_SYNERGY
    ]
    return lines


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    changed = [f"{axis}={value}" for axis, value in after.items() if before.get(axis) != value]
    return " ".join(changed) or "the baseline"


def _fate(advice: Advice, trials: Sequence[TrialRow]) -> list[str]:
    """What became of the proposals of a round."""
    baseline = next((t.tokens_per_s_per_gpu for t in trials if t.tokens_per_s_per_gpu), None)
    found = {_identity(trial.config): trial for trial in trials}
    lines = []
    for proposal in advice.proposals:
        words = " ".join(f"{axis}={value}" for axis, value in proposal.proposed.items())
        expected = proposal.expected_effect
        line = (
            f"{words}: expected {'nothing' if expected is None else percent(expected, signed=True)}"
        )
        trial = found.get(_identity(proposal.config or {}))
        if trial is not None and trial.tokens_per_s_per_gpu and baseline:
            line += f", got {percent(trial.tokens_per_s_per_gpu / baseline - 1, signed=True)}"
            line += " but does not fit" if (trial.over_gib or 0.0) > 0 else ""
        else:
            line += f", {proposal.verdict}" + (f": {proposal.why}" if proposal.why else "")
        lines.append(line)
    return lines


def _identity(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((axis, str(value)) for axis, value in config.items()))
