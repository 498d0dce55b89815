"""The picture of a study: memory against throughput of the legal space, the trials and the best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from studies.result import Found, Result

WIDTH, HEIGHT = 860, 470
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 56, 58
SAMPLED = 1500
GREY, BLUE, RED, GREEN, INK = "#b9bec6", "#2f6fb5", "#c8553d", "#1f8a4c", "#22262b"

Point = tuple[float, float]


class _Frame:
    """From GiB and tokens/s/GPU to places in the picture."""

    def __init__(self, most_gib: float, most_speed: float) -> None:
        self.x_ticks, self.y_ticks = _ticks(most_gib), _ticks(most_speed)
        self._x_most, self._y_most = self.x_ticks[-1], self.y_ticks[-1]

    def x(self, gib: float) -> float:
        """Horizontal place of a memory."""
        return LEFT + (WIDTH - LEFT - RIGHT) * min(gib / self._x_most, 1.0)

    def y(self, speed: float) -> float:
        """Vertical place of a throughput."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(speed / self._y_most, 1.0)


def picture(result: Result, seed: int = 0) -> str:
    """An SVG that shows where the best lies in the legal space.

    Grey dots are a uniform sample of the legal space, the others the trials of the study; memory
    beyond twice the capacity is left out.
    """
    job, study = result.study.job, result.study
    capacity = job.cluster.gpu.hbm_gib.value
    sample = study.space.sample(SAMPLED, seed)
    seen = job.project(sample)
    near = seen.device_gib <= 2 * capacity
    cloud = list(zip(seen.device_gib[near], seen.tokens_per_s_per_gpu[near], strict=True))
    trials = [
        (trial.memory_gib + capacity, trial.tokens_per_s_per_gpu)
        for trial in study.trials
        if trial.memory_gib is not None and trial.tokens_per_s_per_gpu is not None
    ]
    trials = [point for point in trials if point[0] <= 2 * capacity]
    most = max(result.best.speed, *(speed for _, speed in cloud), *(s for _, s in trials))
    frame = _Frame(2 * capacity, 1.12 * most)
    fits = [point for point in trials if point[0] <= capacity]
    too_big = [point for point in trials if point[0] > capacity]
    workload = job.experiment.workload
    title = (
        f"{workload.model.name} on {job.cluster.num_gpus:,} {job.cluster.gpu.name}: "
        f"{study.ranking.legal:,} legal configs"
    )
    parts = [
        *_axes(frame, title),
        *_dots(frame, cloud, GREY, 2.0, 0.55),
        *_dots(frame, too_big, RED, 3.4, 0.9),
        *_dots(frame, fits, BLUE, 3.4, 0.9),
        *_capacity(frame, capacity, job.cluster.gpu.name),
        *_legend(),
        *_marked(frame, "best", result.best, GREEN),
    ]
    if result.baseline:
        parts += _marked(frame, "baseline", result.baseline, INK)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="13">\n<rect width="100%" height="100%" fill="#ffffff"/>\n{body}\n</svg>\n'
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least ``most``, five to ten of them."""
    raw = most / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [step * i for i in range(math.ceil(most / step) + 1)]


def _text(x: float, y: float, text: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, color: str, more: str = "") -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{color}" {more}/>'


def _axes(frame: _Frame, title: str) -> Iterable[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    yield _text(LEFT, 26, title, more=f'font-size="16" font-weight="bold" fill="{INK}"')
    for tick in frame.x_ticks:
        yield _line(frame.x(tick), bottom, frame.x(tick), bottom + 5, INK)
        yield _text(frame.x(tick), bottom + 20, f"{tick:,.0f}", "middle", f'fill="{INK}"')
    for tick in frame.y_ticks:
        yield _line(LEFT, frame.y(tick), right, frame.y(tick), "#e7e9ec")
        yield _text(LEFT - 8, frame.y(tick) + 4, f"{tick:,.0f}", "end", f'fill="{INK}"')
    yield _line(LEFT, bottom, right, bottom, INK)
    middle = (LEFT + right) / 2
    yield _text(middle, HEIGHT - 16, "memory of the fullest GPU (GiB)", "middle", f'fill="{INK}"')
    turned = f'fill="{INK}" transform="rotate(-90 18 {(TOP + bottom) / 2:.0f})"'
    yield _text(18, (TOP + bottom) / 2, "tokens/s/GPU", "middle", turned)


def _dots(
    frame: _Frame, points: Sequence[Point], color: str, radius: float, opacity: float
) -> Iterable[str]:
    yield f'<g fill="{color}" fill-opacity="{opacity}">'
    for gib, speed in np.round([(frame.x(g), frame.y(s)) for g, s in points], 1).tolist():
        yield f'<circle cx="{gib}" cy="{speed}" r="{radius}"/>'
    yield "</g>"


def _capacity(frame: _Frame, capacity_gib: float, gpu: str) -> Iterable[str]:
    x = frame.x(capacity_gib)
    yield _line(x, TOP, x, HEIGHT - BOTTOM, RED, 'stroke-dasharray="6 4" stroke-width="1.5"')
    yield _text(x + 6, TOP + 12, f"{capacity_gib:,.0f} GiB of {gpu}", more=f'fill="{RED}"')


def _legend() -> Iterable[str]:
    rows = ((GREY, "legal space (sample)"), (BLUE, "trial, fits"), (RED, "trial, does not fit"))
    for index, (color, words) in enumerate(rows):
        x = LEFT + 190 * index
        yield f'<circle cx="{x + 5}" cy="42" r="4" fill="{color}"/>'
        yield _text(x + 15, 46, words, more=f'fill="{INK}"')


def _marked(frame: _Frame, name: str, found: Found, color: str) -> Iterable[str]:
    x, y = frame.x(found.projection["memory"]["peak_gib"]), frame.y(found.speed)
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" fill="none" stroke="{color}" stroke-width="3"/>'
    words = f"{name}: {found.speed:,.0f}"
    yield _text(x, y - 13, words, "middle", f'fill="{color}" font-weight="bold" font-size="14"')
