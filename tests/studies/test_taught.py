"""A study keeps what its job was taught, so that whoever reads it projects with the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specs.config import ConfigTable
from specs.errors import InputError
from studies.calibrating import calibrated_by
from studies.inputs import resolve
from studies.oracles import learned_fingerprint
from studies.report.facts import read_facts
from studies.storage import storage_address
from studies.taught import taught_from, taught_json
from surrogate.learned import shipped

RUNS = """\
run_id,source,gpu,num_gpus,gpus_per_node,framework,model,seq_len,gbs,mbs,tp,pp,cp,dp,precision,\
sharding,tokens_per_s_per_gpu,peak_mem_gb,memory_counter,memory_unit
a,ours,MI300X,16,8,Primus,llama3.1-8b,8192,128,1,2,1,1,8,bf16,zero1,7000,70,device,GiB
"""


@pytest.fixture
def calibration(tmp_path: Path, foretune: Callable[..., Any]) -> Path:
    """A calibration from one run."""
    runs, path = tmp_path / "runs.csv", tmp_path / "calibration.json"
    runs.write_text(RUNS)
    assert foretune("calibrate", "--runs", runs, "--out", path).code == 0
    return path


def test_a_job_that_was_taught_nothing_says_nothing():
    job = resolve("mixtral_8x22b_mi355x")
    assert taught_json(job) == {}
    assert taught_from({}) is None
    assert taught_from(None) is None


def test_calibrations_and_constants_come_back(calibration: Path):
    job = resolve("mixtral_8x22b_mi355x")
    learned = calibrated_by(calibration)
    name = next(iter(shipped().constants.log_values))
    learned = replace(learned, constants=learned.constants.changed({name: 1.25}))
    taught = replace(job, learned=learned)
    held = json.loads(json.dumps(taught_json(taught)))
    assert set(held["log_constants"]) == {name}
    again = replace(job, learned=taught_from(held))
    assert learned_fingerprint(again) == learned_fingerprint(taught) != learned_fingerprint(job)
    table = ConfigTable.from_configs([job.baseline])
    first, second = taught.project(table), again.project(table)
    assert first.tokens_per_s_per_gpu == pytest.approx(second.tokens_per_s_per_gpu, rel=1e-12)


def test_a_report_projects_with_what_the_study_was_taught(
    calibration: Path, tmp_path: Path, foretune: Callable[..., Any], small_study: Path
):
    out = tmp_path / "out"
    told = foretune("tune", small_study, "--calibration", calibration, "--out", out, "--json")
    best = json.loads(told.out)["best"]
    address = storage_address(None, out / "foretune.db")
    facts = read_facts(address, json.loads(told.out)["study_name"])
    table = ConfigTable.from_configs([facts.best.config])
    projected = float(facts.job.project(table).tokens_per_s_per_gpu[0])
    said = best["projection"]["throughput"]["tokens_per_s_per_gpu"]
    assert projected == pytest.approx(said, rel=1e-6)
    plain = float(replace(facts.job, learned=None).project(table).tokens_per_s_per_gpu[0])
    assert plain != pytest.approx(said, rel=1e-3)


def test_another_version_is_one_sentence():
    with pytest.raises(InputError, match="another version of foretune"):
        taught_from({"constants": 3})
