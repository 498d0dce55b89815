"""What optuna-dashboard shows of a toolbox study: its answer, a note a bundle, graphs, programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specs.figures import percent
from studies.boards import Board
from studies.toolbox.plots import interval_figure, profile_figure
from studies.toolbox.verdicts import Outcome
from studies.trial_notes import cell, table

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from studies.toolbox.study import ToolboxResult

HEADER = ("bundle", "against", "verdict", "times as fast", "interval", "why")


def show_study(
    board: Board, result: ToolboxResult, notes: Sequence[str], trials: Sequence[FrozenTrial]
) -> None:
    """Writes notes, graphs and files of a finished study.

    Args:
        board: of the study.
        result: what came out.
        notes: what a reader must know of the study.
        trials: of the study, with who proposed each and why.
    """
    board.note(study_note(result, notes))
    for trial in trials:
        outcome = Outcome.from_json(trial.user_attrs["outcome"])
        who, why = trial.user_attrs["planner"], trial.user_attrs["reason"]
        board.note(trial_note(outcome, who, why), trial.number)
    if result.timed:
        figure = interval_figure(result.timed, result.request.threshold)
        board.graph("speed_of_bundles", figure.to_plotly_json())
    board.graph("time_of_the_baseline", profile_figure(result.baseline.profile).to_plotly_json())
    for path in result.files:
        if path.is_file():
            board.artifact(path)


def study_note(result: ToolboxResult, notes: Sequence[str]) -> str:
    """The model, what is kept, where the time goes and how to read the study."""
    lines = [
        f"## {cell(result.request.source)}",
        cell(f"{result.request.work} on {result.request.device}, {result.baseline.host.dtype}"),
        "",
        f"**{cell(result.answer)}**",
        "",
        *(f"* {cell(line)}" for line in result.bottlenecks),
        "",
    ]
    if result.final:
        lines += ["### The best stack, measured again", *_rows(result.final.whole), ""]
    if result.final and result.final.leave_one_out:
        lines += ["### Each tool left out", *_rows(result.final.leave_one_out), ""]
    lines += [
        "### How to read this study",
        "* The value of a trial is tokens/s of the bundle; bundles are compared by the ratio to a "
        "baseline measured beside them, which is in the note of the trial.",
        "* Wrong outputs and lack of memory are constraints above 0, a bundle without effect is "
        "pruned, a failure is a failed trial.",
        "* Programs, diff, report and the log of every raw time are among the artifacts.",
        *(f"* {cell(note)}" for note in notes),
    ]
    return "\n".join(lines)


def trial_note(outcome: Outcome, planner: str, reason: str) -> str:
    """Why a bundle was tried, what shows that it changed execution, and the verdict."""
    proofs = outcome.details.get("proofs", {})
    found = outcome.details.get("measurement", {})
    compiled = outcome.details.get("compile", {})
    lines = [f"**{cell(planner)}**: {cell(reason)}", "", *_rows([outcome]), ""]
    lines += [f"* {cell(tool)}: {cell(proof['sentence'])}" for tool, proof in proofs.items()]
    if "correctness" in outcome.details:
        lines.append(f"* outputs {cell(outcome.details['correctness']['sentence'])}")
    if found:
        lines.append(
            f"* prefill {found['prefill_ratio']:.2f} and decoding {found['decode_ratio']:.2f} "
            f"times as fast by {cell(found['metric'])}; {found['blocks']} restarts, "
            f"{found['pairs']} pairs; two copies of the base differ by "
            f"{percent(found['control'] - 1, signed=True)} ± {found['control_half_width']:.1%}"
        )
    if compiled:
        after = compiled["break_even_tokens"]
        won = "never won back" if after is None else f"won back after {after:,.0f} tokens"
        lines.append(f"* preparing took {compiled['compile_s']:.0f} s, {won}")
    return "\n".join(lines)


def _rows(outcomes: Sequence[Outcome]) -> list[str]:
    """Lines of a table of outcomes."""
    return table(
        HEADER,
        [
            (
                cell(outcome.bundle),
                cell(outcome.base),
                outcome.verdict.value,
                "" if outcome.ratio is None else f"{outcome.ratio:.3f}",
                "" if outcome.lower is None else f"{outcome.lower:.3f} to {outcome.upper:.3f}",
                cell(outcome.sentence),
            )
            for outcome in outcomes
        ],
    )
