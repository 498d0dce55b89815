"""No command writes over what it reads, and a file that cannot be written is one sentence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.studies.conftest import SMALL_STUDY, Ran, Tuned

LOG = Path(__file__).parents[1] / "collectors" / "samples" / "primus_mi300x.log"
TABLE = """\
run_id,gpu,num_gpus,framework,model,precision,seq_len,gbs,mbs,tp,pp,recompute,tokens_per_s_per_gpu
a,MI300X,16,Primus,llama3.1-8b,bf16,8192,128,1,2,1,none,7400
b,MI300X,16,Primus,llama3.1-8b,bf16,8192,128,1,1,1,none,8300
"""
GPUS = "gpus: {MY300: {extends: MI300X}}\n"
PLAN = """\
name: small
workloads: {small: {model: llama3.1-8b, seq_len: 4096, global_batch_size: 64}}
clusters: {two: 2x8xMI300X}
"""


@pytest.fixture
def inputs(tmp_path: Path, foretune: Callable[..., Ran]) -> Path:
    """A folder with a file of every kind that commands read."""
    (tmp_path / "runs.csv").write_text(TABLE)
    (tmp_path / "gpus.yaml").write_text(GPUS)
    (tmp_path / "plan.yaml").write_text(PLAN)
    for name in ("study.yaml", "small.yaml", "plan.json"):
        (tmp_path / name).write_text(SMALL_STUDY)
    shutil.copy(LOG, tmp_path / "train.log")
    calibrated = ("calibrate", "--runs", tmp_path / "runs.csv", "--out", tmp_path / "known.json")
    assert foretune(*calibrated).code == 0
    return tmp_path


OVER_AN_INPUT = {
    "calibrate": "calibrate --runs runs.csv --out runs.csv",
    "calibrate, by another name": "calibrate --runs runs.csv --out nowhere/../runs.csv",
    "calibrate, models": "calibrate --runs runs.csv --models study.yaml --out study.yaml",
    "project": "project --runs runs.csv --csv runs.csv",
    "project, calibration": "project --runs runs.csv --calibration known.json --csv known.json",
    "space": "space study.yaml --csv study.yaml",
    "space, GPUs": "space study.yaml --gpu-file gpus.yaml --csv gpus.yaml",
    "plan": "plan plan.yaml --csv plan.yaml --out out",
    "plan, calibration": "plan plan.yaml --calibration known.json --csv known.json --out out",
    "ingest": "ingest train.log --csv train.log",
    "export": "export small.yaml --out .",
    "profile": "profile plan.json --plan-only --out .",
}


@pytest.mark.parametrize("words", OVER_AN_INPUT.values(), ids=OVER_AN_INPUT)
def test_an_input_is_not_written_over(
    words: str, inputs: Path, foretune: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(inputs)
    (inputs / "nowhere").mkdir()
    before = {path: path.read_bytes() for path in inputs.glob("*.*")}
    ran = foretune(*words.split())
    assert ran.code == 2, ran.out
    assert "which the command reads" in ran.err
    assert len(ran.err.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in inputs.glob("*.*")} == before


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_to_an_input_is_the_input(
    link: Callable[[Path, Path], None], inputs: Path, foretune: Callable[..., Ran]
) -> None:
    link(inputs / "runs.csv", inputs / "other.json")
    ran = foretune("calibrate", "--runs", inputs / "runs.csv", "--out", inputs / "other.json")
    assert ran.code == 2
    assert (inputs / "other.json").read_text() == TABLE


def test_tables_beside_a_table_do_not_take_the_place_of_a_log(
    inputs: Path, foretune: Callable[..., Ran]
) -> None:
    log = inputs / "runs.csv.models.json"
    (inputs / "train.log").rename(log)
    ran = foretune("ingest", log, "--csv", inputs / "runs.csv")
    assert ran.code == 2
    assert str(log) in ran.err


def test_a_calibration_grows_in_its_place(inputs: Path, foretune: Callable[..., Ran]) -> None:
    more, known = inputs / "more.csv", inputs / "known.json"
    more.write_text(TABLE.replace("\na,", "\nc,").replace("\nb,", "\nd,"))
    assert foretune("calibrate", "--runs", more, "--merge", known, "--out", known).code == 0
    again = foretune("calibrate", "--merge", known, "--out", inputs / "all.json", "--json")
    assert again.json["runs"] == 4


def test_a_report_does_not_take_the_place_of_its_study(
    tuned: Tuned, tmp_path: Path, foretune: Callable[..., Ran]
) -> None:
    storage = tuned.copied(tmp_path / "out") / "foretune.db"
    before = storage.read_bytes()
    ran = foretune("report", "--storage", storage, "--out", storage)
    assert ran.code == 2
    assert storage.read_bytes() == before


def test_a_study_is_not_tuned_from_the_file_that_it_writes(
    tuned: Tuned, tmp_path: Path, foretune: Callable[..., Ran]
) -> None:
    out = tuned.copied(tmp_path / "out")
    best = out / "small" / "best.yaml"
    best.write_text(SMALL_STUDY)
    ran = foretune("tune", best, "--out", out)
    assert ran.code == 2
    assert str(best) in ran.err
    assert best.read_text() == SMALL_STUDY


UNWRITABLE = {
    "calibrate": "calibrate --runs runs.csv --out {}",
    "project": "project --runs runs.csv --csv {}",
    "space": "space study.yaml --csv {}",
    "plan": "plan plan.yaml --out out --csv {}",
    "ingest": "ingest train.log --csv {}",
    "report": "report --out {}",
    "bench search": "bench search --page {}",
    "bench surrogate": "bench surrogate --data . --page {}",
}


@pytest.mark.parametrize("place", ["folder", ".", "/proc/nowhere/file", "runs.csv/file"])
@pytest.mark.parametrize("words", UNWRITABLE.values(), ids=UNWRITABLE)
def test_a_file_that_cannot_be_written_is_one_sentence(
    words: str,
    place: str,
    inputs: Path,
    foretune: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(inputs)
    (inputs / "folder").mkdir()
    ran = foretune(*words.format(place).split())
    assert ran.code == 2, ran.out
    assert len(ran.err.strip().splitlines()) == 1, ran.err
    assert list((inputs / "folder").iterdir()) == []


@pytest.mark.parametrize("command", ["tune", "export", "profile"])
def test_a_folder_that_cannot_be_made_is_one_sentence(
    command: str, inputs: Path, foretune: Callable[..., Ran]
) -> None:
    ran = foretune(command, inputs / "study.yaml", "--out", "/proc/nowhere", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.strip().splitlines()) == 1, ran.err
