"""Axis effects: what happens to the best config when one axis takes another value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specs.figures import in_percent
from studies.pictures.style import BLUE, RED, Picture, Trace, picture


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The best config with one axis changed; ``change`` is a fraction of its throughput."""

    axis: str
    value: str
    change: float
    fits: bool


def axis_effects(neighbours: Sequence[Neighbour], most_axes: int = 99) -> Picture:
    """Dots of the change in percent, a row an axis, the ``most_axes`` most telling ones."""
    reach = {n.axis: 0.0 for n in neighbours}
    for neighbour in neighbours:
        reach[neighbour.axis] = max(reach[neighbour.axis], abs(neighbour.change))
    axes = sorted(reach, key=lambda axis: -reach[axis])[:most_axes]
    neighbours = [neighbour for neighbour in neighbours if neighbour.axis in axes]
    labelled = _labelled(neighbours)

    def trace(fits: bool, name: str, color: str, symbol: str) -> Trace:
        shown = [n for n in neighbours if n.fits is fits]
        return {
            "type": "scatter",
            "mode": "markers+text",
            "name": name,
            "x": [in_percent(n.change) for n in shown],
            "y": [n.axis for n in shown],
            "text": [n.value if n in labelled else "" for n in shown],
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


def _labelled(neighbours: Sequence[Neighbour]) -> set[Neighbour]:
    """The dots that have room for their value: none of its row lies close to the left."""
    changes = [neighbour.change for neighbour in neighbours]
    room = 0.03 * (max(changes) - min(changes)) if changes else 0.0
    kept: set[Neighbour] = set()
    last: dict[str, float] = {}
    for neighbour in sorted(neighbours, key=lambda n: n.change):
        apart = neighbour.change - last.get(neighbour.axis, -9.0)
        if len(neighbour.value) <= 9 and apart >= room:
            kept.add(neighbour)
            last[neighbour.axis] = neighbour.change
    return kept
