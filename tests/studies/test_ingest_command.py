"""``foretune ingest``: what it prints, writes and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.models_json import models_json
from specs.runs import read_runs

SAMPLES = Path(__file__).parents[1] / "collectors" / "samples"


def test_writes_what_calibration_reads(foretune, tmp_path):
    out = tmp_path / "runs.csv"
    files = ("primus_mi300x.log", "megatron_deepspeed_mi250x.log", "trace_cuda.json")
    ran = foretune("ingest", *(SAMPLES / name for name in files), "--csv", out, "--json")
    assert ran.code == 0
    assert [run["row"]["run_id"] for run in ran.json["runs"]] == [
        "primus_mi300x",
        "megatron_deepspeed_mi250x",
    ]
    assert all(run["refused"] is None for run in ran.json["runs"])
    table = read_runs(out, models_json(tmp_path / "runs.csv.models.json").find)
    assert len(table) == 2
    assert not table.refused
    rows = (tmp_path / "runs.csv.operators.csv").read_text().splitlines()
    assert len(rows) == 1 + len(ran.json["traces"][0]["operators"])


def test_says_what_to_state(foretune):
    ran = foretune("ingest", SAMPLES / "megatron_lm.log")
    assert ran.code == 0
    assert "--set gpu=..." in ran.out
    again = foretune("ingest", SAMPLES / "megatron_lm.log", "--set", "gpu=H100-SXM")
    assert "--set gpu" not in again.out
    assert "8.7298 s" in again.out


def test_one_bad_file_among_good_ones_is_a_note(foretune, tmp_path):
    bad = tmp_path / "empty.log"
    bad.write_text("nothing here\n")
    ran = foretune("ingest", SAMPLES / "mlperf.log", bad, "--json")
    assert ran.code == 0
    assert [failed["file"] for failed in ran.json["failed"]] == [str(bad)]
    alone = foretune("ingest", bad)
    assert alone.code == 2
    assert "holds no training log" in alone.err


@pytest.mark.parametrize("more", [[], ["--json"]], ids=str)
def test_a_table_of_which_no_row_could_be_used_is_not_written(foretune, tmp_path, more):
    out = tmp_path / "runs.csv"
    wrong = ("--set", "gpu=H100-SXM", "--set", "tp=64")
    ran = foretune("ingest", SAMPLES / "megatron_lm.log", *wrong, "--csv", out, *more)
    assert ran.code == 2
    assert "num_gpus 16 is not a multiple of tp*pp*cp 128" in ran.err
    assert not out.exists()
    files = (SAMPLES / "megatron_lm.log", SAMPLES / "mlperf.log")
    assert foretune("ingest", *files, *wrong, "--csv", out).code == 2


def test_a_usable_row_is_written_beside_one_that_is_refused(foretune, tmp_path):
    out = tmp_path / "runs.csv"
    files = (SAMPLES / "megatron_lm.log", SAMPLES / "primus_mi300x.log")
    ran = foretune("ingest", *files, "--csv", out)
    assert ran.code == 0
    assert "gpu" in ran.err + ran.out
    table = read_runs(out)
    assert (len(table), len(table.refused)) == (1, 1)


def test_logs_of_one_name_keep_their_own_rows(foretune, tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
        (folder / "primus_mi300x.log").write_bytes((SAMPLES / "primus_mi300x.log").read_bytes())
    out = tmp_path / "runs.csv"
    ran = foretune(
        "ingest", *(folder / "primus_mi300x.log" for folder in folders), "--csv", out, "--json"
    )
    ids = [run["row"]["run_id"] for run in ran.json["runs"]]
    assert ids == ["primus_mi300x", "primus_mi300x-2", "primus_mi300x-3"]
    table = read_runs(out)
    assert (len(table), len(table.refused)) == (3, 0)


@pytest.mark.parametrize("arguments", [["--set", "gpu"], ["--set", "colour=red"]])
def test_refuses_what_it_cannot_state(foretune, arguments):
    ran = foretune("ingest", SAMPLES / "mlperf.log", *arguments)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
