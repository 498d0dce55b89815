"""Tables of runs that lack a column, row by row and as a whole: projected, or refused with why."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from specs import catalog
from specs.runs import table_of
from studies.cli.main import call

RUN = {
    "run_id": "a", "gpu": "MI300X", "gpus_per_node": "8", "num_gpus": "16", "framework": "Primus",
    "model": "llama3.1-8b", "precision": "bf16", "seq_len": "8192", "gbs": "128", "mbs": "1",
    "tp": "2", "pp": "1", "sharding": "zero1", "recompute": "none", "tokens_per_s_per_gpu": "7400",
    "peak_mem_gb": "71", "memory_counter": "device", "memory_unit": "gib",
}  # fmt: skip
NEEDED = ("gpu", "model", "num_gpus", "seq_len", "tp", "pp")
"""Without one of these the row above cannot be projected."""


def write(path: Path, *rows: dict[str, str]) -> Path:
    """A table with the columns of its first row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("column", RUN)
def test_a_table_without_a_column_works_or_says_what_is_missing(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = {name: value for name, value in RUN.items() if name != column}
    runs, out = str(write(tmp_path / "r.csv", row)), str(tmp_path / "out")
    for command in (
        ["validate", runs],
        ["calibrate", "--runs", runs, "--out", out],
        ["project", "--runs", runs, "--csv", out],
    ):
        assert call(command) == (2 if column in NEEDED else 0), command
        complaint = capsys.readouterr().err
        if column in NEEDED:
            assert column in complaint
            assert complaint.count("\n") == 1


def test_every_refused_row_is_told_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = [RUN | {"run_id": f"bad{n}", "pp": ""} for n in range(5)]
    runs = write(tmp_path / "r.csv", RUN, *bad, RUN | {"run_id": "odd", "seq_len": "none"})
    out = str(tmp_path / "out")
    for command in (
        ["validate", str(runs)],
        ["calibrate", "--runs", str(runs), "--out", out],
        ["project", "--runs", str(runs), "--csv", out],
    ):
        assert call(command) == 0
        told = capsys.readouterr().out
        assert "pp is missing" in told
        assert "bad0, bad1, bad2 and 2 more" in told
        assert "seq_len is 'none'" in told
    assert call(["validate", str(runs), "--json"]) == 0
    refused = json.loads(capsys.readouterr().out)["refused"]
    assert [entry["run_id"] for entry in refused] == [f"bad{n}" for n in range(5)] + ["odd"]


def test_a_table_without_rows_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "r.csv"
    runs.write_text(",".join(RUN) + "\n")
    assert call(["validate", str(runs)]) == 2
    assert "no row" in capsys.readouterr().err
    assert call(["project", "--runs", str(runs), "--csv", str(tmp_path / "out")]) == 2


def test_an_empty_table_keeps_its_dtypes() -> None:
    full = table_of([dict(RUN)], catalog.model, catalog.gpu)
    empty = table_of([], catalog.model, catalog.gpu)
    assert (len(full), len(empty)) == (1, 0)
    for name, value in vars(full).items():
        if isinstance(value, np.ndarray):
            assert getattr(empty, name).dtype == value.dtype, name
