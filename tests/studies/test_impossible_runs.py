"""Results that cannot be those of their run: ``validate`` and ``calibrate`` leave out the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specs.models_json import models_json
from specs.runs import read_runs
from studies.cli.main import call
from studies.impossible_runs import impossible_peaks, impossible_speeds, rows_with_speed
from surrogate.learned import shipped
from tests.studies.test_calibrate_command import calibrate, table

RIGHT = (("b", 1, 1, "8300", "110"), ("c", 4, 2, "5900", ""))


def validate(capsys: pytest.CaptureFixture[str], runs: Path, *options: object) -> dict[str, Any]:
    """The JSON of a validation that works, without a word beside it."""
    assert call(["validate", str(runs), *map(str, options), "--json"]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    content: dict[str, Any] = json.loads(written.out)
    return content


def reasons(skipped: Sequence[dict[str, Any]], run_id: str) -> list[str]:
    """Why a run is left out."""
    return [entry["reason"] for entry in skipped if entry["run_id"] == run_id]


@pytest.mark.parametrize(
    ("speed", "peak", "words"),
    [
        ("118400", "71", "more than a MI300X can multiply"),
        ("7.4", "71", "beyond reason where"),
        ("1e-20", "71", "beyond reason where"),
        ("7400", "72704", "a peak of 72,704 GiB is not that of its config"),
        ("7400", "0.07", "a peak of 0.07 GiB is not that of its config"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_both_commands_leave_out_the_same_for_the_same_reason(
    speed: str, peak: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_speed_wrong = speed != "7400"
    runs = table(tmp_path / "r.csv", ("a", 2, 1, speed, peak), *RIGHT)
    learned = calibrate(capsys, "--runs", runs, "--out", tmp_path / "c.json")
    (why,) = reasons(learned["skipped"], "a")
    assert words in why
    assert "check the unit" in why
    for options in ((), ("--calibration", tmp_path / "c.json")):
        judged = validate(capsys, runs, *options)
        assert reasons(judged["memory"]["skipped"], "a") == [why]
        assert reasons(judged["throughput"]["skipped"], "a") == ([why] if is_speed_wrong else [])
        assert judged["throughput"]["n"] == learned["runs"] == (2 if is_speed_wrong else 3)
        assert judged["memory"]["n"] == learned["memory"]["peaks"] == 1


def test_errors_are_those_of_a_table_without_the_impossible_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = (("fast", 2, 1, "118400", ""), ("mib", 2, 2, "", "72704"), ("oom-oom", 2, 1, "9e5", ""))
    alone = validate(capsys, table(tmp_path / "1.csv", *RIGHT))
    both = validate(capsys, table(tmp_path / "2.csv", *wrong, *RIGHT))
    assert both["memory"]["out_of_memory"]["n"] == 0
    assert both["groups"] == alone["groups"]
    for what in ("throughput", "memory"):
        for name in ("n", "mape", "p90_ape", "bias", "half_width90"):
            assert both[what][name] == pytest.approx(alone[what][name]), name


def test_an_impossible_peak_alone_says_so_where_nothing_is_left_to_learn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = table(tmp_path / "r.csv", ("a", 2, 1, "", "72704"))
    assert call(["calibrate", "--runs", str(runs), "--out", str(tmp_path / "c.json")]) == 2
    assert "a peak of 72,704 GiB is not that of its config" in capsys.readouterr().err


def test_a_printed_rate_above_the_peak_of_the_gpu_is_impossible_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = table(tmp_path / "r.csv", ("a", 2, 1, "4000", ""), ("b", 2, 1, "400", ""), *RIGHT)
    lines = runs.read_text().replace("tokens_per_s_per_gpu", "tflops_per_gpu").splitlines()
    runs.write_text("\n".join(lines[:3]) + "\n")
    judged = validate(capsys, runs)["throughput"]
    assert (judged["n"], judged["from_tflops"]["n"]) == (0, 1)
    assert "more than a MI300X can multiply" in reasons(judged["skipped"], "a")[0]
    assert reasons(judged["skipped"], "b") == ["only a TFLOP/s is printed: scored apart"]
    assert call(["validate", str(runs)]) == 0
    assert "a printed TFLOP/s alone 1" in capsys.readouterr().out


def test_public_runs_are_possible(shared: Path) -> None:
    measured = shared / "measured"
    runs = read_runs(measured / "runs.csv", models_json(measured / "models.json").find)
    assert impossible_peaks(runs) == {}
    timed = runs.take(rows_with_speed(runs))
    assert impossible_speeds(timed, shipped().predict(timed).value) == {}
