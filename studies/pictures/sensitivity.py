"""Sensitivity: how far a number of the hardware moves what is expected of the best config."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specs.figures import in_percent
from studies.pictures.style import GREEN, ORANGE, Picture, picture


@dataclass(frozen=True, slots=True)
class Lever:
    """Fractions by which throughput changes when a number is lower and when it is higher."""

    name: str
    lower: float
    higher: float


def sensitivity(levers: Sequence[Lever], step: float) -> Picture:
    """Bars of the change in percent, the strongest lever first; ``step`` is the fraction moved."""
    ordered = sorted(levers, key=lambda lever: -max(abs(lever.lower), abs(lever.higher)))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": f"{sign}{step:.0%}",
            "y": [lever.name for lever in ordered],
            "x": [in_percent(value, 2) for value in values],
            "marker": {"color": color},
            "hovertemplate": f"%{{y}} {sign}{step:.0%}: %{{x:+.2f}}%<extra></extra>",
        }
        for sign, color, values in (
            ("−", ORANGE, [lever.lower for lever in ordered]),
            ("+", GREEN, [lever.higher for lever in ordered]),
        )
    ]
    return picture(
        traces,
        {"title": {"text": "change of tokens/s/GPU"}, "ticksuffix": "%"},
        {"title": {"text": ""}, "autorange": "reversed"},
        height=140 + 44 * len(ordered),
        barmode="relative",
    )
