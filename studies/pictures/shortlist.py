"""Shortlist: expected throughput of the configs to run for real, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.pictures.style import BLUE, ORANGE, Picture, picture


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config by its name, with the 90% interval of its tokens/s/GPU."""

    name: str
    tokens_per_s_per_gpu: float
    lo90: float
    hi90: float
    fit_probability: float


def shortlist(candidates: Sequence[Candidate]) -> Picture:
    """A dot with its interval a config; what may not fit (P below 0.9) is orange."""
    trace = {
        "type": "scatter",
        "mode": "markers",
        "showlegend": False,
        "x": [c.tokens_per_s_per_gpu for c in candidates],
        "y": [c.name for c in candidates],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [c.hi90 - c.tokens_per_s_per_gpu for c in candidates],
            "arrayminus": [c.tokens_per_s_per_gpu - c.lo90 for c in candidates],
            "color": BLUE,
            "thickness": 2,
        },
        "customdata": [c.fit_probability for c in candidates],
        "hovertemplate": "%{y}: %{x:,.0f} tokens/s/GPU, P(fits) %{customdata:.0%}<extra></extra>",
        "marker": {
            "size": 11,
            "color": [BLUE if c.fit_probability >= 0.9 else ORANGE for c in candidates],
        },
    }
    return picture(
        [trace],
        {"title": {"text": "tokens/s/GPU, 90% interval"}, "rangemode": "tozero"},
        {"title": {"text": ""}, "autorange": "reversed", "type": "category"},
        height=110 + 38 * len(candidates),
    )
