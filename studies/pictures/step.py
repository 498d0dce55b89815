"""Step: where the time of a training step goes, for some configs side by side."""

from __future__ import annotations

from collections.abc import Mapping

from studies.pictures.style import STACK, Picture, picture

SHOWN = 0.004
"""Share of a step from which a part gets a colour of its own; the others are one part."""


def step_parts(
    breakdowns_s: Mapping[str, Mapping[str, float]], words: Mapping[str, str]
) -> Picture:
    """Stacked bars of seconds a step.

    Args:
        breakdowns_s: name of a config -> part -> seconds.
        words: part -> what it is called.
    """
    names = list(breakdowns_s)
    parts = list(next(iter(breakdowns_s.values())))
    totals = {name: sum(parts_s.values()) for name, parts_s in breakdowns_s.items()}
    large = [
        part for part in parts if any(breakdowns_s[n][part] >= SHOWN * totals[n] for n in names)
    ]
    rest = [part for part in parts if part not in large]
    rows = [(words.get(part, part), [breakdowns_s[n][part] for n in names]) for part in large]
    rows.append(("all else", [sum(breakdowns_s[n][part] for part in rest) for n in names]))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": seconds,
            "marker": {"color": color},
            "hovertemplate": f"{name}: %{{x:.3g}} s<extra>%{{y}}</extra>",
        }
        for (name, seconds), color in zip(rows, STACK, strict=False)
        if any(seconds)
    ]
    return picture(
        traces,
        {"title": {"text": ""}, "ticksuffix": " s"},
        {"title": {"text": ""}, "autorange": "reversed"},
        height=170 + 60 * len(names),
        barmode="stack",
        legend={"orientation": "h", "x": 0, "y": -0.25, "yanchor": "top", "traceorder": "normal"},
    )
