"""Measured: throughput projected against throughput measured, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.pictures.style import BLUE, GREY, RED, Picture, picture


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run: measured tokens/s/GPU, projected ones with their 90% interval, config in words."""

    measured: float
    projected: float
    lo90: float
    hi90: float
    text: str


def measured(runs: Sequence[Comparison]) -> Picture:
    """Projected over measured; on the grey line they agree, red runs lie outside their interval."""
    most = 1.1 * max(max(run.measured, run.hi90) for run in runs)
    inside = [run.lo90 <= run.measured <= run.hi90 for run in runs]
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "runs",
        "x": [run.measured for run in runs],
        "y": [run.projected for run in runs],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [run.hi90 - run.projected for run in runs],
            "arrayminus": [run.projected - run.lo90 for run in runs],
            "color": GREY,
        },
        "text": [run.text for run in runs],
        "hovertemplate": "%{text}<br>measured %{x:,.0f}, projected %{y:,.0f}<extra></extra>",
        "marker": {"size": 9, "color": [BLUE if held else RED for held in inside]},
    }
    agree = {
        "type": "scatter",
        "mode": "lines",
        "name": "projected = measured",
        "x": [0, most],
        "y": [0, most],
        "line": {"color": GREY, "dash": "dot"},
        "hoverinfo": "skip",
    }
    return picture(
        [agree, points],
        {"title": {"text": "measured tokens/s/GPU"}, "range": [0, most]},
        {"title": {"text": "projected tokens/s/GPU"}, "range": [0, most]},
        height=420,
    )
