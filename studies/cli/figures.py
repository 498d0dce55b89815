"""Figures as people read them: no powers of ten, no label of four lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ELLIPSIS = "…"


def duration(seconds: float) -> str:
    """Three digits and the unit in which they are no small fraction: s, ms or us."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1:
            return f"{_three_digits(seconds * scale)} {unit}"
    return f"{_three_digits(seconds * 1e6)} us"


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def counted(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(text: str, width: int) -> str:
    """``text`` in at most ``width`` characters; of a longer one beginning and end stay."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return text[: width - 1 - end].rstrip() + ELLIPSIS + text[-end:].lstrip()


def components_in_words(components: Mapping[str, float], smallest_gib: float) -> str:
    """Parts of a peak in GiB, the largest first.

    ``overhead`` closes the sum: below 0 it is what of the other parts is not alive at once.
    """
    parts: list[Any] = sorted(components.items(), key=lambda part: -part[1])
    told = [f"{name} {gib:.1f}" for name, gib in parts if gib >= smallest_gib]
    less = -components.get("overhead", 0.0)
    never_at_once = f", less {less:.1f} that are not alive at once" if less >= smallest_gib else ""
    return ", ".join(told) + never_at_once
