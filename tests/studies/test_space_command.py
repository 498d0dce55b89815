"""``foretune space``: counts, CSV, pins, explanations and exit codes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from specs import catalog
from specs.config import AXES
from specs.runs import read_runs
from studies.cli.main import call
from studies.cli.space import pinned_values

READ_FROM_RUNS = (
    *("tp", "pp", "vpp", "layout", "cp", "ep", "etp", "mbs", "schedule", "sequence_parallel"),
    *("recompute", "recompute_method", "recompute_layers", "recompute_modules"),
    *("moe_dispatcher", "sync_free_stage", "precision", "sharding", "overlap"),
)
"""Axes that a table of runs can state."""

EXAMPLE = "primus/examples/megatron/configs/MI355X/mixtral_8x22B_v0.1-BF16-pretrain.yaml"


@pytest.fixture
def mixtral(shared: Path) -> str:
    return str(shared / EXAMPLE)


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert call(["space", *arguments, "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_json_counts_the_space(mixtral: str, capsys: pytest.CaptureFixture[str]) -> None:
    content = _json(capsys, mixtral, "--cluster", "32xMI355X", "--pin", "tp=1,2")
    assert list(content["axes"]) == list(AXES)
    assert content["axes"]["tp"] == [1, 2]
    assert content["form"] == "core"
    for counts in content["counts"].values():
        assert sum(counts.values()) == content["legal"]
    full = _json(capsys, mixtral, "--cluster", "32xMI355X", "--pin", "tp=1,2", "--full")
    assert full["legal"] > 100 * content["legal"]


def test_the_published_count(mixtral: str, capsys: pytest.CaptureFixture[str]) -> None:
    pins = ["layout=even", "etp=1", "tp=1,2,4,8", "mbs=1,2,4,8,16", "schedule=1f1b,interleaved"]
    options = [part for pin in [*pins, "recompute=none"] for part in ("--pin", pin)]
    content = _json(capsys, mixtral, "--cluster", "64xMI355X", "--set", "gbs=512", *options)
    assert content["legal"] == 4080


def test_csv_is_a_table_of_runs(
    mixtral: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "space.csv"
    pins = ["--pin", "pp=4", "--pin", "mbs=2", "--csv", str(file)]
    content = _json(capsys, mixtral, "--cluster", "32xMI355X", *pins)
    assert content["files"] == [str(file)]
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == content["legal"]
    assert {row["dp"] for row in rows if row["tp"] == "1" and row["cp"] == "1"} == {"8"}
    read = read_runs(file, catalog.model, catalog.gpu)
    assert read.refused == ()
    read_back = [config.as_labels() for config in read.config.configs()]
    for row, config in zip(rows, read_back, strict=True):
        for name in READ_FROM_RUNS:
            flag = isinstance(config[name], bool)
            assert row[name] == str(int(config[name]) if flag else config[name]), name


def test_why(mixtral: str, capsys: pytest.CaptureFixture[str]) -> None:
    on = [mixtral, "--cluster", "64xMI355X"]
    answer = _json(capsys, *on, "--why", "tp=3")["why"]
    assert any("64 GPUs are not a multiple of tp*pp*cp = 3*4*1" in s for s in answer["illegal"])
    assert answer["outside"] == ["tp 3 is not tried here: 1, 2, 4, 8."]
    answer = _json(capsys, *on, "--why", "schedule=zbv")["why"]
    assert answer["illegal"] == answer["outside"] == []
    assert answer["followed"]["vpp"] == 2
    assert "tokens/s/GPU" in answer["compared"][-1]
    assert call(["space", *on, "--why", "schedule=zbv"]) == 0
    assert "with it goes vpp=2" in capsys.readouterr().out
    answer = _json(capsys, *on, "--set", "pp=8", "--set", "gbs=512", "--why", "mbs=8")["why"]
    assert answer["illegal"] == []
    assert any("it does not fit" in sentence for sentence in answer["compared"])


def test_an_axis_of_one_value_is_pinned_and_of_more_narrowed(
    mixtral: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = ["--pin", "tp=1,2", "--pin", "pp=4"]
    assert call(["space", mixtral, "--cluster", "32xMI355X", *pins]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    marks = {row[0]: row[1] for row in rows if row and row[0] in ("tp", "pp")}
    assert marks == {"tp": "narrowed", "pp": "pinned"}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--pin", "tpp=3"], 2, "no axis 'tpp'"),
        (["--pin", "tp"], 2, "not axis=value"),
        (["--pin", "tp=3"], 3, "64 GPUs are not a multiple"),
        (["--why", "speed=9"], 2, "no axis 'speed'"),
        (["--full", "--csv", "all.csv"], 2, "narrow it with --pin"),
    ],
)
def test_bad_input_is_one_sentence(
    mixtral: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["space", mixtral, "--cluster", "64xMI355X", *options]) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.strip().splitlines()[-1].startswith("foretune: ")
    assert list(tmp_path.iterdir()) == []


def test_pins_split_at_commas_except_layouts() -> None:
    pins = ["tp=1,2", "tp=4", "layout=first=1,last=2", "recompute_layer_ids=0,3"]
    assert pinned_values(pins) == {
        "tp": ["1", "2", "4"],
        "layout": ["first=1,last=2"],
        "recompute_layer_ids": ["0,3"],
    }
