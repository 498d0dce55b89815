"""Learning curves as SVG: error against minutes of profiling, and against measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, PANEL = 900, 360, 400
LEFT, TOP, BOTTOM = 60, 64, 48
COLORS = ("#1f6feb", "#d1582a")
INK, LINE = "#30363d", "#d5dae0"

Curve = Sequence[tuple[float, float]]
"""(x, error as a fraction)."""


def learning_curves(profiling: Mapping[str, Curve], runs: Mapping[str, Curve], title: str) -> str:
    """Two panels, a line a study; errors are fractions, seconds become minutes."""
    minutes = {
        name: [(seconds / 60, error) for seconds, error in curve]
        for name, curve in profiling.items()
    }
    most = max(error for curve in (*minutes.values(), *runs.values()) for _, error in curve)
    parts = [_text(LEFT, 24, title, 16, "bold")]
    for number, name in enumerate(runs):
        x = LEFT + 260 * number
        parts.append(f'<rect x="{x}" y="36" width="12" height="12" fill="{COLORS[number]}"/>')
        parts.append(_text(x + 18, 47, name, 13))
    parts += _panel(0, minutes, most, "minutes of profiling, no run")
    parts += _panel(WIDTH // 2, runs, most, "measured runs, after profiling")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
    head += f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">'
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, background, *parts, "</svg>"]) + "\n"


def _panel(offset: int, curves: Mapping[str, Curve], most: float, label: str) -> list[str]:
    """One panel with its axes; the lines are labelled by the legend above."""
    left, width = offset + LEFT, PANEL - LEFT
    height = HEIGHT - TOP - BOTTOM
    furthest = max(x for curve in curves.values() for x, _ in curve) or 1.0

    def place(x: float, error: float) -> tuple[float, float]:
        return left + width * x / furthest, TOP + height * (1 - error / (most * 1.05))

    parts = []
    step = _step(most)
    for number in range(int(most * 1.05 / step) + 1):
        _, y = place(0.0, number * step)
        parts.append(
            f'<line x1="{left}" y1="{y:.1f}" x2="{left + width}" y2="{y:.1f}" stroke="{LINE}"/>'
        )
        parts.append(_text(left - 8, y + 4, f"{number * step:.0%}", 12, anchor="end"))
    tick = _step(furthest)
    for number in range(int(furthest / tick) + 1):
        x, _ = place(number * tick, 0.0)
        parts.append(_text(x, TOP + height + 18, f"{number * tick:g}", 12, anchor="middle"))
    parts.append(_text(left + width / 2, HEIGHT - 8, label, 13, anchor="middle"))
    for color, curve in zip(COLORS, curves.values(), strict=False):
        dots = [place(x, error) for x, error in curve]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in dots)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in dots]
    return parts


def _step(most: float) -> float:
    """A round step that gives at most six marks."""
    size = 10.0**-6
    while True:
        for factor in (1.0, 2.0, 5.0):
            if most / (size * factor) <= 6:
                return size * factor
        size *= 10


def _text(
    x: float, y: float, text: str, size: int, weight: str = "normal", anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" '
        f'text-anchor="{anchor}" fill="{INK}">{escape(text)}</text>'
    )
