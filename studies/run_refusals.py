"""Rows of a table of runs that cannot be used, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specs.errors import InputError
from specs.runs import RunTable

NAMED = 3
"""Rows that are named for a reason; of the others the number is told."""
REASONS = 10
"""Reasons that are told; the JSON has every row."""


def check_some_usable(table: RunTable, path: Path) -> None:
    """Refuses a table of which no row can be used.

    Raises:
        InputError: there is no row, or each was refused; it says why.
    """
    if len(table):
        return
    if not table.refused:
        raise InputError(f"{path} has no row; a table of runs has one row a run.")
    reasons = "; ".join(by_reason(refusal._asdict() for refusal in table.refused))
    raise InputError(f"{path} has no row that can be used: {reasons}.")


def by_reason(skipped: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line a reason with the rows that it holds for, the most frequent reason first.

    Args:
        skipped: of each row its ``run_id`` and ``reason``.
    """
    rows: dict[str, list[str]] = {}
    for entry in skipped:
        rows.setdefault(str(entry["reason"]).rstrip("."), []).append(str(entry["run_id"]))
    reasons = sorted(rows, key=lambda reason: -len(rows[reason]))
    lines = [f"{reason} ({_some(rows[reason])})" for reason in reasons[:REASONS]]
    if len(reasons) > REASONS:
        others = sum(len(rows[reason]) for reason in reasons[REASONS:])
        lines.append(f"{len(reasons) - REASONS} more reasons in {others} rows")
    return lines


def _some(run_ids: list[str]) -> str:
    """The first few names and how many there are beside."""
    more = len(run_ids) - NAMED
    return ", ".join(run_ids[:NAMED]) + (f" and {more:,} more" if more > 0 else "")
