"""Interactions: how much more, or less, two changes bring together than apart."""

from __future__ import annotations

from collections.abc import Sequence

from studies.pictures.changes import wrapped
from studies.pictures.style import Picture, picture


def interactions(pairs: Sequence[tuple[str, str, float]]) -> Picture:
    """A heat map of pairs of changes; ``pairs`` holds two names and a fraction of throughput."""
    names = list(dict.fromkeys(name for first, second, _ in pairs for name in (first, second)))
    gain = {frozenset(pair): 100 * value for *pair, value in pairs}
    cells = [[gain.get(frozenset((row, column))) for column in names] for row in names]
    most = max((abs(value) for value in gain.values()), default=1.0) or 1.0
    heat = {
        "type": "heatmap",
        "x": [wrapped(name, 16) for name in names],
        "y": [wrapped(name, 22) for name in names],
        "z": cells,
        "zmid": 0,
        "zmin": -most,
        "zmax": most,
        "colorscale": [[0, "#d1495b"], [0.5, "#f2f2f2"], [1, "#2f9e6b"]],
        "colorbar": {"ticksuffix": "%", "thickness": 12},
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{z:+.1f}%",
        "textfont": {"color": "#1b1b1b"},
        "hovertemplate": "%{x} with %{y}: %{z:+.1f}%<extra></extra>",
        "hoverongaps": False,
    }
    return picture(
        [heat],
        {"title": {"text": ""}, "tickangle": 0, "showgrid": False},
        {"title": {"text": ""}, "autorange": "reversed", "showgrid": False},
        height=160 + 70 * len(names),
    )
