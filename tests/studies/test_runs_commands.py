"""``project --runs``, ``validate`` and ``calibrate`` on tables of runs, through the front door."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.cli.main import call
from studies.run_projections import COLUMNS
from surrogate.memory import UNSTATED_WIDTH

HEADER = (
    "run_id,source,gpu,gpus_per_node,num_gpus,framework,model,precision,seq_len,gbs,mbs,tp,pp,dp,"
    "sharding,recompute,tokens_per_s_per_gpu,peak_mem_gb,memory_counter,memory_unit"
)
ROWS = (
    "a,me,MI300X,8,64,Primus-Megatron,{m},bf16,4096,512,1,8,1,8,zero1,none,900,60,device,GiB",
    "b,me,MI300X,8,64,Primus-Megatron,{m},bf16,4096,512,1,4,2,8,zero1,none,1000,,,",
    "c,me,MI300X,8,64,Primus-Megatron,{m},bf16,4096,512,2,4,2,8,zero1,full,700,,,",
    "d,me,MI300X,8,64,Primus-Megatron,{m},bf16,4096,512,1,8,2,4,zero1,none,800,,,",
    "e,me,MI300X,8,64,Primus-Megatron,no-such-model,bf16,4096,512,1,8,1,8,zero1,none,1,,,",
    "f,me,MI300X,8,64,Primus-Megatron,{m},bf16,,512,1,8,1,8,zero1,none,1,,,",
)
MODELS = {
    "odd-13b": {
        "num_layers": 40, "hidden_size": 5120, "ffn_hidden_size": 13824, "vocab_size": 32000,
        "num_attention_heads": 40, "num_query_groups": 40, "head_dim": 128, "gated_mlp": True,
        "tied_embeddings": False, "attention": "mha",
    }
}  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A table of a model that only its models.json knows."""
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, *(row.format(m="odd-13b") for row in ROWS)]) + "\n")
    (tmp_path / "models.json").write_text(json.dumps(MODELS))
    return path


def test_every_row_is_projected_or_says_why_not(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out.csv"
    models = str(tmp_path / "models.json")
    command = ["project", "--runs", str(runs), "--models", models, "--csv", str(out), "--json"]
    assert call(command) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["rows"], content["projected"]) == (6, 4)
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [row["run_id"] for row in rows] == list("abcdef")
    for row in rows[:4]:
        assert float(row["lo90"]) < float(row["tokens_per_s_per_gpu"]) < float(row["hi90"])
        assert 0 <= float(row["fit_probability"]) <= 1
        assert row["trust"]
        assert not row["error"]
    assert "no-such-model" in rows[4]["error"]
    assert "seq_len" in rows[5]["error"]
    assert not rows[5]["tokens_per_s_per_gpu"]


def test_a_run_id_like_a_formula_is_written_as_text(runs: Path, tmp_path: Path) -> None:
    header, row = runs.read_text().splitlines()[:2]
    formula = "=cmd|' /C calc'!A0"
    runs.write_text(f"{header}\n{formula}{row[1:]}\n")
    out, models = tmp_path / "out.csv", str(tmp_path / "models.json")
    assert call(["project", "--runs", str(runs), "--models", models, "--csv", str(out)]) == 0
    with out.open() as file:
        (written,) = csv.DictReader(file)
    assert written["run_id"] == f"'{formula}"
    assert float(written["tokens_per_s_per_gpu"]) > 0


def test_measured_columns_do_not_touch_projections(runs: Path, tmp_path: Path) -> None:
    models = str(tmp_path / "models.json")
    texts = []
    for name, speed in (("x", "900"), ("y", "oops")):
        table = tmp_path / f"{name}.csv"
        table.write_text(runs.read_text().replace(",900,", f",{speed},"))
        out = tmp_path / f"{name}-out.csv"
        call(["project", "--runs", str(table), "--models", models, "--csv", str(out)])
        texts.append(out.read_text())
    assert texts[0] == texts[1]


def _validate(runs: Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    models = str(runs.parent / "models.json")
    assert call(["validate", str(runs), "--models", models, "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_validation_has_the_keys_that_others_rely_on(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = _validate(runs, capsys)
    for what, count in (("throughput", 4), ("memory", 1)):
        found = content[what]
        assert found["n"] == count
        for name in ("mape", "median_ape", "p90_ape", "bias", "coverage90", "half_width90"):
            assert isinstance(found[name], float)
        assert set(found["by"]) >= {"gpu", "source", "model", "vendor", "family"}
        assert found["by"]["vendor"]["amd"]["n"] == count
        assert {entry["run_id"] for entry in found["skipped"]} >= {"e", "f"}
    assert isinstance(content["memory"]["unsafe"], float)
    assert content["groups"]["n"] == 1


def test_calibration_draws_are_seeded(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = _validate(runs, capsys, "--calibrate", "2", "--seed", "1")
    again = _validate(runs, capsys, "--calibrate", "2", "--seed", "1")
    assert first == again
    told = first["throughput"]["calibration"]
    assert (told["runs"], told["draws"], told["folds"]) == (2, 20, 1)
    assert first["throughput"]["zero_shot"]["n"] == 4
    none_left = _validate(runs, capsys, "--calibrate", "4")
    assert none_left["throughput"]["calibration"]["smaller_folds"]
    assert none_left["throughput"]["mape"] is None


def test_folds_too_small_to_calibrate_are_named(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, names = runs.read_text().splitlines(), ["you", "him", "her", "them"]
    others = [rows[1].replace("a,me", f"{name},{name}") for name in names]
    runs.write_text("\n".join([*rows[:5], *others]) + "\n")
    smaller = [f"{name} | odd-13b | MI300X" for name in names]
    told = _validate(runs, capsys, "--calibrate", "1")["throughput"]["calibration"]
    assert (told["folds"], told["smaller_folds"]) == (1, smaller)
    models = str(runs.parent / "models.json")
    assert call(["validate", str(runs), "--models", models, "--calibrate", "1"]) == 0
    words = capsys.readouterr().out
    assert "left out with 1 run or fewer: 4 folds (publisher | model | GPU):" in words
    assert "  her | odd-13b | MI300X\n  and 1 more\n" in words


def test_calibrating_brings_projections_to_the_runs(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, out = str(tmp_path / "models.json"), tmp_path / "c.json"
    assert call(["calibrate", "--runs", str(runs), "--models", models, "--out", str(out)]) == 0
    words = capsys.readouterr().out
    assert "before" in words
    assert "after" in words
    assert json.loads(out.read_text())["data_hash"]
    before = _validate(runs, capsys)["throughput"]["mape"]
    after = _validate(runs, capsys, "--calibration", str(out))["throughput"]["mape"]
    assert after < before


def test_a_table_without_results_validates_to_nothing(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs.read_text().splitlines()
    runs.write_text(
        "\n".join([rows[0], *(row.split(",none,")[0] + ",none,,,," for row in rows[1:3])])
    )
    content = _validate(runs, capsys)
    assert content["throughput"]["n"] == content["memory"]["n"] == content["groups"]["n"] == 0
    assert len(content["throughput"]["skipped"]) == 2


@pytest.mark.parametrize(
    "command",
    [
        ["project"],
        ["project", "x.yaml", "--runs", "x.csv"],
        ["project", "mixtral_8x22b_mi355x", "--csv", "x.csv"],
        ["project", "mixtral_8x22b_mi355x", "--calibration", "missing.json"],
        ["project", "--runs", "missing.csv", "--csv", "o.csv"],
        ["project", "--runs", "missing.csv"],
        ["validate", "missing.csv"],
        ["calibrate", "--runs", "missing.csv", "--out", "c.json"],
        ["validate", "missing.csv", "--calibration", "missing.json"],
    ],
)
def test_bad_input_is_one_sentence(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert call(command) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_without_throughput_cannot_calibrate(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs.read_text().splitlines()
    runs.write_text("\n".join([rows[0], rows[1].split(",none,")[0] + ",none,,,,"]))
    models = str(tmp_path / "models.json")
    code = call(["calibrate", "--runs", str(runs), "--models", models, "--out", "c.json"])
    assert code == 2
    assert "no run to calibrate with" in capsys.readouterr().err


def test_a_calibration_moves_the_projection_of_a_config_and_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["project", "llama3.1_70b_mi300x", "--json"]
    assert call(command) == 0
    before = json.loads(capsys.readouterr().out)
    config, job = before["config"], before["workload"]
    projected = before["throughput"]["tokens_per_s_per_gpu"]
    row = {
        "run_id": "a", "source": "me", "gpu": "MI300X", "gpus_per_node": 8,
        "num_gpus": before["cluster"]["num_gpus"], "framework": before["stack"]["framework"],
        "model": job["model"], "seq_len": job["seq_len"], "gbs": job["global_batch_size"],
        **{name: config[name] for name in ("precision", "mbs", "tp", "pp", "cp", "recompute")},
        "tokens_per_s_per_gpu": 0.8 * projected,
    }  # fmt: skip
    runs, out = tmp_path / "runs.csv", tmp_path / "c.json"
    runs.write_text(",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n")
    assert call(["calibrate", "--runs", str(runs), "--out", str(out)]) == 0
    capsys.readouterr()
    assert call([*command, "--calibration", str(out)]) == 0
    after = json.loads(capsys.readouterr().out)["throughput"]
    assert 0.75 * projected < after["tokens_per_s_per_gpu"] < 0.95 * projected
    assert after["trust"] == "calibrated"
    command = ["tune", "llama3.1_70b_mi300x", "--trials", "2", "--pin", "tp=8", "--pin", "pp=1"]
    out_option = ["--out", str(tmp_path / "results"), "--json"]
    assert call([*command, "--calibration", str(out), *out_option]) == 0
    best = json.loads(capsys.readouterr().out)["best"]["projection"]
    assert best["throughput"]["trust"] == "calibrated"


def test_a_run_that_cannot_be_is_not_learned_from(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, out = str(tmp_path / "models.json"), tmp_path / "c.json"
    command = ["calibrate", "--runs", str(runs), "--models", models, "--out", str(out), "--json"]
    runs.write_text(runs.read_text().replace(",none,900,", ",none,9e8,"))
    assert call(command) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["runs"] == 3
    assert "check the unit" in next(s["reason"] for s in content["skipped"] if s["run_id"] == "a")
    rows = runs.read_text().splitlines()
    runs.write_text("\n".join(rows[:2]) + "\n")
    assert call(command) == 2
    assert "check the unit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value"),
    [("bias", float("nan")), ("bias", 1e300), ("bias_sd", 1e300), ("bias_sd", -1.0)],
)
def test_a_calibration_with_impossible_numbers_is_refused(
    field: str, value: float, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, out = str(tmp_path / "models.json"), tmp_path / "c.json"
    assert call(["calibrate", "--runs", str(runs), "--models", models, "--out", str(out)]) == 0
    out.write_text(json.dumps(json.loads(out.read_text()) | {field: value}))
    capsys.readouterr()
    assert call(["validate", str(runs), "--models", models, "--calibration", str(out)]) == 2
    assert field in capsys.readouterr().err


def test_a_row_that_leaves_its_memory_open_is_less_sure_of_it(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models, out = str(tmp_path / "models.json"), tmp_path / "out.csv"
    text, found = runs.read_text(), []
    for sharding in ("none", ""):
        runs.write_text(text.replace("zero1", sharding))
        assert call(["project", "--runs", str(runs), "--models", models, "--csv", str(out)]) == 0
        capsys.readouterr()
        with out.open() as file:
            row = next(csv.DictReader(file))
        command = ["validate", str(runs), "--models", models, "--json"]
        assert call(command) == 0
        memory = json.loads(capsys.readouterr().out)["memory"]
        found.append((row["device_gib"], float(row["fit_probability"]), memory["half_width90"]))
    (gib, sure, narrow), (same_gib, less_sure, wide) = found
    assert gib == same_gib
    assert 0.5 < less_sure < sure
    assert np.arcsinh(wide) == pytest.approx(UNSTATED_WIDTH * np.arcsinh(narrow))
