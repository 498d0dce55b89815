"""Interactions: how much more, or less, two changes bring together than apart."""

from __future__ import annotations

from collections.abc import Sequence

from specs.figures import in_percent, percent
from studies.pictures.changes import letter
from studies.pictures.style import Picture, picture


def interactions(names: Sequence[str], pairs: Sequence[tuple[str, str, float]]) -> Picture:
    """A heat map of pairs of changes; changes of which no pair is known are left out.

    Args:
        names: the changes in their order, which are lettered A, B, C ...
        pairs: two names and what they bring together beyond what they bring apart, a fraction.
    """
    known = {name for *pair, _ in pairs for name in pair}
    letters = [letter(index) for index, name in enumerate(names) if name in known]
    names = [name for name in names if name in known]
    gain = {frozenset(pair): value for *pair, value in pairs}
    cells = [[gain.get(frozenset((row, column))) for column in names] for row in names]
    most = 100 * max((abs(value) for value in gain.values()), default=0.01) or 1.0
    heat = {
        "type": "heatmap",
        "x": letters,
        "y": letters,
        "z": [[None if v is None else in_percent(v) for v in row] for row in cells],
        "zmid": 0,
        "zmin": -most,
        "zmax": most,
        "colorscale": [[0, "#d1495b"], [0.5, "#f2f2f2"], [1, "#2f9e6b"]],
        "showscale": False,
        "xgap": 2,
        "ygap": 2,
        "text": [["" if v is None else percent(v, signed=True) for v in row] for row in cells],
        "texttemplate": "%{text}",
        "textfont": {"color": "#1b1b1b", "size": 12},
        "customdata": [[f"{row}<br>with {column}" for column in names] for row in names],
        "hovertemplate": "%{customdata}: %{z:+.1f}%<extra></extra>",
        "hoverongaps": False,
    }
    return picture(
        [heat],
        {"title": {"text": ""}, "tickangle": 0, "showgrid": False, "side": "top"},
        {"title": {"text": ""}, "autorange": "reversed", "showgrid": False},
        height=70 + 46 * len(names),
        margin={"l": 40, "r": 20, "t": 40, "b": 16},
    )
