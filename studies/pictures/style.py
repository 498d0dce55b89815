"""What all pictures share: the form of a picture, its colours and its layout.

A picture is a Plotly figure as plain JSON data. Whoever shows it (report, dashboard) renders it;
nothing here imports Plotly. Backgrounds are transparent and inks legible on white and on black.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Picture = dict[str, Any]
Trace = dict[str, Any]

BLUE, ORANGE, GREEN, RED, PURPLE = "#3b7fc4", "#d9822b", "#2f9e6b", "#d1495b", "#8a6fc9"
GREY, INK = "#8a8f98", "#767676"
GRID = "rgba(128,128,128,0.25)"

STACK = (
    "#3b7fc4", "#7fb2e5", "#2f9e6b", "#d9822b", "#d1495b", "#8a6fc9", "#8a8f98", "#c9b458",
    "#56a8a0", "#b0679b", "#6b7fd7", "#a3794a", "#5f9ea0", "#cc8899", "#777777",
)  # fmt: skip
"""Colours of the layers of a stack, in order."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trial as pictures show it; ``peak_gib`` is device memory, ``text`` its config in words."""

    number: int
    tokens_per_s_per_gpu: float
    peak_gib: float
    fits: bool
    text: str


def picture(
    traces: Sequence[Trace],
    x: str | dict[str, Any],
    y: str | dict[str, Any],
    height: int = 380,
    **layout: Any,
) -> Picture:
    """A picture of these traces; ``x`` and ``y`` are axis titles or whole axes."""
    return {
        "data": list(traces),
        "layout": {
            "xaxis": _axis(x),
            "yaxis": _axis(y),
            "height": height,
            "margin": {"l": 64, "r": 20, "t": 28, "b": 56},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": INK, "size": 13},
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.02,
                "yanchor": "bottom",
                "traceorder": "normal",
            },
            "hovermode": "closest",
            **layout,
        },
    }


def _axis(axis: str | dict[str, Any]) -> dict[str, Any]:
    given = {"title": {"text": axis}} if isinstance(axis, str) else axis
    return {"gridcolor": GRID, "zerolinecolor": GRID, "automargin": True, **given}


BOARD_HEIGHT = 440
"""Pixels that optuna-dashboard leaves a graph."""


def titled(shown: Picture, title: str) -> Picture:
    """The picture with a title inside it, as high as optuna-dashboard leaves it room."""
    layout = shown["layout"]
    margin = {**layout["margin"], "t": layout["margin"]["t"] + 62}
    named = {"text": title, "x": 0.02, "xref": "container", "y": 0.97, "yref": "container"}
    return {
        **shown,
        "layout": {**layout, "title": named, "margin": margin, "height": BOARD_HEIGHT},
    }


def line(x: float | None = None, y: float | None = None) -> dict[str, Any]:
    """A dashed line across the picture at an x or at a y."""
    style = {"type": "line", "line": {"color": RED, "dash": "dash", "width": 2}}
    if x is not None:
        return {**style, "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper"}
    return {**style, "x0": 0, "x1": 1, "xref": "paper", "y0": y, "y1": y}


def note(text: str, **place: Any) -> dict[str, Any]:
    """Words beside a line, inside the picture."""
    return {"text": text, "showarrow": False, "font": {"color": RED, "size": 12}, **place}


def dots(
    attempts: Sequence[Attempt],
    horizontal: Sequence[float],
    name: str,
    color: str,
    symbol: str = "circle",
) -> Trace:
    """Trials as dots at ``horizontal`` by throughput."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(horizontal),
        "y": [attempt.tokens_per_s_per_gpu for attempt in attempts],
        "text": [f"trial {attempt.number}<br>{attempt.text}" for attempt in attempts],
        "hovertemplate": "%{text}<br>%{y:,.0f} tokens/s/GPU<extra></extra>",
        "marker": {"color": color, "symbol": symbol, "size": 8},
    }
