"""Every CSV that we write: text that a spreadsheet would run as a formula stays text."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a formula may begin with (OWASP, CSV Injection)."""


def cell(value: Any) -> Any:
    """A value as a CSV holds it: an apostrophe goes before text that may be a formula (OWASP);
    numbers stay numbers, also those that are given as text."""
    if not isinstance(value, str) or not value.startswith(FORMULA_STARTS):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def write_rows(file: TextIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a header and rows; a column that a row lacks stays empty.

    Raises:
        ValueError: a row has another column.
    """
    writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
