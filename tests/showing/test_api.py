"""The Python API does what the commands do, and refuses in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import foretune
from specs.config import TrainingConfig
from studies.inputs import resolve
from studies.oracles import projection

WORKLOAD = {"seq_len": 8192, "global_batch_size": 128}


def test_import_is_light() -> None:
    heavy = "('numpy', 'optuna', 'torch')"
    code = f"import sys, foretune; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_that_is_offered_can_be_had() -> None:
    for name in foretune.__all__:
        assert getattr(foretune, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = foretune.nothing  # type: ignore[attr-defined]


def test_a_projection_is_that_of_the_command() -> None:
    found = foretune.project("mixtral_8x22b_mi355x", pp=2)
    job = resolve("mixtral_8x22b_mi355x", None, None, {"pp": "2"})
    content = projection(job, job.baseline)
    assert found.tokens_per_s_per_gpu == content["throughput"]["tokens_per_s_per_gpu"]
    assert found.peak_gib == content["memory"]["peak_gib"]
    assert found.config.pp == 2
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s)
    assert len(found.stages) == 2


def test_a_workload_is_projected_on_a_cluster() -> None:
    what = foretune.workload("llama3.1-8b", **WORKLOAD)
    where = foretune.cluster("2x8xMI300X")
    found = foretune.project(what, where, tp=2, sharding="zero1")
    assert found.config == TrainingConfig().changed(
        tp=2, sequence_parallel=True, sharding=found.config.sharding
    )
    assert found.interval90[0] < found.tokens_per_s_per_gpu < found.interval90[1]
    assert foretune.project(what, "2x8xMI300X", tp=2, sharding="zero1") == found


def test_a_cluster_takes_the_place_of_that_of_the_file() -> None:
    where = foretune.cluster("4x8xMI355X")
    found = foretune.project("mixtral_8x22b_mi355x", where)
    assert found == foretune.project("mixtral_8x22b_mi355x", "4x8xMI355X")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: foretune.workload("llama9", **WORKLOAD), "llama9"),
        (lambda: foretune.workload("llama3.1-8b", 0, 128), "seq_len"),
        (lambda: foretune.cluster("8xMI9000"), "MI9000"),
        (lambda: foretune.project(foretune.workload("llama3.1-8b", **WORKLOAD)), "cluster"),
        (lambda: foretune.project("mixtral_8x22b_mi355x", tp=3), "cannot run"),
        (lambda: foretune.project("mixtral_8x22b_mi355x", speed=3), "there is no axis 'speed'"),
        (
            lambda: foretune.tune(
                foretune.workload("llama3.1-8b", **WORKLOAD), "8xMI300X", narrow={"tq": 1}
            ),
            "there is no axis 'tq'",
        ),
        (lambda: foretune.validate("nowhere.csv"), "nowhere.csv"),
    ],
)
def test_mistakes_are_one_sentence(call: object, says: str) -> None:
    with pytest.raises(foretune.InputError, match=says):
        call()  # type: ignore[operator]


def test_own_runs_are_validated_and_learned_from(shared: Path, tmp_path: Path) -> None:
    lines = (shared / "measured" / "runs.csv").read_text().splitlines()
    runs = tmp_path / "runs.csv"
    runs.write_text("\n".join([lines[0], *[row for row in lines if "llama3.1-70b" in row][:12]]))
    models = shared / "measured" / "models.json"
    judged = foretune.validate(runs, models)
    assert judged["throughput"]["n"] > 0
    report = foretune.calibrate(runs, tmp_path / "c.json", models)
    assert (tmp_path / "c.json").exists()
    assert report["runs"] > 0
