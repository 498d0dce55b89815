"""Pictures of a plan: time against GPUs, and money against time, one line a cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from studies.pictures.style import STACK, Picture, Trace, line, note, picture

MOST_TICKS = 10
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "cross", "pentagon")


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a cluster: what training on it takes; ``days90`` is the 90% interval."""

    num_gpus: int
    days: float
    days90: tuple[float, float]
    usd: float | None
    text: str


def days_by_gpus(
    sizes: Mapping[str, Sequence[Size]], deadline_days: float | None = None
) -> Picture:
    """Days of training over GPUs on logarithmic axes, with 90% intervals and the deadline."""
    traces = [
        {
            **_line(name, index, [s.num_gpus for s in held], [s.days for s in held], held),
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": [s.days90[1] - s.days for s in held],
                "arrayminus": [s.days - s.days90[0] for s in held],
                "thickness": 1,
                "width": 3,
            },
        }
        for index, (name, held) in enumerate(sizes.items())
    ]
    counts = sorted({s.num_gpus for held in sizes.values() for s in held})
    shown = picture(
        traces,
        {"title": {"text": "GPUs"}, "type": "log", **_ticks(counts)},
        {
            "title": {"text": "days of training"},
            "type": "log",
            **_ticks(_round_values([d for held in sizes.values() for s in held for d in s.days90])),
        },
    )
    return _limited(shown, deadline_days)


def usd_by_days(sizes: Mapping[str, Sequence[Size]], deadline_days: float | None = None) -> Picture:
    """Money over days of training: left of the line is in time, lower is cheaper."""
    traces = []
    for index, (name, held) in enumerate(sizes.items()):
        priced = [size for size in held if size.usd is not None]
        if priced:
            money = [float(size.usd or 0.0) for size in priced]
            traces.append(_line(name, index, [s.days for s in priced], money, priced))
    shown = picture(
        traces,
        {
            "title": {"text": "days of training"},
            "type": "log",
            **_ticks(_round_values([s.days for held in sizes.values() for s in held])),
        },
        {"title": {"text": "USD"}, "rangemode": "tozero"},
    )
    if deadline_days is None:
        return shown
    layout = shown["layout"] | {
        "shapes": [line(x=deadline_days)],
        "annotations": [_words(deadline_days, x=_log10(deadline_days), y=1, yref="paper")],
    }
    return {**shown, "layout": layout}


def _line(
    name: str, index: int, x: Sequence[float], y: Sequence[float], held: Sequence[Size]
) -> Trace:
    color = STACK[index % len(STACK)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "text": [size.text for size in held],
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": color, "width": 2},
        "marker": {"color": color, "size": 8, "symbol": SYMBOLS[index // len(STACK) % 8]},
    }


def _ticks(values: Sequence[float]) -> dict[str, object]:
    """The values themselves as ticks where there is room; every other one where there is not."""
    every = -(-len(values) // MOST_TICKS)
    kept = list(values)[::every]
    return {"tickvals": kept, "ticktext": [f"{value:,.4g}" for value in kept]}


def _round_values(values: Sequence[float]) -> list[float]:
    """1, 2, 3, 5 and 7 times powers of ten around some values, for a logarithmic axis."""
    low, high = 0.8 * min(values), 1.25 * max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [step * 10.0**power for power in powers for step in (1, 2, 3, 5, 7)]
    return [step for step in steps if low <= step <= high]


def _limited(shown: Picture, deadline_days: float | None) -> Picture:
    if deadline_days is None:
        return shown
    place = {"x": 1, "xref": "paper", "y": _log10(deadline_days), "xanchor": "right"}
    layout = shown["layout"] | {
        "shapes": [line(y=deadline_days)],
        "annotations": [_words(deadline_days, yanchor="bottom", **place)],
    }
    return {**shown, "layout": layout}


def _words(deadline_days: float, **place: object) -> dict[str, object]:
    return note(f"deadline: {deadline_days:g} days", **{"xanchor": "left", **place})


def _log10(value: float) -> float:
    """Where Plotly puts an annotation on a logarithmic axis."""
    return math.log10(value)
