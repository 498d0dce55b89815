"""Notes in Markdown: what a study and each of its trials say to a person."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from search.attribution import needed_for
from specs.figures import percent
from studies.explanation import bottleneck, step_shares
from studies.ledger import Trial
from studies.pictures.changes import letter
from studies.pictures.memory import PARTS
from studies.report.answer import chance
from studies.report.facts import StudyFacts
from studies.wording import change_in_words, describe, gain_in_words

SHOWN_PARTS = 6
"""Parts of a step that a trial note lists."""


def study_note(facts: StudyFacts, graphs: Iterable[str], real_runs: Sequence[str] = ()) -> str:
    """What was trained where, what came out, what was run for real and how to read the study.

    ``real_runs`` are lines about the runs that were asked.
    """
    job, best, baseline = facts.job, facts.best, facts.baseline
    workload = job.experiment.workload
    lines = [
        f"## {cell(workload.model.name)} on {job.cluster.num_gpus:,} {cell(job.cluster.gpu.name)}",
        f"{workload.model.total_parameters() / 1e9:,.1f} B parameters, sequence "
        f"{workload.seq_len:,}, global batch {workload.global_batch_size:,}, "
        f"{workload.kind.label}, {cell(job.experiment.stack.framework_name)}.",
        "",
        *table(
            ("", "tokens/s/GPU", "90%", "GiB", "P(fits)", "config"),
            [
                _row(name, answer.projection, describe(answer.config))
                for name, answer in (("baseline", baseline), ("**best**", best))
                if answer is not None
            ],
        ),
        "",
        f"{bottleneck(best.projection)} Trust: {best.projection['throughput']['trust']}.",
        "",
    ]
    attribution = facts.result["attribution"]
    if attribution and attribution["effects"]:
        rows = [
            (
                letter(i),
                cell(change_in_words(effect["axes"])),
                gain_in_words(effect["alone"]),
                gain_in_words(effect["last"]) if effect["last"] is not None else "",
                needed_for(effect["last"], effect.get("fits_without")),
            )
            for i, effect in enumerate(attribution["effects"])
        ]
        lines += [
            "### Changes",
            *table(("", "change", "alone", "on top of the others", "in the best"), rows),
            "",
        ]
    lines += [*real_runs, ""] if real_runs else []
    lines += [
        "### How to read this study",
        "* The value of a trial is projected tokens/s/GPU. The constraint `memory_gib` is GiB "
        "above what a GPU holds: above 0 the config was refused by memory and is drawn infeasible.",
        "* Each trial has a note: who proposed it and why, memory by stage, where a step goes and "
        "what it taught. Illegal proposals are attributes of the study that begin with `illegal`.",
        f"* Graphs of the study ({', '.join(graphs)}) are on the History page; launch files and "
        "pictures are among the artifacts.",
    ]
    lines += [f"* {cell(note.sentence)}" for note in facts.notes]
    return "\n".join(lines)


def trial_note(facts: StudyFacts, trial: Trial, ran: Sequence[str] = ()) -> str:
    """Why a trial was proposed, by whom, what was found and what it taught.

    ``ran`` says what came of real runs of its config.
    """
    projection = trial.details.get("projection")
    lines = [
        f"**{cell(trial.proposer)}**: {cell(trial.reason)}",
        "",
        cell(describe(trial.config)),
        "",
    ]
    if projection is None:
        crash = trial.details.get("crash")
        return "\n".join([*lines, f"The oracle failed: {cell(crash)}" if crash else ""])
    lines += [
        *table(
            ("", "tokens/s/GPU", "90%", "GiB", "P(fits)", "step"),
            [_row("projected", projection, f"{projection['throughput']['step_time_s']:.3g} s")],
        ),
        "",
        *(line for words in ran for line in (f"**Run for real:** {cell(words)}", "")),
        f"**Taught:** {_taught(facts, trial)} {bottleneck(projection)}",
        "",
        "#### GiB by stage",
        *table(("stage", *PARTS, "total"), _stages(projection["memory"]["stages"])),
        "",
        "#### Where a step goes",
        *table(
            ("part", "s", "share"),
            [(name, f"{s:.3g}", f"{share:.1%}") for name, s, share in step_shares(projection)][
                :SHOWN_PARTS
            ],
        ),
    ]
    return "\n".join(lines)


def _taught(facts: StudyFacts, trial: Trial) -> str:
    """The trial against the baseline, or against the best where there is no baseline."""
    if trial.memory_gib is not None and trial.memory_gib > 0:
        fits = f"it does not fit: {trial.memory_gib:.1f} GiB too much."
    else:
        fits = f"it fits with {-(trial.memory_gib or 0.0):z.1f} GiB to spare."
    name, other = ("baseline", facts.baseline) if facts.baseline else ("best", facts.best)
    if trial.config == other.config or trial.tokens_per_s_per_gpu is None:
        return f"it is the {name}; {fits}"
    gain = trial.tokens_per_s_per_gpu / other.tokens_per_s_per_gpu - 1
    gib = (trial.memory_gib or 0.0) + facts.capacity_gib - other.memory["peak_gib"]
    return f"{percent(gain, signed=True)} throughput and {gib:+z.1f} GiB against the {name}; {fits}"


def _row(name: str, projection: Any, last: str) -> tuple[str, ...]:
    speed, memory = projection["throughput"], projection["memory"]
    low, high = speed["interval90"]
    return (
        name,
        f"{speed['tokens_per_s_per_gpu']:,.0f}",
        f"{low:,.0f} to {high:,.0f}",
        f"{memory['peak_gib']:.1f}",
        chance(memory["fit_probability"]),
        cell(last),
    )


def _stages(stages: Sequence[Any]) -> list[tuple[str, ...]]:
    return [
        (str(stage["stage"]), *(f"{stage[f'{part}_gib']:z.1f}" for part in (*PARTS, "total")))
        for stage in stages
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def cell(text: Any) -> str:
    """Foreign text that neither breaks a table nor is read as Markdown or HTML."""
    plain = " ".join(str(text).split())
    for character in "\\`*_[]<>|#":
        plain = plain.replace(character, "\\" + character)
    return plain
