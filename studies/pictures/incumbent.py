"""Incumbent: the best throughput so far over the trials, with those that memory refused."""

from __future__ import annotations

from collections.abc import Sequence

from studies.pictures.style import BLUE, GREEN, RED, Attempt, Picture, dots, picture


def incumbent(attempts: Sequence[Attempt]) -> Picture:
    """Throughput by number of trial; the line is the best that fits so far."""
    accepted = [attempt for attempt in attempts if attempt.fits]
    refused = [attempt for attempt in attempts if not attempt.fits]
    best, numbers, values = 0.0, [], []
    for attempt in attempts:
        if attempt.fits:
            best = max(best, attempt.tokens_per_s_per_gpu)
        if best:
            numbers.append(attempt.number)
            values.append(best)
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "x": numbers,
        "y": values,
        "line": {"color": GREEN, "width": 3, "shape": "hv"},
        "hovertemplate": "%{y:,.0f} tokens/s/GPU after trial %{x}<extra></extra>",
    }
    traces = [
        dots(accepted, [a.number for a in accepted], "fits", BLUE),
        dots(refused, [a.number for a in refused], "refused by memory", RED, "x"),
        line,
    ]
    return picture(traces, "trial", {"title": {"text": "tokens/s/GPU"}, "rangemode": "tozero"})
