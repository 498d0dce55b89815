"""Percentages as people read them: no minus before zero."""

from __future__ import annotations


def in_percent(fraction: float, digits: int = 1) -> float:
    """A fraction in percent, rounded; what rounds to zero is 0.0, never -0.0."""
    return round(100 * fraction, digits) + 0.0


def percent(fraction: float, signed: bool = False, digits: int = 1) -> str:
    """A fraction as a percentage; what rounds to zero has no sign."""
    rounded = in_percent(fraction, digits)
    return f"{rounded:+.{digits}f}%" if signed and rounded else f"{rounded:.{digits}f}%"
