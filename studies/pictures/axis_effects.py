"""Axis effects: what happens to the best config when one axis takes another value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.pictures.style import BLUE, RED, Picture, Trace, picture


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The best config with one axis changed; ``change`` is a fraction of its throughput."""

    axis: str
    value: str
    change: float
    fits: bool


def axis_effects(neighbours: Sequence[Neighbour]) -> Picture:
    """Dots of the change in percent, a row an axis, the most telling axis first."""
    reach = {n.axis: 0.0 for n in neighbours}
    for neighbour in neighbours:
        reach[neighbour.axis] = max(reach[neighbour.axis], abs(neighbour.change))
    axes = sorted(reach, key=lambda axis: -reach[axis])

    def trace(fits: bool, name: str, color: str, symbol: str) -> Trace:
        shown = [n for n in neighbours if n.fits is fits]
        return {
            "type": "scatter",
            "mode": "markers+text",
            "name": name,
            "x": [100 * n.change for n in shown],
            "y": [n.axis for n in shown],
            "text": [n.value if len(n.value) <= 7 else "" for n in shown],
            "customdata": [n.value for n in shown],
            "textposition": "top center",
            "textfont": {"size": 11},
            "hovertemplate": "%{y} %{customdata}: %{x:+.1f}%<extra></extra>",
            "marker": {"color": color, "symbol": symbol, "size": 9},
        }

    traces = [
        trace(True, "fits", BLUE, "circle"),
        trace(False, "does not fit", RED, "x"),
    ]
    return picture(
        traces,
        {"title": {"text": "change of tokens/s/GPU"}, "ticksuffix": "%", "zeroline": True},
        {"title": {"text": ""}, "categoryorder": "array", "categoryarray": axes[::-1]},
        height=130 + 34 * len(axes),
    )
