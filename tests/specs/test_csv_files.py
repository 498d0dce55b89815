"""CSVs that are written hold text and numbers, and no formula."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from specs.csv_files import cell, checked_header, write_rows
from specs.errors import InputError
from specs.run_columns import runs_csv

FORMULA = "=cmd|' /C calc'!A0"


@pytest.mark.parametrize(
    "text", [FORMULA, "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "-oom", "--", "＝1+1"]
)
def test_text_like_a_formula_gets_an_apostrophe(text: str) -> None:
    assert cell(text) == f"'{text}"


@pytest.mark.parametrize("value", [-1, -1.5, "-1", "-1.5e-3", "+2", "", None, "a=b", "run-1", 0])
def test_numbers_and_other_text_stay_as_they_are(value: Any) -> None:
    assert cell(value) is value


def test_rows_are_written_with_it() -> None:
    file = io.StringIO()
    write_rows(file, ("name", "change", "note"), [{"name": FORMULA, "change": -0.5}])
    assert list(csv.reader(io.StringIO(file.getvalue()))) == [
        ["name", "change", "note"],
        [f"'{FORMULA}", "-0.5", ""],
    ]
    (row,) = csv.DictReader(io.StringIO(runs_csv([{"run_id": FORMULA, "beyond": "x"}])))
    assert row["run_id"] == f"'{FORMULA}"
    assert "beyond" not in row


def test_blanks_around_the_names_of_columns_do_not_count() -> None:
    assert checked_header([" gpu", "model ", "", "", "x"], ("model", "gpu"), "a.csv") == [
        "gpu", "model", "", "", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (["gpu", "model", "tp", "pp", " tp"], "names tp twice"),
        (["gpu", "tp"], "needs the columns model and gpu"),
        (["gpu;model;tp"], "separated by semicolons; save it with commas"),
        (["gpu\tmodel"], "separated by tabs"),
        (['"gpu";"notes', ' more";"model"'], "separated by semicolons"),
        ([], "needs the columns model and gpu"),
    ],
)
def test_a_header_that_cannot_be_read_says_why(header: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words) as complaint:
        checked_header(header, ("model", "gpu"), "a.csv is no table of runs")
    assert str(complaint.value).startswith("a.csv is no table of runs: ")
