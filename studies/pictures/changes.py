"""Changes: what each change from the baseline brings alone, and on top of all the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specs.figures import in_percent
from studies.pictures.style import BLUE, GREEN, Picture, picture


@dataclass(frozen=True, slots=True)
class Change:
    """A change and the fractions of throughput that it brings; None where it is illegal."""

    name: str
    alone: float | None
    last: float | None


def changes(effects: Sequence[Change]) -> Picture:
    """Bars of the gain in percent, two a change; changes are lettered in their order."""
    names = [f"{letter(i)}: {wrapped(effect.name)}" for i, effect in enumerate(effects)]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [None if value is None else in_percent(value) for value in values],
            "marker": {"color": color},
            "hovertemplate": "%{y}: %{x:+.1f}%<extra>" + name + "</extra>",
        }
        for name, values, color in (
            ("alone, from the baseline", [e.alone for e in effects], BLUE),
            ("on top of all the others", [e.last for e in effects], GREEN),
        )
    ]
    return picture(
        traces,
        {"title": {"text": "change of tokens/s/GPU"}, "ticksuffix": "%"},
        {"title": {"text": ""}, "autorange": "reversed"},
        height=150 + 58 * len(effects),
        barmode="group",
    )


def letter(index: int) -> str:
    """A, B, C ... by which pictures and tables name the changes."""
    return chr(ord("A") + index)


def wrapped(text: str, width: int = 26, most: int = 3) -> str:
    """Text broken into at most ``most`` lines of about ``width`` characters, Plotly's way."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    cut = lines[:most] if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} ..."]
    return "<br>".join(line if len(line) <= width else f"{line[: width - 3]}..." for line in cut)
