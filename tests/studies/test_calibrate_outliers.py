"""``foretune calibrate`` on rows that cannot be right: each is set aside or named, with why."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from studies.cli.main import call
from tests.studies.test_calibrate_command import COLUMNS, EXAMPLE, calibrate, table


def projected(capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    """The memory of a config of the example as it is projected."""
    assert call(["project", str(EXAMPLE), *map(str, options), "--json"]) == 0
    memory: dict[str, Any] = json.loads(capsys.readouterr().out)["memory"]
    return memory


def test_a_run_out_of_memory_that_a_finished_one_refutes_is_set_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = ("c", 1, 2, "9500", "135")
    runs = table(tmp_path / "r.csv", finished, ("d-oom", 4, 1, "", ""), ("e-oom", 1, 8, "", ""))
    out = tmp_path / "c.json"
    told = calibrate(capsys, "--runs", runs, "--out", out)
    assert [run["run_id"] for run in told["skipped"]] == ["d-oom"]
    assert "run c of the same job" in told["skipped"][0]["reason"]
    assert told["memory"]["out_of_memory"] == 1
    assert told["doubtful"] == []
    seen = projected(capsys, "--set=tp=1", "--set=mbs=2", "--calibration", out)
    assert seen["peak_gib"] == pytest.approx(135, rel=0.03)
    assert seen["fit_probability"] > 0.9


def test_a_run_of_another_job_refutes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = table(tmp_path / "r.csv", ("c", 1, 2, "9500", "135"), ("d-oom", 2, 1, "", ""))
    runs.write_text(runs.read_text().replace("d-oom,MI300X,8,16", "d-oom,MI300X,8,32"))
    told = calibrate(capsys, "--runs", runs, "--out", tmp_path / "c.json")
    assert (told["skipped"], told["memory"]["out_of_memory"]) == ([], 1)


def test_a_lone_run_out_of_memory_that_had_much_to_spare_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = table(tmp_path / "r.csv", ("d-oom", 4, 1, "", "")), tmp_path / "c.json"
    before = projected(capsys, "--set=tp=1", "--set=mbs=2")["peak_gib"]
    assert call(["calibrate", "--runs", str(runs), "--out", str(out)]) == 0
    words = " ".join(capsys.readouterr().out.split())
    named = re.search(r"d-oom \((\d+) GiB projected of 192\)", words)
    assert named is not None
    assert int(named[1]) == pytest.approx(35, abs=2)
    after = projected(capsys, "--set=tp=1", "--set=mbs=2", "--calibration", out)["peak_gib"]
    assert before < after < 1.4 * before


def test_a_throughput_beyond_the_peak_of_the_gpu_is_not_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = (("b", 1, 1, "8300", ""), ("c", 4, 2, "5900", ""))
    alone = calibrate(
        capsys, "--runs", table(tmp_path / "1.csv", *right), "--out", tmp_path / "1.json"
    )
    runs = table(tmp_path / "2.csv", ("a", 2, 1, "74000", "71"), *right)
    both = calibrate(capsys, "--runs", runs, "--out", tmp_path / "2.json")
    assert [run["run_id"] for run in both["skipped"]] == ["a"]
    assert "more than a MI300X can multiply" in both["skipped"][0]["reason"]
    assert both["keys"] == alone["keys"]
    assert both["memory"]["peaks"] == 0
    # Slow beyond four times is possible: it is learned, and named.
    slow = table(tmp_path / "3.csv", ("a", 2, 1, "1500", ""), *right)
    told = calibrate(capsys, "--runs", slow, "--out", tmp_path / "3.json")
    assert (told["runs"], told["skipped"]) == (3, [])
    assert told["disagree"][0]["run_id"] == "a"


@pytest.mark.parametrize(
    ("slow", "blamed"), [("128", True), ("16", False)], ids=["many nodes", "few nodes"]
)
def test_a_run_on_more_nodes_that_is_slow_may_have_a_slow_network(
    slow: str, blamed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "r.csv", tmp_path / "projected.csv"
    rows = [
        f"{gpus}-{tp}-{mbs},MI300X,8,{gpus},Primus,llama3.1-8b,bf16,8192,512,{mbs},{tp},1,zero1,none"
        for gpus in ("16", "32", "64", "128")
        for tp in (1, 2)
        for mbs in (1, 2)
    ]

    def write(speeds: list[float]) -> None:
        lines = [f"{row},{speed:g},,," for row, speed in zip(rows, speeds, strict=True)]
        runs.write_text("\n".join([COLUMNS, *lines]) + "\n")

    write([1.0] * len(rows))
    assert call(["project", "--runs", str(runs), "--csv", str(out)]) == 0
    with out.open() as file:
        projected = [float(row["tokens_per_s_per_gpu"]) for row in csv.DictReader(file)]
    name = f"{slow}-1-1"
    slowed = [0.6 if row.startswith(f"{name},") else 1.0 for row in rows]
    write([speed * factor for speed, factor in zip(projected, slowed, strict=True)])
    capsys.readouterr()
    assert call(["calibrate", "--runs", str(runs), "--out", str(tmp_path / "c.json")]) == 0
    headline = capsys.readouterr().out.partition("GPU | framework")[0]
    assert f"{name} (measured" in headline
    assert ("a network slower than stated" in headline) is blamed
