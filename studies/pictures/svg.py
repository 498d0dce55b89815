"""SVG: a picture made of bars as a file that any viewer shows, without Plotly or a browser.

Enough for memory by stage and pipelines; other pictures are rendered by Plotly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from studies.pictures.style import RED, Picture

WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 84, 56
INK, LINE = "#30363d", "#d5dae0"
MOST_LABELS = 12
"""Names of bars that have room beside each other."""
CHARACTER = 7.2
"""Pixels of a character, for the legend."""


@dataclass(frozen=True, slots=True)
class _Bar:
    """A bar: its slot on the axis of categories and its ends on the axis of values."""

    slot: int
    start: float
    end: float
    color: str


def svg(shown: Picture, title: str) -> str:
    """The SVG of a picture whose traces are bars.

    Args:
        shown: vertical bars are stacked; horizontal ones lie at their ``base``.
        title: stands above the picture.

    Raises:
        ValueError: a trace is no bar.
    """
    traces, layout = shown["data"], shown["layout"]
    if not traces or any(trace["type"] != "bar" for trace in traces):
        raise ValueError("only pictures of bars can be drawn as SVG")
    flat = traces[0].get("orientation") == "h"
    slots = _slots(traces, flat)
    bars = list(_bars(traces, slots, flat))
    lines = [shape["y0"] for shape in layout.get("shapes", [])]
    most = max([bar.end for bar in bars] + lines, default=1.0) or 1.0
    step = _step(most)
    draw = _Flat(len(slots), most) if flat else _Upright(len(slots), most)
    every = -(-len(slots) // MOST_LABELS)
    words = [note["text"] for note in layout.get("annotations", [])]
    axis = layout["xaxis" if flat else "yaxis"]["title"]["text"]
    parts = [
        _text(LEFT, 24, title, 16, weight="bold"),
        *_legend(traces),
        *(
            part
            for tick in range(int(most / step) + 1)
            for part in draw.tick(tick * step, f"{tick * step:g}")
        ),
        *(draw.bar(bar) for bar in bars),
        *(draw.label(slot, name) for name, slot in slots.items() if slot % every == 0),
        *(draw.limit(value) for value in lines),
        draw.title(axis),
        *(_text(WIDTH - RIGHT, 24, text, 12, "end") for text in words),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif">\n'
        '<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _names(trace: Any, flat: bool) -> list[str]:
    held = trace["y" if flat else "x"]
    if held and isinstance(held[0], list):  # Two levels of categories: config and stage.
        return [f"{outer} {inner}" for outer, inner in zip(*held, strict=True)]
    return [str(name) for name in held]


def _slots(traces: Sequence[Any], flat: bool) -> dict[str, int]:
    names = list(dict.fromkeys(name for trace in traces for name in _names(trace, flat)))
    ordered = sorted(names, key=lambda n: (len(n), n)) if flat else names
    return {name: slot for slot, name in enumerate(ordered)}


def _bars(traces: Sequence[Any], slots: dict[str, int], flat: bool) -> Iterator[_Bar]:
    height = [0.0] * len(slots)
    for trace in traces:
        values = trace["x" if flat else "y"]
        bases = trace.get("base") or [None] * len(values)
        for name, value, base in zip(_names(trace, flat), values, bases, strict=True):
            slot = slots[name]
            start = height[slot] if base is None else base
            height[slot] = start + value
            yield _Bar(slot, start, start + value, trace["marker"]["color"])


def _step(most: float) -> float:
    """A round distance of ticks that gives 4 to 9 of them."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    return max(f * power for f in (1, 2, 5) if f * power <= most / 4)


class _Upright:
    """Bars that stand; values go up."""

    def __init__(self, slots: int, most: float) -> None:
        self._slot = (WIDTH - LEFT - RIGHT) / slots
        self._scale = (HEIGHT - TOP - BOTTOM) / (1.05 * most)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value * self._scale

    def bar(self, bar: _Bar) -> str:
        """The rectangle of a bar."""
        x, top = LEFT + (bar.slot + 0.12) * self._slot, self._y(bar.end)
        return _rectangle(x, top, 0.76 * self._slot, self._y(bar.start) - top, bar.color)

    def tick(self, value: float, text: str) -> list[str]:
        """A value on the axis, with its line."""
        y = self._y(value)
        return [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 8, y + 4, text, 12, "end")]

    def label(self, slot: int, name: str) -> str:
        """The name of a slot."""
        return _text(LEFT + (slot + 0.5) * self._slot, HEIGHT - BOTTOM + 18, name, 12, "middle")

    def limit(self, value: float) -> str:
        """A dashed line at a value."""
        return _line(LEFT, self._y(value), WIDTH - RIGHT, self._y(value), RED, "8 5")

    def title(self, text: str) -> str:
        """What the values are."""
        return _text(LEFT - 8, TOP - 8, text, 12, "end")


class _Flat:
    """Bars that lie; values go right, the first slot is on top."""

    def __init__(self, slots: int, most: float) -> None:
        self._slot = (HEIGHT - TOP - BOTTOM) / slots
        self._scale = (WIDTH - LEFT - RIGHT) / most

    def bar(self, bar: _Bar) -> str:
        """The rectangle of a bar."""
        x, y = LEFT + bar.start * self._scale, TOP + (bar.slot + 0.08) * self._slot
        length = (bar.end - bar.start) * self._scale
        return _rectangle(x, y, max(length - 0.4, 0.2), 0.84 * self._slot, bar.color)

    def tick(self, value: float, text: str) -> list[str]:
        """A value on the axis, with its line."""
        x = LEFT + value * self._scale
        below = HEIGHT - BOTTOM
        return [_line(x, TOP, x, below), _text(x, below + 18, text, 12, "middle")]

    def label(self, slot: int, name: str) -> str:
        """The name of a slot."""
        return _text(LEFT - 8, TOP + (slot + 0.5) * self._slot + 4, name, 12, "end")

    def limit(self, value: float) -> str:
        """A dashed line at a value."""
        x = LEFT + value * self._scale
        return _line(x, TOP, x, HEIGHT - BOTTOM, RED, "8 5")

    def title(self, text: str) -> str:
        """What the values are."""
        return _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, text, 12, "middle")


def _legend(traces: Sequence[Any]) -> Iterator[str]:
    x = float(LEFT)
    for trace in traces:
        yield _rectangle(x, 40, 12, 12, trace["marker"]["color"])
        yield _text(x + 17, 50, trace["name"], 12)
        x += 34 + CHARACTER * len(trace["name"])


def _rectangle(x: float, y: float, width: float, height: float, color: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{max(height, 0):.1f}" '
        f'fill="{escape(color)}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, color: str = LINE, dash: str = "none") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-dasharray="{dash}"/>'
    )


def _text(
    x: float, y: float, text: str, size: int, anchor: str = "start", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{INK}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )
