"""Numbers that are taken from a file: true and false, which Python counts as 1 and 0, are none."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator


def no_truth(value: Any) -> Any:
    """``value`` unless it is true or false (YAML 1.1 reads yes, no, on and off as these too).

    Raises:
        ValueError: it is one of them.
    """
    if isinstance(value, bool):
        raise ValueError(f"use a number, not {str(value).lower()}")
    return value


Whole = Annotated[int, BeforeValidator(no_truth)]
"""A whole number in a schema."""
Number = Annotated[float, BeforeValidator(no_truth)]
"""A number in a schema."""
