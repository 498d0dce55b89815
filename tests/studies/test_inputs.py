"""From what a person names to a job: clusters that are chosen, axes that are set, and why not."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from specs.choices import Recompute, Schedule
from specs.errors import InputError
from studies.explanation import bottleneck, why_not
from studies.inputs import resolve, shipped_studies
from studies.oracles import projection
from studies.outputs import write_files
from studies.result import result_of
from studies.training import StudyOptions, run_study

NO_CLUSTER = """\
model: llama3.1-70b
seq_len: 8192
global_batch_size: 256
stack: {framework: Megatron-LM}
baseline: {tp: 8, pp: 2, mbs: 1, sharding: zero1}
"""


@pytest.fixture
def unplaced(tmp_path: Path) -> Path:
    path = tmp_path / "unplaced.yaml"
    path.write_text(NO_CLUSTER)
    return path


@pytest.mark.parametrize("name", sorted(shipped_studies()))
def test_shipped_studies_start_from_a_legal_baseline(name: str) -> None:
    job = resolve(name)
    assert job.experiment.name == name
    assert job.why_illegal(job.baseline) == []
    assert projection(job, job.baseline)["throughput"]["tokens_per_s_per_gpu"] > 0


def test_the_fewest_whole_nodes_that_fit_are_chosen_and_said(unplaced: Path) -> None:
    job = resolve(str(unplaced), gpu="H100")
    assert job.cluster.gpus_per_node == 8
    assert projection(job, job.baseline)["memory"]["fits"]
    assert any("no cluster was given" in note for note in job.notes)
    fewer = [n for n in range(2, job.cluster.num_nodes) if 256 % (n * 8 // 16) == 0]
    for nodes in fewer:
        smaller = resolve(str(unplaced), cluster=f"{nodes}x8xH100")
        legal = not smaller.why_illegal(smaller.baseline)
        assert not (legal and projection(smaller, smaller.baseline)["memory"]["fits"])


def test_a_gpu_must_be_named_somewhere(unplaced: Path) -> None:
    with pytest.raises(InputError, match="--gpu"):
        resolve(str(unplaced))


def test_the_gpu_is_read_off_the_path(tmp_path: Path) -> None:
    folder = tmp_path / "MI300X"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, '
        '"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, '
        '"vocab_size": 128256}'
    )
    assert resolve(str(folder / "config.json")).cluster.gpu.name == "MI300X"


def test_set_changes_axes_with_companions_and_the_workload(small_study: Path) -> None:
    settings = {"vpp": "2", "recompute": "full", "seq_len": "8192", "gbs": "128"}
    job = resolve(str(small_study), settings=settings)
    assert job.baseline.schedule is Schedule.INTERLEAVED
    assert job.baseline.recompute is Recompute.FULL
    assert job.experiment.workload.seq_len == 8192
    assert job.experiment.workload.global_batch_size == 128


def test_why_not_tells_illegal_from_too_big_from_slower(small_study: Path) -> None:
    job = resolve(str(small_study))
    assert why_not(job, job.baseline, {"tp": "3"}).verdict == "illegal"
    long = resolve(str(small_study), settings={"seq_len": "32768"})
    too_big = why_not(long, long.baseline, {"mbs": "16"})
    assert too_big.verdict == "memory"
    assert "GiB too much" in too_big.sentences[0]
    slower = why_not(job, job.baseline, {"recompute": "full"})
    assert slower.verdict == "slower"
    assert "recomputation" in slower.sentences[-1]


def test_the_bottleneck_names_overhead_and_memory(small_study: Path) -> None:
    job = resolve(str(small_study))
    words = bottleneck(projection(job, job.baseline))
    assert "largest overhead is" in words
    assert "memory is" in words


def test_the_picture_is_well_formed_and_marks_best_and_baseline(
    small_study: Path, tmp_path: Path
) -> None:
    job = resolve(str(small_study))
    study = run_study(job, StudyOptions(out=tmp_path / "out", trials=6))
    _, files = write_files(result_of(study))
    svg = next(path for path in files if path.suffix == ".svg").read_text()
    texts = [node.text or "" for node in ElementTree.fromstring(svg).iter() if node.text]
    assert any(text.startswith("best: ") for text in texts)
    assert any(text.startswith("baseline: ") for text in texts)
    assert any("192 GiB of MI300X" in text for text in texts)


@pytest.mark.parametrize(
    ("cluster", "framework"), [("8xMI300X", "Primus-Megatron"), ("8xH100", "Megatron-LM")]
)
def test_a_model_config_takes_the_usual_framework_of_the_vendor(
    tmp_path: Path, cluster: str, framework: str
) -> None:
    config = {
        "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    job = resolve(str(file), cluster)
    assert job.experiment.stack.framework_name == framework
    assert any(framework in note for note in job.notes)
