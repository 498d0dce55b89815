"""The evidence: what each change brings, how it was searched, how sure it is, what could tip it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from search.attribution import needed_for
from specs.config import ConfigTable, TrainingConfig
from specs.figures import percent
from studies.pictures.axis_effects import axis_effects
from studies.pictures.changes import Change, changes, letter
from studies.pictures.incumbent import incumbent
from studies.pictures.interactions import interactions
from studies.pictures.measured import Comparison, measured
from studies.pictures.pareto import front, pareto
from studies.pictures.sensitivity import sensitivity
from studies.pictures.shortlist import Candidate, shortlist
from studies.real_runs import OUT_OF_MEMORY
from studies.report.answer import chance
from studies.report.facts import StudyFacts
from studies.report.html import Markup, bullets, folded, join, paragraphs, table, tag
from studies.report.page import figure
from studies.report.whatif import STEP, levers, neighbours
from studies.wording import TRUST, change_in_words, describe, gain_in_words, mesh_in_words
from surrogate.learned import SHIPPED


def changes_section(facts: StudyFacts) -> Markup:
    """What each change from the baseline brings, alone and together."""
    attribution = facts.result["attribution"]
    if not attribution:
        return paragraphs("The baseline is illegal on this cluster, so changes are not judged.")
    effects = attribution["effects"]
    if not effects:
        return paragraphs("The best config is the baseline.")
    words = {effect["change"]: change_in_words(effect["axes"]) for effect in effects}
    rows = [
        (
            letter(index),
            words[effect["change"]],
            gain_in_words(effect["alone"]),
            _stands(effect["alone_fits"]),
            gain_in_words(effect["last"]) if effect["last"] is not None else "",
            needed_for(effect["last"], effect.get("fits_without")),
        )
        for index, effect in enumerate(effects)
    ]
    says = (
        "Gain of throughput of each change: made to the baseline by itself, and added last, on top "
        f"of all the others. All together: {percent(attribution['together'], signed=True)}."
    )
    pairs = [
        (words[pair["first"]], words[pair["second"]], pair["gain"])
        for pair in attribution["synergies"]
    ]
    parts = [
        figure(
            "picture-changes",
            changes([Change(words[e["change"]], e["alone"], e["last"]) for e in effects]),
            says,
        ),
        table(
            "Changes from the baseline to the best config",
            ("letter", "change", "alone", "fits alone", "on top of the others", "in the best"),
            rows,
            numeric=(2, 4),
        ),
    ]
    if pairs:
        says = (
            "How much more (green) or less (red) two changes bring together than the product of "
            "what each brings alone; the strongest pairs."
        )
        parts.append(
            figure("picture-interactions", interactions(list(words.values()), pairs), says)
        )
    return join(parts)


def _stands(fits: bool | None) -> str:
    return "" if fits is None else "yes" if fits else "no"


def search_section(facts: StudyFacts) -> Markup:
    """How the legal space was searched and what was refused."""
    space = facts.result["space"]
    proposers = Counter(trial.proposer for trial in facts.trials)
    refused = sum(not attempt.fits for attempt in facts.attempts)
    rules = Counter(reason for note in facts.illegal for reason in note["reasons"])
    told = (
        f"{space['legal']:,} configs are legal on this cluster; every one was projected or proved "
        f"no better than one that was. {len(facts.trials)} trials were recorded, {refused} of them "
        f"refused by memory; {len(facts.illegal)} further proposals were illegal."
    )
    by = ", ".join(f"{name} {count}" for name, count in proposers.most_common())
    best = front(facts.attempts)
    return join(
        [
            paragraphs(told, f"Trials by proposer: {by}."),
            figure(
                "picture-incumbent",
                incumbent(facts.attempts),
                "Throughput of the trials in their order. The green line is the best that fits so "
                "far; crosses were refused by memory.",
            ),
            figure(
                "picture-pareto",
                pareto(facts.attempts, facts.capacity_gib),
                "Throughput against memory, up to twice the capacity. No trial beats the "
                f"{len(best)} on the green line without more memory.",
            ),
            folded(
                f"Why {len(facts.illegal)} proposals were illegal",
                bullets(f"{reason} ({count})" for reason, count in rules.most_common()),
            )
            if rules
            else "",
            folded("All trials", _trials(facts)),
        ]
    )


def _trials(facts: StudyFacts) -> Markup:
    rows = [
        (
            str(attempt.number),
            f"{attempt.tokens_per_s_per_gpu:,.0f}",
            f"{attempt.peak_gib:.1f}",
            "yes" if attempt.fits else "no",
            trial.proposer,
            trial.reason,
            tag("code", attempt.text),
        )
        for attempt, trial in zip(
            facts.attempts,
            [t for t in facts.trials if t.tokens_per_s_per_gpu is not None],
            strict=True,
        )
    ]
    header = ("trial", "tokens/s/GPU", "GiB", "fits", "proposer", "why", "config")
    return table("Trials in their order", header, rows, numeric=(1, 2))


def accuracy_section(facts: StudyFacts) -> Markup:
    """How far the numbers can be trusted, and what real runs say of them."""
    learned = json.loads(SHIPPED.read_bytes())
    trust = str(facts.best.projection["throughput"]["trust"])
    family = "MoE" if facts.job.experiment.workload.model.is_moe else "dense"
    told = (
        "An interval of 90% is meant to hold the measured throughput of 9 runs in 10 of a "
        "publisher, model and GPU that nothing was learned from; its width was measured on such "
        f"runs (conformal prediction, apart for dense and MoE models; this one is {family}). A "
        "publisher is whoever measured, with all that they released."
    )
    rows = [
        (
            words,
            f"{found['mape']:.1%}",
            f"{found['median_ape']:.1%}",
            percent(found["bias"], signed=True),
            f"{found['n']:,}",
        )
        for key, words in (
            ("zero_shot", "no run of its publisher, model and GPU"),
            ("after_1", "1 run of them"),
            ("after_3", "3 runs of them"),
        )
        if (found := learned["metrics"].get(key))
    ]
    grades = [
        (tag("strong", name) if name == trust else name, meaning) for name, meaning in TRUST.items()
    ]
    return join(
        [
            paragraphs(told),
            table(
                "Errors of throughput on public runs that were left out",
                ("what was known", "mean error", "median error", "bias", "projections"),
                rows,
                numeric=range(1, 5),
            ),
            table(f"Trust grades; these projections are {trust}", ("grade", "meaning"), grades),
            _measured(facts, calibrated=trust in ("calibrated", "measured")),
        ]
    )


def _measured(facts: StudyFacts, calibrated: bool) -> Markup:
    """Every real run of this study against what was projected for it without any.

    Args:
        facts: of the study.
        calibrated: whether runs of other studies or of a table moved its projections.
    """
    if not facts.runs:
        by_others = ", calibrated by runs of its GPU, software and model" if calibrated else ""
        return paragraphs(
            "No real run of this study has been told back yet: the numbers above are "
            f"projections{by_others}. "
            "One measured run of any config of the shortlist narrows the interval of all of them."
        )
    finished = comparisons(facts)
    inside = sum(run.lo90 <= run.measured <= run.hi90 for run in finished)
    says = (
        f"Projected against measured throughput: {inside} of {len(finished)} runs lie within 90%."
    )
    header = ("run", "state", "config", "tokens/s/GPU", "projected", "error", "peak GiB",
              "projected", "error")  # fmt: skip
    return join(
        [
            figure("picture-measured", measured(finished), says) if finished else "",
            table(
                "Real runs against what was projected without them",
                header,
                _run_rows(facts),
                numeric=(0, 3, 4, 5, 6, 7, 8),
            ),
        ]
    )


def _run_rows(facts: StudyFacts) -> list[tuple[Any, ...]]:
    """One row a run, whatever became of it; a peak is compared in the reading of its counter."""
    seen = facts.before.project(ConfigTable.from_configs([run.config for run in facts.runs]))
    rows: list[tuple[Any, ...]] = []
    for row, run in enumerate(facts.runs):
        speed, peak_gib = float(seen.tokens_per_s_per_gpu[row]), run.peak_gib
        # A run out of memory asked its driver for more than the device holds.
        counter = run.counter if peak_gib else "device"
        expected_gib = float(getattr(seen, f"{counter}_gib")[row])
        peak = (
            f"{peak_gib:.1f}" + ("" if counter == "device" else f" {counter}") if peak_gib else ""
        )
        if run.state == OUT_OF_MEMORY:
            peak = f"over {facts.capacity_gib:.0f}"
        told = run.tokens_per_s_per_gpu
        rows.append(
            (
                str(run.number),
                "still out" if run.state == "running" else run.state,
                tag("code", describe(run.config)),
                f"{told:,.0f}" if told else "",
                f"{speed:,.0f}",
                percent(speed / told - 1, signed=True) if told else "",
                peak,
                f"{expected_gib:.1f}",
                percent(expected_gib / peak_gib - 1, signed=True) if peak_gib else "",
            )
        )
    return rows


def comparisons(facts: StudyFacts) -> list[Comparison]:
    """Real runs that finished, with what is projected for them without knowing any."""
    runs = [run for run in facts.runs if run.tokens_per_s_per_gpu]
    if not runs:
        return []
    seen = facts.before.project(ConfigTable.from_configs([run.config for run in runs]))
    return [
        Comparison(
            measured=run.tokens_per_s_per_gpu or 0.0,
            projected=float(seen.tokens_per_s_per_gpu[row]),
            lo90=float(seen.lo90[row]),
            hi90=float(seen.hi90[row]),
            text=describe(run.config),
        )
        for row, run in enumerate(runs)
    ]


def sensitivity_section(facts: StudyFacts) -> Markup:
    """What would change the answer: the hardware, or one axis."""
    configs = list(dict.fromkeys([facts.best.config, *(a.config for a in facts.shortlist)]))
    found, overtaken = levers(facts.job, configs)
    near = neighbours(facts.job, facts.best.config, facts.result["space"]["axes"])
    verdict = (
        "The best config stays the fastest of the shortlist under each of these changes."
        if not overtaken
        else "Another config of the shortlist becomes the fastest with "
        + "; ".join(f"{words}: {describe(configs[row])}" for words, row in overtaken)
        + "."
    )
    says = (
        f"What the best config gains or loses when a number of the hardware is {STEP:.0%} lower or "
        f"higher than its data sheet. {verdict}"
    )
    parts = [
        _rivals(facts.result.get("sensitivity")),
        figure("picture-sensitivity", sensitivity(found, STEP), says),
    ]
    if near:
        words = (
            "What the best config gains or loses when one axis takes another value, with what that "
            "entails on other axes. Crosses would not fit."
        )
        parts.append(figure("picture-axes", axis_effects(near), words))
    return join(parts)


def _rivals(judged: Mapping[str, Any] | None) -> Markup:
    """How sharp the optimum is, the best config of each other mesh, and what to measure first."""
    if not judged:
        return Markup("")
    following = judged["measure_next"]
    sentences = [
        f"The best config lies in a {judged['shape']}: {judged['basin_share']:.0%} of the single "
        "steps from it that run lose 2% or less."
    ]
    if following["probability_of_change"] > 0:
        config = TrainingConfig.from_labels(following["config"])
        sentences.append(
            f"Measure first: {describe(config)}. It changes the choice with P "
            f"{following['probability_of_change']:.0%}, worth "
            f"{percent(following['expected_gain'], signed=True)}."
        )
    rows = [
        (
            mesh_in_words(family["mesh"]),
            f"{family['gap']:.1%}",
            f"{family['members']:,}",
            tag("code", describe(TrainingConfig.from_labels(family["best"]))),
        )
        for family in judged["families"]
    ]
    header = ("mesh", "behind the best", "near the top", "its best config")
    return join([paragraphs(*sentences), table("Rivals by mesh", header, rows, numeric=(1, 2))])


def shortlist_section(facts: StudyFacts) -> Markup:
    """What to run for real, and why several."""
    rows: list[tuple[Any, ...]] = []
    candidates = []
    for number, answer in enumerate(facts.shortlist, 1):
        low, high = answer.interval90
        fits = float(answer.memory["fit_probability"])
        speed = answer.tokens_per_s_per_gpu
        candidates.append(Candidate(f"number {number}", speed, low, high, fits))
        rows.append(
            (
                str(number),
                f"{speed:,.0f}",
                f"{low:,.0f} to {high:,.0f}",
                f"{answer.memory['peak_gib']:.1f}",
                chance(fits),
                chance(answer.probability_best),
                tag("code", describe(answer.config)),
            )
        )
    header = ("number", "tokens/s/GPU", "90%", "GiB", "P(fits)", "P(best)", "config")
    return join(
        [
            paragraphs(
                "Configs that are near the top and differ in mesh, schedule, sharding or "
                "recomputation, or at least in a throughput that a run can tell apart. Number 1 is "
                "in the files best.*, number k in shortlist_k.*. Their intervals "
                "overlap because they share most of their error; P(best) is counted over draws in "
                "which what they share cancels."
            ),
            figure(
                "picture-shortlist",
                shortlist(candidates),
                "Expected throughput of the shortlist with 90% intervals; orange may not fit.",
            ),
            table("Configs of the shortlist", header, rows, numeric=(1, 2, 3, 4, 5)),
        ]
    )
