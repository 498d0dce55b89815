"""Pareto front: throughput against peak memory of the trials, and those that nothing dominates."""

from __future__ import annotations

from collections.abc import Sequence

from studies.pictures.style import BLUE, GREEN, RED, Attempt, Picture, dots, line, note, picture


def front(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts that fit and that no other beats in throughput without more memory."""
    kept: list[Attempt] = []
    fitting = [attempt for attempt in attempts if attempt.fits]
    for attempt in sorted(fitting, key=lambda a: (a.peak_gib, -a.tokens_per_s_per_gpu)):
        if not kept or attempt.tokens_per_s_per_gpu > kept[-1].tokens_per_s_per_gpu:
            kept.append(attempt)
    return kept


def pareto(attempts: Sequence[Attempt], capacity_gib: float) -> Picture:
    """Throughput over memory up to twice the capacity; the line joins what nothing dominates."""
    accepted = [attempt for attempt in attempts if attempt.fits]
    refused = [attempt for attempt in attempts if not attempt.fits]
    best = front(attempts)
    most = 1.05 * max(capacity_gib, *(attempt.peak_gib for attempt in attempts))
    joined = dots(best, [a.peak_gib for a in best], "Pareto front", GREEN)
    joined |= {"mode": "lines+markers", "line": {"color": GREEN, "width": 2, "shape": "hv"}}
    traces = [
        dots(accepted, [a.peak_gib for a in accepted], "fits", BLUE),
        dots(refused, [a.peak_gib for a in refused], "refused by memory", RED, "x"),
        joined,
    ]
    words = note(
        f"{capacity_gib:.0f} GiB", x=capacity_gib, y=0, yref="paper", xanchor="left",
        yanchor="bottom",
    )  # fmt: skip
    return picture(
        traces,
        {
            "title": {"text": "peak memory of the fullest stage, GiB"},
            "range": [0, min(most, 2 * capacity_gib)],
        },
        {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"},
        shapes=[line(x=capacity_gib)],
        annotations=[words],
    )
