"""A GPU that the catalog does not know, from a file of the user, wherever a GPU may be named."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.studies.conftest import SMALL_STUDY, Ran

LOG = Path(__file__).parents[1] / "collectors" / "samples" / "primus_mi300x.log"
GPUS = """\
sources: {lab: our lab}
gpus:
  Lab-1:
    extends: MI300X
    hbm_bytes_per_s: [2.65e12, measured, lab]
"""
TABLE = """\
run_id,gpu,num_gpus,framework,model,precision,seq_len,gbs,mbs,tp,pp,recompute,tokens_per_s_per_gpu
a,{gpu},16,Primus,llama3.1-8b,bf16,8192,128,1,2,1,none,6000
b,{gpu},16,Primus,llama3.1-8b,bf16,8192,128,1,1,1,none,6600
"""
PLAN = """\
name: small
workloads: {small: {model: llama3.1-8b, seq_len: 4096, global_batch_size: 64, axes: {tp: [1, 2]}}}
clusters: {two: 2x8xLab-1}
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the GPU of a lab, a table of its runs, and a study and a plan that name it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpus.yaml").write_text(GPUS)
    (tmp_path / "runs.csv").write_text(TABLE.format(gpu="Lab-1"))
    (tmp_path / "study.yaml").write_text(SMALL_STUDY.replace("MI300X", "Lab-1"))
    (tmp_path / "plan.yaml").write_text(PLAN)
    shutil.copy(LOG, tmp_path / "train.log")
    return tmp_path


def test_runs_on_an_own_gpu_are_judged_learned_from_and_projected(
    lab: Path, foretune: Callable[..., Ran]
) -> None:
    own = ("--gpu-file", lab / "gpus.yaml")
    before = foretune("validate", "runs.csv", *own, "--json").json["throughput"]
    assert before["by"]["gpu"]["Lab-1"]["n"] == 2
    known = ("--calibration", "c.json")
    learned = foretune("calibrate", "--runs", "runs.csv", "--out", "c.json", *own, "--json").json
    assert [key["key"] for key in learned["keys"]] == ["Lab-1 | Primus-Megatron | llama3.1-8b"]
    after = foretune("validate", "runs.csv", *own, *known, "--json").json["throughput"]
    assert after["mape"] < before["mape"]
    assert foretune("project", "--runs", "runs.csv", "--csv", "out.csv", *own, *known).code == 0
    with (lab / "out.csv").open() as file:
        assert [row["trust"] for row in csv.DictReader(file)] == ["measured", "measured"]
    study = foretune("project", "study.yaml", *own, *known, "--json").json
    assert study["cluster"]["gpu"] == "Lab-1"
    assert study["throughput"]["trust"] == "calibrated"


def test_the_numbers_of_the_file_decide_what_is_projected(
    lab: Path, foretune: Callable[..., Ran]
) -> None:
    (lab / "runs.csv").write_text(TABLE.format(gpu="MI300X"))
    (lab / "gpus.yaml").write_text(GPUS.replace("Lab-1", "MI300X"))
    own = ("--gpu-file", lab / "gpus.yaml")
    speeds = []
    for more in ((), own):
        assert foretune("project", "--runs", "runs.csv", "--csv", "out.csv", *more).code == 0
        with (lab / "out.csv").open() as file:
            speeds.append([float(row["tokens_per_s_per_gpu"]) for row in csv.DictReader(file)])
    assert all(slower < faster for faster, slower in zip(*speeds, strict=True))


NAMES = {
    "validate": "validate runs.csv",
    "calibrate": "calibrate --runs runs.csv --out c.json",
    "project --runs": "project --runs runs.csv --csv out.csv",
    "project": "project study.yaml",
    "project --cluster": "project llama3.1_70b_mi300x --cluster 8x8xLab-1",
    "space": "space study.yaml",
    "export": "export study.yaml",
    "ask": "ask study.yaml --core --runs 1",
    "ingest": "ingest train.log --set gpu=Lab-1 --csv logged.csv",
    "plan": "plan plan.yaml --space core --jobs 1",
}


@pytest.mark.parametrize("words", NAMES.values(), ids=NAMES)
def test_what_is_advised_helps(words: str, lab: Path, foretune: Callable[..., Ran]) -> None:
    ran = foretune(*words.split())
    assert ran.code == 2, ran.out
    assert "add it with --gpu-file FILE" in ran.err
    ran = foretune(*words.split(), "--gpu-file", lab / "gpus.yaml")
    assert ran.code == 0, ran.err


def test_a_cluster_may_name_a_gpu_of_the_study(lab: Path, foretune: Callable[..., Ran]) -> None:
    fields = SMALL_STUDY + GPUS
    (lab / "study.yaml").write_text(fields)
    ran = foretune("project", "study.yaml", "--cluster", "2x8xLab-1", "--json")
    assert ran.json["cluster"]["gpu"] == "Lab-1"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--cluster 2x8xMI300X", "--cluster"),
        ("--gpu MI300X --set tp=2", "--gpu and --set"),
    ],
)
def test_what_a_table_states_itself_is_refused(
    words: str, named: str, lab: Path, foretune: Callable[..., Ran]
) -> None:
    ran = foretune("project", "--runs", "runs.csv", "--csv", "out.csv", *words.split())
    assert ran.code == 2
    assert f"state what {named} would say" in ran.err
    assert not (lab / "out.csv").exists()
