"""The measured loop: real runs of the reference trainer, and its end on a table of runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchmarks.measured import errors
from benchmarks.measured.truth import truths
from specs.choices import Schedule, Sharding
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.profile_rows import read_profile
from studies.inputs import resolve
from studies.launch import write_launch_files
from studies.measured_loop import run_loop
from studies.measured_oracle import MeasuredOracle
from studies.oracles import Crash, Evaluation
from studies.real_runs import Outcome, RealRuns
from studies.storage import storage_address
from tests.nursery import python_with
from tests.warm import TORCH

TINY = """
extends: {study}
name: tiny
model:
  num_layers: 2
  hidden_size: 64
  ffn_hidden_size: 96
  num_attention_heads: 4
  num_query_groups: 2
  head_dim: 16
  vocab_size: 256
seq_len: 32
axes: {{mbs: [1, 4], precision: fp32, sharding: none, recompute: none, recompute_method: none,
  recompute_layers: 0, vpp: 1, schedule: 1f1b}}
"""
STUDY = Path(__file__).resolve().parents[2] / "studies" / "cpu_two_process.yaml"


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY.format(study=STUDY))
    return resolve(str(path))


def opened(job, folder):
    return RealRuns.open(job, storage_address(None, folder / "foretune.db"), "tiny")


def test_real_runs_are_made_told_and_kept(job, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the reference trainer needs PyTorch")
    python = python_with(TORCH)
    monkeypatch.setenv("PYTHON_EXEC", python)  # what torchrun starts its ranks with
    oracle = MeasuredOracle(job, tmp_path / "runs", steps=4, python=python)
    said: list[str] = []
    loop = run_loop(opened(job, tmp_path), oracle, said.append, most=2)
    assert [run.state for run in loop.runs] == ["measured", "measured"]
    assert loop.runs[0].config == job.baseline
    assert loop.runs[1].config != job.baseline
    assert all(run.peak_gib and run.peak_gib > 0 for run in loop.runs)
    assert loop.why_stopped == "2 runs were made"
    assert loop.best is not None
    assert len(said) == 2
    assert (tmp_path / "runs" / "calibration.json") in loop.files
    # The same again makes no run: both are told.
    again = run_loop(opened(job, tmp_path), oracle, said.append, most=2)
    assert len(again.runs) == len(said) == 2


def test_memory_that_runs_out_is_a_labelled_point(job, tmp_path):
    pytest.importorskip("torch", reason="the reference trainer needs PyTorch")
    gpu = job.cluster.gpu
    small = gpu.hbm_gib.model_copy(update={"value": 0.2})
    cluster = job.cluster.model_copy(update={"gpu": gpu.model_copy(update={"hbm_gib": small})})
    oracle = MeasuredOracle(type(job)(job.experiment, cluster, ()), tmp_path, steps=2)
    found = oracle.evaluate(job.baseline)
    assert isinstance(found, Evaluation)
    assert found.memory_gib > 0
    assert found.fit_probability == 0
    assert found.tokens_per_s_per_gpu == 0


def test_what_the_trainer_lacks_is_a_crash_with_its_reason(job, tmp_path):
    found = MeasuredOracle(job, tmp_path).evaluate(job.baseline.changed(cp=2))
    assert isinstance(found, Crash)
    assert "context parallelism" in found.reason


def test_launch_files_start_the_reference_trainer(job, tmp_path):
    config = job.baseline.changed(pp=2, schedule=Schedule.GPIPE, mbs=4)
    files, refused = write_launch_files(job, config, tmp_path, "best")
    assert [path.name for path in files] == ["best.sh"]
    assert not refused
    text = files[0].read_text()
    assert "-m collectors.trainer" in text
    assert "--pipeline-schedule gpipe" in text


def test_several_nodes_are_refused(tmp_path):
    job = resolve(str(STUDY))
    nodes = job.cluster.model_copy(update={"num_nodes": 2})
    with pytest.raises(InputError, match="2 nodes"):
        MeasuredOracle(type(job)(job.experiment, nodes, ()), tmp_path).check()


@dataclass(frozen=True)
class Replayed(MeasuredOracle):
    """Answers from the ground truth; what is not in it differs in sharding alone."""

    known: dict[TrainingConfig, Outcome] = field(default_factory=dict)

    def measure(self, config, folder):
        del folder
        alone = config.changed(sharding=Sharding.NONE)
        return self.known.get(config) or self.known[alone]


@pytest.mark.parametrize("name", ["cpu_two_process", "cpu_two_process_moe"])
def test_the_loop_ends_by_itself_near_the_best(tmp_path, name):
    """On configs that were really run, after the profile of the machine they ran on."""
    truth = truths()[name]
    learned = errors.after_profile(truth, read_profile(errors.profile_file(name)))
    job = errors.learned_job(truth.job, learned)
    known = {
        config: Outcome(tokens_per_s_per_gpu=speed, peak_gib=peak, counter="allocated")
        for config, speed, peak in zip(
            truth.configs, truth.mean.tolist(), truth.allocated_gib.tolist(), strict=True
        )
    }
    loop = run_loop(opened(job, tmp_path), Replayed(job, tmp_path, known=known), print, most=60)
    assert loop.why_stopped == "no config promises more than the noise of a run"
    assert loop.best is not None
    assert loop.best.tokens_per_s_per_gpu is not None
    assert loop.best.tokens_per_s_per_gpu >= 0.9 * float(truth.mean.max())
    assert len(loop.runs) < len(truth) / 3
