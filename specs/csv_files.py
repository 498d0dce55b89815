"""CSV files: the header of one that we read, and every one that we write: text that a spreadsheet
would run as a formula stays text."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from specs.errors import InputError

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""What a formula may begin with (OWASP, CSV Injection)."""

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
"""What is written between columns where a comma is not (spreadsheets of many countries)."""


def checked_header(header: Sequence[str], needed: Sequence[str], what: str) -> list[str]:
    """Names of the columns of a CSV, without blanks around them.

    Args:
        header: cells of the first row, separated by commas.
        needed: columns that must be there.
        what: the file and what it is to be, "x.csv is no table of runs", for the complaint.

    Raises:
        InputError: a needed column is missing, or a column is there twice.
    """
    names = [name.strip() for name in header]
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise InputError(
            f"{what}: its header names {', '.join(twice)} twice; keep one column of each name."
        )
    if set(needed) <= set(names):
        return names
    for separator, words in SEPARATORS.items():
        found = {name.strip().strip('"') for name in ",".join(header).split(separator)}
        if set(needed) <= found:
            raise InputError(
                f"{what}: its columns are separated by {words}; save it with commas between them."
            )
    raise InputError(f"{what}: it needs the columns {' and '.join(needed)}.")


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
