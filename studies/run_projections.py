"""Projects every row of a table of runs: ``foretune project --runs``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from specs import csv_files
from specs.files import atomic_text
from specs.runs import RunTable
from surrogate.learned import Learned
from surrogate.projection import Projections
from surrogate.run_cases import cases_of

COLUMNS = (
    "run_id",
    "tokens_per_s_per_gpu",
    "lo90",
    "hi90",
    "step_time_s",
    "device_gib",
    "reserved_gib",
    "allocated_gib",
    "fit_probability",
    "trust",
    "error",
)

Row = dict[str, str]


def projected_rows(table: RunTable, learned: Learned) -> list[Row]:
    """One row a row of the file, in its order; a refused one says why in ``error``."""
    rows = {r.row: {"run_id": r.run_id, "error": r.reason} for r in table.refused}
    if len(table):
        cases = cases_of(table)
        found = learned.projections_of(table)
        fits = learned.peaks().fit_probability(cases, found.device_gib, table.unstated != "")
        found = replace(found, fit_probability=fits)
        for index in range(len(table)):
            rows[int(table.row[index])] = _row(str(table.run_id[index]), found, index)
    return [dict.fromkeys(COLUMNS, "") | rows[place] for place in sorted(rows)]


def _row(run_id: str, found: Projections, index: int) -> Row:
    """The projection of one row as text: four significant digits, no false precision."""
    numbers = {
        name: f"{float(getattr(found, name)[index]):.4g}"
        for name in COLUMNS[1:9]
        if name != "fit_probability"
    }
    probability = f"{float(found.fit_probability[index]):.3f}"
    trust = str(found.trust[index])
    return {"run_id": run_id, **numbers, "fit_probability": probability, "trust": trust}


def write_rows(path: Path, rows: list[Row]) -> None:
    """Writes the rows as CSV, atomically.

    Raises:
        OSError: the folder cannot be written.
    """
    with atomic_text(path) as file:
        csv_files.write_rows(file, COLUMNS, rows)
