"""The report of a study as one HTML document."""

from __future__ import annotations

import shlex

from studies.report import answer, evidence, origin
from studies.report.facts import StudyFacts
from studies.report.html import join, paragraphs, tag
from studies.report.page import Section, page


def report(facts: StudyFacts, tokens: float | None = None, usd: float | None = None) -> str:
    """The document.

    Args:
        facts: of a finished study.
        tokens: count that costs are told for; the study's own, or an assumed one, without it.
        usd: price of a GPU-hour; that of the cluster or the catalog without it.
    """
    job = facts.job
    workload, cluster = job.experiment.workload, job.cluster
    title = f"{workload.model.name} on {cluster.num_gpus:,} {cluster.gpu.name}: what to run"
    lead = join(
        [
            paragraphs(
                f"{workload.model.total_parameters() / 1e9:,.1f} B parameters, sequence "
                f"{workload.seq_len:,}, global batch {workload.global_batch_size:,}, "
                f"{workload.kind.label}; {cluster.shape}, "
                f"{job.experiment.stack.framework_name}."
            ),
            answer.notes_of(facts),
        ]
    )
    command = " ".join(
        shlex.quote(part)
        for part in (
            "foretune", "report", facts.name, "--storage", facts.storage, "--out", "report.html",
        )
    )  # fmt: skip
    sections = [
        Section("answer", "What to run", answer.what_to_run(facts, tokens, usd)),
        Section("memory", "Memory of each stage", answer.memory_section(facts)),
        Section("step", "Where a step goes", answer.step_section(facts)),
        Section("pipeline", "The pipeline", answer.pipeline_section(facts)),
        Section("changes", "What each change brings", evidence.changes_section(facts)),
        Section("shortlist", "Shortlist", evidence.shortlist_section(facts)),
        Section("search", "How it was found", evidence.search_section(facts)),
        Section("accuracy", "How sure it is", evidence.accuracy_section(facts)),
        Section("sensitivity", "What could tip it", evidence.sensitivity_section(facts)),
        Section("provenance", "Where the constants come from", origin.provenance_section(facts)),
        Section("reproduce", "How to get this again", origin.reproduce_section(facts, command)),
    ]
    return page(title, lead, sections, tag("p", f"Made by foretune from the study {facts.name}."))
