"""The answer: what to run, what to expect of it, what it saves and where its time and memory go."""

from __future__ import annotations

from typing import Any

from search.shortlist import NOTICEABLE
from specs.config import TrainingConfig
from specs.figures import percent
from studies.explanation import PART_WORDS, bottleneck, step_shares
from studies.pictures.gantt import gantt
from studies.pictures.memory import PARTS, memory_by_stage
from studies.pictures.step import step_parts
from studies.reference import Reference
from studies.report.facts import Answer, StudyFacts
from studies.report.html import Markup, bullets, folded, join, paragraphs, table, tag
from studies.report.page import figure
from studies.report.savings import (
    Cost,
    cost,
    price_of,
    reference_of,
    tokens_of,
)
from studies.report.timetable import Timetable, timetable
from studies.wording import TRUST, describe, difference, short


def what_to_run(facts: StudyFacts, tokens: float | None, usd: float | None) -> Markup:
    """The config, its numbers, the savings and what to be careful about."""
    best, baseline = facts.best, facts.baseline
    speed, (low, high) = best.tokens_per_s_per_gpu, best.interval90
    trust = str(best.projection["throughput"]["trust"])
    tiles = [
        (f"{speed:,.0f}", "tokens/s/GPU", f"90%: {low:,.0f} to {high:,.0f}"),
        (
            f"{best.memory['peak_gib']:.0f} of {best.memory['capacity_gib']:.0f}",
            "GiB on the fullest stage",
            f"P(fits) {chance(best.memory['fit_probability'])}",
        ),
        (
            f"{best.projection['throughput']['step_time_s']:.3g} s",
            "a step",
            f"MFU {best.projection['throughput']['mfu']:.1%} {_peak(facts)}",
        ),
        (chance(best.probability_best), "P(best)", "of all candidates, over joint draws"),
    ]
    return join(
        [
            config_list(best.config, baseline.config if baseline else None),
            tag("div", *(tile(*parts) for parts in tiles), class_="tiles"),
            paragraphs(
                bottleneck(best.projection),
                f"Trust: {trust}; {TRUST.get(trust, trust)}.",
                *_shrunk(facts),
            ),
            _others(facts),
            _savings(facts, tokens, usd),
            cautions(facts),
        ]
    )


def _shrunk(facts: StudyFacts) -> list[str]:
    """The best of many noisy estimates is too good to be true: what to expect of it."""
    shrunk = facts.result.get("shrunk_tokens_per_s_per_gpu")
    if not shrunk:
        return []
    return [
        "It was picked as the best of many estimates, which flatters it: allowing for that, "
        f"expect {shrunk:,.0f} tokens/s/GPU."
    ]


def _peak(facts: StudyFacts) -> str:
    """The peak that MFU is a share of: that of the format of the GEMMs."""
    gemm_format, gpu = facts.best.config.precision.gemm_format, facts.job.cluster.gpu
    return f"of {gpu.peak_flops[gemm_format].value / 1e12:,.0f} TFLOP/s ({gemm_format})"


def _others(facts: StudyFacts) -> Markup:
    """The best config in the number format of the baseline, and one that may be faster still."""
    best, rows = facts.best, []
    if kept := facts.result.get("in_baseline_format"):
        answer = Answer.of(kept)
        name = f"best in {answer.config.precision.label}"
        rows.append(_other_row(name, answer, describe(answer.config)))
    rival = Answer.of(facts.result["optimum"])
    if rival.tokens_per_s_per_gpu >= (1 + NOTICEABLE) * best.tokens_per_s_per_gpu:
        changed = difference(best.config, rival.config)
        rows.append(_other_row("fastest that may fit", rival, changed))
    header = ("config", "tokens/s/GPU", "GiB", "P(fits)", "P(best)", "axes")
    return table("Configs beside the best", header, rows, numeric=range(1, 5)) if rows else Markup()


def _other_row(name: str, answer: Answer, axes: str) -> tuple[Any, ...]:
    return (
        name,
        f"{answer.tokens_per_s_per_gpu:,.0f}",
        f"{answer.memory['peak_gib']:.1f}",
        chance(answer.memory["fit_probability"]),
        chance(answer.probability_best),
        tag("code", axes),
    )


def chance(probability: float) -> str:
    """A probability without false certainty."""
    if probability > 0.995:
        return ">99%"
    return "<1%" if probability < 0.005 else f"{probability:.0%}"


def tile(value: str, name: str, more: str) -> Markup:
    """A number that stands out."""
    return tag(
        "div",
        tag("span", value, class_="value"),
        tag("span", name, class_="name"),
        tag("span", more, class_="more"),
        class_="tile",
    )


def config_list(config: TrainingConfig, before: TrainingConfig | None) -> Markup:
    """The axes of a config that are not at their default; those that differ stand out."""
    labels, default = config.as_labels(), TrainingConfig().as_labels()
    held = before.as_labels() if before else labels
    rows = []
    for axis, label in labels.items():
        changed = held[axis] != label
        if changed or label != default[axis] or axis in ("tp", "pp", "cp", "ep", "mbs"):
            words = f"{axis} {short(held[axis])} → {label}" if changed else f"{axis} {label}"
            rows.append(tag("li", words, class_="changed" if changed else None))
    return tag("ul", *rows, class_="config")


def cautions(facts: StudyFacts) -> Markup:
    """What a careful reader must know before running the best config."""
    best, baseline = facts.best, facts.baseline
    found: list[str] = []
    if best.memory["fit_probability"] < 0.9:
        safer = [a for a in facts.shortlist if a.memory["fit_probability"] >= 0.9]
        instead = (
            f" Number {facts.shortlist.index(safer[0]) + 1} of the shortlist surely fits, at "
            f"{safer[0].tokens_per_s_per_gpu:,.0f} tokens/s/GPU."
            if safer
            else ""
        )
        found.append(
            "It may run out of memory: P(fits) is "
            f"{chance(best.memory['fit_probability'])}.{instead}"
        )
    if baseline is None:
        found.append("The baseline of the input cannot run on this cluster, so nothing is saved.")
    elif not baseline.memory["fits"]:
        found.append(
            f"The baseline is projected not to fit ({baseline.memory['peak_gib']:.0f} of "
            f"{baseline.memory['capacity_gib']:.0f} GiB), so its throughput is one that no run "
            "reaches; savings are told against a config that does fit."
        )
    if not facts.current:
        found.append(
            "This study was projected with other constants than those that ship now: those of "
            "another release, or what a profile or measured runs taught. Its trials stand as they "
            "were; what is computed for this report (pipeline, what could tip it) is of now."
        )
    return join(tag("p", sentence, class_="warning") for sentence in found)


def _savings(facts: StudyFacts, asked: float | None, usd: float | None) -> Markup:
    """GPU-hours, days and money for a token count, against the reference."""
    job, best = facts.job, facts.best
    tokens, origin = tokens_of(job, asked)
    price, reference = price_of(job, usd), reference_of(facts)
    gpus = job.cluster.num_gpus
    mine = cost(best.tokens_per_s_per_gpu, tokens, gpus, price)
    rows = [_cost_row("best", best.tokens_per_s_per_gpu, mine)]
    lead = Markup("")
    if reference is not None:
        theirs = cost(reference.tokens_per_s_per_gpu, tokens, gpus, price)
        rows.append(_cost_row(reference.words, reference.tokens_per_s_per_gpu, theirs))
        rows.append(_saved_row(mine, theirs))
        lead = _lead(best, reference, mine, theirs)
    header = ("config", "tokens/s/GPU", "GPU-hours", "days", *(("USD",) if price else ()))
    paid = (
        f"{price.usd_per_gpu_hour:g} USD a GPU-hour ({price.source})"
        if price
        else "no price is known; --price names one"
    )
    return join(
        [
            lead,
            table(
                f"For {tokens:.3g} tokens ({origin}) on {gpus:,} GPUs; {paid}",
                header,
                rows,
                numeric=range(1, 5),
            ),
        ]
    )


def _lead(best: Answer, reference: Reference, mine: Cost, theirs: Cost) -> Markup:
    saved = theirs.gpu_hours - mine.gpu_hours
    money = f" and {theirs.usd - mine.usd:,.0f} USD" if mine.usd and theirs.usd else ""
    word = "saves" if saved >= 0 else "costs"
    gain = percent(reference.gain(best.tokens_per_s_per_gpu), signed=True, digits=0)
    return tag(
        "p",
        tag("strong", f"{gain} throughput"),
        f" over {reference.words}: it {word} {abs(saved):,.0f} GPU-hours{money}. Both are "
        "projections of one model, whose errors they largely share.",
    )


def _cost_row(name: str, speed: float, spent: Cost) -> tuple[str, ...]:
    usd = () if spent.usd is None else (f"{spent.usd:,.0f}",)
    return name, f"{speed:,.0f}", f"{spent.gpu_hours:,.0f}", f"{spent.days:,.1f}", *usd


def _saved_row(mine: Cost, theirs: Cost) -> tuple[str, ...]:
    usd = () if mine.usd is None or theirs.usd is None else (f"{theirs.usd - mine.usd:,.0f}",)
    hours, days = theirs.gpu_hours - mine.gpu_hours, theirs.days - mine.days
    return "saved", "", f"{hours:,.0f}", f"{days:,.1f}", *usd


def compared(facts: StudyFacts) -> dict[str, Answer]:
    """Baseline, where it is legal, and best, by name."""
    return {"baseline": facts.baseline, "best": facts.best} if facts.baseline else {
        "best": facts.best
    }  # fmt: skip


def memory_section(facts: StudyFacts) -> Markup:
    """What fills each stage of the baseline and of the best config."""
    shown = {name: answer.memory["stages"] for name, answer in compared(facts).items()}
    best = facts.best.memory
    says = (
        f"Memory of each pipeline stage against {facts.capacity_gib:.0f} GiB. The fullest stage of "
        f"the best config holds {best['peak_gib']:.0f} GiB as the driver reports it "
        f"({best['reserved_gib']:.0f} reserved, {best['allocated_gib']:.0f} allocated by PyTorch)."
    )
    header = ("stage", *PARTS, "total")
    return join(
        [
            figure("picture-memory", memory_by_stage(shown, facts.capacity_gib), says),
            table(
                "GiB by stage of the best config",
                header,
                [_stage_row(stage) for stage in best["stages"]],
                numeric=range(1, len(header)),
            ),
        ]
    )


def _stage_row(stage: Any) -> list[str]:
    return [f"{stage['stage']}", *(f"{stage[f'{name}_gib']:z.1f}" for name in (*PARTS, "total"))]


def step_section(facts: StudyFacts) -> Markup:
    """Where the time of a step goes."""
    parts = {
        name: answer.projection["throughput"]["breakdown_s"]
        for name, answer in compared(facts).items()
    }
    rows = [
        (name, f"{seconds:.3g}", f"{share:.1%}")
        for name, seconds, share in step_shares(facts.best.projection)
    ]
    says = (
        "Seconds of a training step by what they are spent on. Communication and pipeline parts "
        "are what is not hidden behind computation."
    )
    return join(
        [
            figure("picture-step", step_parts(parts, PART_WORDS), says),
            folded(
                "Every part of the best config's step",
                table("Parts of a step", ("part", "s", "share"), rows, numeric=(1, 2)),
            ),
        ]
    )


def pipeline_section(facts: StudyFacts) -> Markup:
    """The pipeline of baseline and best, task by task."""
    drawn = {
        name: timetable(facts.job, answer.config)
        for name, answer in compared(facts).items()
        if answer.config.pp > 1
    }
    if not drawn:
        return paragraphs("One pipeline stage: there is no pipeline to draw.")
    end = max(line.end_s for line in drawn.values())
    return join(
        figure(
            f"picture-pipeline-{name}",
            gantt(line.slots, end, line.part),
            _pipeline_words(name, compared(facts)[name], line),
        )
        for name, line in drawn.items()
    )


def _pipeline_words(name: str, answer: Answer, line: Timetable) -> str:
    config = answer.config
    chunks = f", {config.vpp} chunks a rank" if config.vpp > 1 else ""
    return (
        f"{name.capitalize()}: {config.schedule.label} over {config.pp} ranks{chunks}, "
        f"{line.part}. Ranks are idle {line.idle_fraction:.1%} of the time. Simulated event by "
        "event; transfers between ranks are not drawn. Where a rank has too many tasks to tell "
        "apart, those of one kind and chunk in a row are one block, as are those that take turns."
    )


def notes_of(facts: StudyFacts) -> Markup:
    """What the reader of the input assumed."""
    return bullets(note.sentence for note in facts.notes) if facts.notes else Markup("")
