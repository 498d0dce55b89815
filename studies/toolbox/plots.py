"""The report of a toolbox study: one HTML file with the verdicts and where the time goes."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.files import write_atomically
from studies.toolbox.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from studies.toolbox.study import ToolboxResult

COLOURS = {
    Verdict.KEEP: "#1a7f37",
    Verdict.DROP: "#57606a",
    Verdict.INCONCLUSIVE: "#9a6700",
    Verdict.NOISY: "#cf222e",
}


def write_report(path: Path, result: ToolboxResult) -> Path:
    """Writes the report; it needs no network to be read."""
    figures = [profile_figure(result.baseline.profile)]
    if result.timed:
        figures.insert(0, interval_figure(result.timed, result.request.threshold))
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=index == 0)
        for index, figure in enumerate(figures)
    ]
    final = result.final
    tables = [_table("Bundles against the baseline", result.outcomes)]
    if final:
        tables.append(_table("The best stack, measured again", final.whole))
        tables.append(_table("Each tool left out", final.leave_one_out))
    says = "".join(f"<li>{html.escape(line)}</li>" for line in result.bottlenecks)
    head = html.escape(f"{result.request.source}: {result.request.work} on {result.request.device}")
    text = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>foretune toolbox</title>"
        "<style>body{font:15px system-ui;margin:2em auto;max-width:1000px}td,th{padding:3px 9px;"
        "text-align:left;border-bottom:1px solid #d0d7de}</style></head><body>"
        f"<h1>{head}</h1><p><b>{html.escape(result.answer)}</b></p><ul>{says}</ul>"
        f"{''.join(parts)}{''.join(tables)}</body></html>"
    )
    return write_atomically(path, text)


def interval_figure(outcomes: Sequence[Outcome], threshold: float) -> Figure:
    """Speed ratio of every timed bundle with its interval."""
    import plotly.graph_objects as go

    ordered = sorted(outcomes, key=lambda outcome: outcome.log_ratio or 0.0)
    figure = go.Figure()
    for verdict, colour in COLOURS.items():
        chosen = [outcome for outcome in ordered if outcome.verdict is verdict]
        if not chosen:
            continue
        ratios = [outcome.ratio or 1.0 for outcome in chosen]
        figure.add_scatter(
            x=ratios,
            y=[_label(outcome) for outcome in chosen],
            mode="markers",
            name=verdict.value,
            marker={"color": colour, "size": 9},
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [(o.upper or 1.0) - r for o, r in zip(chosen, ratios, strict=True)],
                "arrayminus": [r - (o.lower or 1.0) for o, r in zip(chosen, ratios, strict=True)],
            },
        )
    figure.add_vline(x=1 + threshold, line_dash="dot", annotation_text="worth keeping")
    labels = [_label(outcome) for outcome in ordered]
    figure.update_yaxes(categoryorder="array", categoryarray=labels, tickfont={"size": 10})
    figure.update_layout(
        title="Speed against the baseline, with intervals",
        xaxis_title="times as fast",
        height=200 + 16 * sum(len(outcome.bundle) + 1 for outcome in ordered),
        margin={"l": 20},
    )
    return figure


def _label(outcome: Outcome) -> str:
    """A bundle, one tool a line."""
    return str(outcome.bundle).replace(" + ", "<br>")


def profile_figure(profile: dict[str, Any]) -> Figure:
    """Shares of time by kind of work, prefill and decode apart."""
    import plotly.graph_objects as go

    kinds = sorted({kind for phase in ("prefill", "decode") for kind in profile[phase]["kinds"]})
    figure = go.Figure()
    for kind in kinds:
        shares = [profile[phase]["kinds"].get(kind, 0.0) for phase in ("prefill", "decode")]
        figure.add_bar(x=shares, y=["prefill", "decode"], name=kind, orientation="h")
    figure.update_layout(
        title="Where the time of the baseline goes",
        barmode="stack",
        xaxis={"tickformat": ".0%", "range": [0, 1]},
        height=300,
    )
    return figure


def _table(title: str, outcomes: Sequence[Outcome]) -> str:
    """Outcomes as an HTML table."""
    head = "<tr><th>bundle</th><th>against</th><th>verdict</th><th>why</th></tr>"
    rows = "".join(
        "<tr>"
        + "".join(
            f"<td>{html.escape(text)}</td>"
            for text in (str(o.bundle), str(o.base), o.verdict.value, o.sentence)
        )
        + "</tr>"
        for o in outcomes
    )
    return f"<h2>{html.escape(title)}</h2><table>{head}{rows}</table>"
