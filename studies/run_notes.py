"""Notes in Markdown about real runs: what was asked, what came back and what it taught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specs.figures import percent
from studies.real_runs import AskedRun
from studies.trial_notes import cell, table
from studies.wording import describe

if TYPE_CHECKING:
    from studies.run_ranking import Ranked


def in_words(run: AskedRun) -> str:
    """What came of a run, in a few words."""
    expected = run.expected.get("tokens_per_s_per_gpu")
    projected = f"projected {expected:,.0f}" if expected else "not projected"
    if run.tokens_per_s_per_gpu is None:
        return f"run {run.number}: {run.state}, {projected}."
    peak = f", peak {run.peak_gib:.1f} GiB" if run.peak_gib else ""
    gap = f" ({percent(run.tokens_per_s_per_gpu / expected - 1, signed=True)})" if expected else ""
    return (
        f"run {run.number}: {run.tokens_per_s_per_gpu:,.0f} tokens/s/GPU{peak}, {projected}{gap}."
    )


def runs_section(runs: Sequence[AskedRun]) -> list[str]:
    """Lines of a note about runs; none where there are none."""
    if not runs:
        return []
    return [
        "### Run for real",
        *(f"* {in_words(run)} {cell(describe(run.config))}" for run in runs),
    ]


def run_note(run: AskedRun) -> str:
    """Why a run was asked, what was expected of it and what came back."""
    lines = [f"**asked:** {cell(run.reason)}", "", cell(describe(run.config)), "", in_words(run)]
    held = run.expected
    if held:
        low, high = held["interval90"]
        lines += [
            "",
            f"Expected when it was asked: {held['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU "
            f"(90%: {low:,.0f} to {high:,.0f}), {held['peak_gib']:.0f} GiB, "
            f"P(fits) {held['fit_probability']:.0%}.",
        ]
    return "\n".join(lines)


def told_note(runs: Sequence[AskedRun], entries: Sequence[Ranked]) -> str:
    """What the runs of a measured study say, and the ranking as it is now."""
    rows = [
        (
            "" if entry.run is None else str(entry.run),
            entry.state,
            f"{entry.before:,.0f}",
            f"{entry.now:,.0f}",
            f"{entry.peak_gib_before:.0f}",
            f"{entry.peak_gib:.0f}",
            f"{entry.fit_probability_before:.0%}",
            f"{entry.fit_probability:.0%}",
            cell(describe(entry.config)),
        )
        for entry in entries
    ]
    header = ("run", "", "before", "now", "GiB before", "GiB now", "fits before", "fits now",
              "config")  # fmt: skip
    return "\n".join(
        [
            *runs_section(runs),
            "",
            "### Ranking now",
            "Tokens/s/GPU, GiB and the probability to fit, as projected before any run and now; "
            "ranked by tokens/s/GPU now times the probability to fit, failed runs last.",
            "",
            *table(header, rows),
        ]
    )
