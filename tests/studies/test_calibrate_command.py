"""``foretune calibrate`` on small tables: merging, contradiction, peaks alone, other releases."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from studies.cli.main import call
from surrogate.calibration import Calibration
from surrogate.calibration_file import calibration_json, read_calibration

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example_study.yaml"
COLUMNS = (
    "run_id,gpu,gpus_per_node,num_gpus,framework,model,precision,seq_len,gbs,mbs,tp,pp,sharding,"
    "recompute,tokens_per_s_per_gpu,peak_mem_gb,memory_counter,memory_unit"
)


def table(path: Path, *runs: tuple[str, int, int, str, str]) -> Path:
    """A table of runs: name, tp, mbs, tokens/s/GPU and peak of each."""
    rows = [
        f"{name},MI300X,8,16,Primus,llama3.1-8b,bf16,8192,128,{mbs},{tp},1,zero1,none,{speed},"
        f"{peak},device,gib"
        for name, tp, mbs, speed, peak in runs
    ]
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


def calibrate(capsys: pytest.CaptureFixture[str], *options: object) -> dict[str, Any]:
    """The JSON of a calibration that works."""
    assert call(["calibrate", *map(str, options), "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_calibrations_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = table(tmp_path / "1.csv", ("a", 2, 1, "7400", "71"), ("b", 1, 1, "8300", ""))
    two = table(tmp_path / "2.csv", ("b", 1, 1, "8300", ""), ("c", 4, 2, "5900", "66"))
    first, both, again = (tmp_path / name for name in ("1.json", "both.json", "again.json"))
    assert calibrate(capsys, "--runs", one, "--out", first)["runs"] == 2
    told = calibrate(capsys, "--runs", two, "--merge", first, "--out", both)
    assert (told["runs"], told["memory"]["peaks"]) == (3, 2)
    merged = calibrate(capsys, "--merge", both, "--merge", first, "--out", again)
    assert merged["before"]["mape"] == pytest.approx(told["before"]["mape"], rel=1e-4)
    assert [part["file"] for part in json.loads(again.read_text())["merged_from"]] == [
        str(both), str(first),
    ]  # fmt: skip


def test_runs_that_contradict_each_other_are_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = table(tmp_path / "r.csv", ("a", 2, 1, "9000", ""), ("b", 2, 2, "3000", ""))
    assert call(["calibrate", "--runs", str(runs), "--out", str(tmp_path / "c.json")]) == 0
    assert "contradict each other" in " ".join(capsys.readouterr().out.split())


def test_peaks_alone_calibrate_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, out = table(tmp_path / "r.csv", ("a", 2, 1, "", "71")), tmp_path / "c.json"
    told = calibrate(capsys, "--runs", runs, "--out", out)
    assert (told["runs"], told["memory"]["peaks"]) == (0, 1)
    errors = []
    for options in ([], ["--calibration", str(out)]):
        assert call(["validate", str(runs), *options, "--json"]) == 0
        errors.append(json.loads(capsys.readouterr().out)["memory"]["mape"])
    assert errors[1] < errors[0]


def test_runs_out_of_memory_are_kept_as_tell_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fits, fails = ("--set=tp=2", "--set=mbs=1"), ("--set=tp=1", "--set=mbs=2")

    def projected(*options: str) -> dict[str, Any]:
        assert call(["project", str(EXAMPLE), *options, "--json"]) == 0
        memory: dict[str, Any] = json.loads(capsys.readouterr().out)["memory"]
        return memory

    out = tmp_path / "c.json"
    runs = table(
        tmp_path / "r.csv",
        ("a", 2, 1, "7400", ""), ("a-oom", 2, 1, "", ""), ("b-oom", 1, 2, "", ""),
    )  # fmt: skip
    unstated = runs.read_text().splitlines()[-1].replace("b-oom", "c-oom").replace("none", "")
    runs.write_text(runs.read_text() + unstated + "\n")
    told = calibrate(capsys, "--runs", runs, "--out", out)
    assert told["memory"]["out_of_memory"] == 1
    assert [run["run_id"] for run in json.loads(out.read_text())["out_of_memory"]] == ["b-oom"]
    why = {run["run_id"]: run["reason"] for run in told["skipped"]}
    assert why.keys() == {"a-oom", "c-oom"}
    assert "did not" in why["a-oom"]
    assert "recompute" in why["c-oom"]
    assert projected(*fails)["fit_probability"] > 0.5
    assert projected(*fails, "--calibration", str(out))["fit_probability"] == 0.0
    before, after = projected(*fits), projected(*fits, "--calibration", str(out))
    assert after["peak_gib"] > before["peak_gib"]
    assert after["fit_probability"] > 0.0


def test_a_run_out_of_memory_alone_is_something_to_learn_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = table(tmp_path / "r.csv", ("b-oom", 1, 2, "", "")), tmp_path / "c.json"
    assert call(["calibrate", "--runs", str(runs), "--out", str(out)]) == 0
    assert "1 run out of memory: " in capsys.readouterr().out
    kept = json.loads(out.read_text())
    assert (kept["runs"], kept["peaks"], len(kept["out_of_memory"])) == ([], [], 1)
    merged = calibrate(capsys, "--merge", out, "--out", tmp_path / "again.json")
    assert merged["memory"]["out_of_memory"] == 1


@pytest.mark.parametrize("options", [[], ["--merge", "other.json"]])
def test_nothing_to_learn_from_is_bad_input(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = table(tmp_path / "r.csv", ("a", 2, 1, "7400", ""))
    calibrate(capsys, "--runs", runs, "--out", "c.json")
    content = json.loads(Path("c.json").read_text()) | {"projections": "of another release"}
    Path("other.json").write_text(json.dumps(content))
    assert call(["calibrate", "--out", "new.json", *options]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not Path("new.json").exists()


def test_an_edited_calibration_is_refused_or_said_to_be_unused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = table(tmp_path / "r.csv", ("a", 2, 1, "7400", "71")), tmp_path / "c.json"
    calibrate(capsys, "--runs", runs, "--out", out)
    content = json.loads(out.read_text())
    job = ("project", str(EXAMPLE), "--calibration", str(out))

    def told(changed: dict[str, Any]) -> tuple[int, str]:
        out.write_text(json.dumps(changed))
        code = call(list(job))
        written = capsys.readouterr()
        return code, " ".join((written.out + written.err).split())

    plain = told(content)
    assert plain[0] == 0
    assert "says little" not in plain[1]
    code, words = told(content | {"fit_dat": "2026-11-30"})
    assert code == 2
    assert "fit_dat; is it fit_date?" in words
    code, words = told(content | {"runs": []})
    assert code == 2
    assert f"{out} was edited" in words
    out.write_text(json.dumps(content))
    peaks_alone = read_calibration(out).peaks
    earlier = replace(Calibration.nothing(), peaks=peaks_alone, projections="earlier")
    code, words = told(calibration_json(earlier))
    assert code == 2
    assert "another release" in words
    out.write_text(json.dumps(content))
    assert call([*job, "--cluster", "2x8xH100"]) == 0
    written = capsys.readouterr()
    assert "the calibration has no run of H100-SXM | " in written.out + written.err


def test_a_typing_error_is_named_before_the_file_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = (("b", 1, 1, "8300", ""), ("c", 4, 2, "5900", ""))
    for speed, named in (("2200", True), ("7200", False)):
        runs = table(tmp_path / "r.csv", ("a", 2, 1, speed, ""), *right)
        assert call(["calibrate", "--runs", str(runs), "--out", str(tmp_path / "c.json")]) == 0
        headline = capsys.readouterr().out.partition("GPU | framework")[0]
        assert ("typing error" in headline and "a (measured" in headline) is named


def test_a_calibration_that_makes_things_worse_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = table(tmp_path / "r.csv", ("a", 2, 1, "10500", ""), ("b", 2, 2, "8500", ""))
    content = calibrate(capsys, "--runs", runs, "--out", tmp_path / "c.json")
    assert call(["calibrate", "--runs", str(runs), "--out", str(tmp_path / "c.json")]) == 0
    assert content["after"]["mape"] > content["before"]["mape"]
    assert "makes projections of throughput worse" in capsys.readouterr().out


@pytest.mark.parametrize("finished_first", [True, False])
def test_a_finished_run_of_another_file_refutes_a_run_out_of_memory(
    finished_first: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two runs of one job the one that needs more finished: the other did not run out of it."""
    fits = table(tmp_path / "fits.csv", ("large", 1, 2, "8300", ""))
    fails = table(tmp_path / "fails.csv", ("small-oom", 2, 1, "", ""), ("huge-oom", 1, 4, "", ""))
    files = []
    for runs in (fits, fails) if finished_first else (fails, fits):
        files.append(tmp_path / f"{runs.stem}.json")
        calibrate(capsys, "--runs", runs, "--out", files[-1])
    merges = [option for file in files for option in ("--merge", file)]
    both = tmp_path / "both.json"
    told = calibrate(capsys, *merges, "--out", both)
    assert [entry["run_id"] for entry in told["skipped"]] == ["small-oom"]
    assert "run large of the same job" in told["skipped"][0]["reason"]
    kept = read_calibration(both).peaks
    assert kept.failed == {"huge-oom"}
    again = calibrate(capsys, "--runs", fails, "--merge", files[not finished_first], "--out", both)
    assert "small-oom" in {entry["run_id"] for entry in again["skipped"]}
    assert read_calibration(both).peaks.failed == {"huge-oom"}


def test_what_finished_on_another_job_refutes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fits = table(tmp_path / "fits.csv", ("large", 1, 2, "8300", ""))
    fits.write_text(fits.read_text().replace(",8192,128,", ",8192,256,"))
    fails = table(tmp_path / "fails.csv", ("small-oom", 2, 1, "", ""))
    for runs in (fits, fails):
        calibrate(capsys, "--runs", runs, "--out", runs.with_suffix(".json"))
    merges = [option for runs in (fits, fails) for option in ("--merge", runs.with_suffix(".json"))]
    told = calibrate(capsys, *merges, "--out", tmp_path / "both.json")
    assert told["skipped"] == []
    assert read_calibration(tmp_path / "both.json").peaks.failed == {"small-oom"}
