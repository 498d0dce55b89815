"""Study YAML: the page of the documentation is true, and mistakes are one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from specs import catalog
from specs.choices import MoeDispatcher, Precision, Schedule, TrainingKind
from specs.errors import InputError
from specs.formats.reader import read_experiment
from specs.formats.study import StackFile, StudyFile
from specs.stack import Framework
from tests.specs.test_huggingface import LLAMA_70B

PAGE = Path(__file__).resolve().parents[2] / "docs/study_yaml.md"
PLAIN = {"model": "mixtral-8x22b", "seq_len": 8192, "global_batch_size": 512}


def _write(folder: Path, content: Any, name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_example_of_the_page(tmp_path: Path) -> None:
    example = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    path = tmp_path / "example.yaml"
    path.write_text(example)
    experiment = read_experiment(path)
    assert experiment.name == "mixtral_8x22b_mi355x"
    assert experiment.workload.model == catalog.model("mixtral-8x22b")
    assert experiment.workload.target_tokens == 1e12
    assert experiment.cluster is not None
    assert experiment.cluster.num_gpus == 64
    assert experiment.cluster.price_usd_per_gpu_hour == 3.0
    assert experiment.stack.framework is Framework.PRIMUS
    assert (experiment.baseline.pp, experiment.baseline.ep) == (4, 8)
    assert experiment.baseline.moe_dispatcher is MoeDispatcher.ALLTOALL
    assert experiment.settings.axes == {
        "tp": (1, 2),
        "cp": (1,),
        "schedule": (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
        "precision": (Precision.FP8,),
    }
    assert (experiment.settings.trials, experiment.settings.seed) == (200, 0)


def test_the_page_names_every_field() -> None:
    text = PAGE.read_text()
    for name in (*StudyFile.model_fields, *StackFile.model_fields):
        assert f"`{name}`" in text, name


def test_models_by_file(tmp_path: Path) -> None:
    (tmp_path / "llama.json").write_text(json.dumps(LLAMA_70B))
    study = {**PLAIN, "model": "llama.json", "cluster": "64xMI300X"}
    experiment = read_experiment(_write(tmp_path, study))
    assert experiment.workload.model.total_parameters() == 70_553_706_496
    inline = {**PLAIN, "model": {"extends": "mixtral-8x22b", "name": "cut", "num_layers": 28}}
    experiment = read_experiment(_write(tmp_path, inline))
    assert (experiment.workload.model.name, experiment.workload.model.num_layers) == ("cut", 28)
    assert experiment.cluster is None


def test_model_of_a_primus_yaml(shared: Path, tmp_path: Path) -> None:
    source = (
        shared / "primus/examples/megatron/configs/MI355X/mixtral_8x22B_v0.1-BF16-pretrain.yaml"
    )
    study = {
        "model": str(source),
        "global_batch_size": 512,
        "baseline": {"tp": 2},
        "stack": {"expandable_segments": True},
        "kind": "finetune",
    }
    experiment = read_experiment(_write(tmp_path, study))
    assert (experiment.workload.seq_len, experiment.workload.global_batch_size) == (8192, 512)
    assert experiment.workload.kind is TrainingKind.FINETUNE
    assert (experiment.baseline.tp, experiment.baseline.pp, experiment.baseline.ep) == (2, 4, 8)
    assert experiment.baseline.sequence_parallel
    assert experiment.stack.expandable_segments
    assert experiment.stack.framework is Framework.PRIMUS
    assert experiment.source == source
    assert experiment.gpu == "MI355X"


def test_what_follows_from_the_baseline(tmp_path: Path) -> None:
    study = {**PLAIN, "baseline": {"pp": 4, "vpp": 2}}
    assert read_experiment(_write(tmp_path, study)).baseline.schedule is Schedule.INTERLEAVED
    layout = "Et*7|t*7|t*7|t*7|t*7|t*7|t*7|t*7,L"
    study = {**PLAIN, "baseline": {"pp": 4, "layout": layout}}
    assert read_experiment(_write(tmp_path, study)).baseline.vpp == 2


def test_own_gpus(tmp_path: Path) -> None:
    study = {
        **PLAIN,
        "gpus": {"Mine": {"extends": "MI355X", "hbm_gib": [96, "assumed", "a wish"]}},
        "cluster": "8xMine",
    }
    cluster = read_experiment(_write(tmp_path, study)).cluster
    assert cluster is not None
    assert cluster.gpu.hbm_gib.value == 96


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seq_len": None}, "seq_len is missing"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"global_batch_size": "lots"}, "global_batch_size"),
        ({"global_batch_size": True}, "global_batch_size: use a number, not true"),
        ({"target_tokens": False}, "target_tokens: use a number, not false"),
        ({"price_usd_per_gpu_hour": True}, "price_usd_per_gpu_hour: use a number, not true"),
        ({"stack": {"runtime_gib": True}}, "runtime_gib: use a number, not true"),
        ({"cluster": {"gpu": "MI355X", "num_nodes": True}}, "num_nodes: use a number, not true"),
        ({"baseline": {"tp": True}}, "tp is True; use a whole number"),
        ({"baseline": {"tp": 2**31}}, "use a whole number below 2,147,483,648"),
        ({"model": "mixtral-8x23b"}, "mixtral-8x22b"),
        ({"model": "nowhere.yaml"}, "nowhere.yaml"),
        ({"model": 3}, "model"),
        ({"model": {"num_layers": 3}}, "hidden_size"),
        ({"colour": "red"}, "no field 'colour'"),
        ({"axes": {"tq": 1}}, "no axis 'tq'"),
        ({"axes": {"tp": []}}, "empty"),
        ({"axes": {"tp": ["many"]}}, "tp"),
        ({"axes": {"tp": None}}, "tp"),
        ({"axes": {"precision": "fp8"}, "precision": "bf16"}, "twice"),
        ({"precision": "int3"}, "int3"),
        ({"baseline": {"schedule": "magic"}}, "magic"),
        ({"cluster": "8xMI399X"}, "MI399X"),
        ({"cluster": {"gpu": "MI355X", "num_nodes": 0}}, "num_nodes"),
        ({"trials": 0}, "trials"),
        ({"kind": "lora"}, "lora_rank"),
        ({"kind": "sft"}, "kind"),
        ({"objective": "fun"}, "objective"),
        ({"stack": {"framework": 3}}, "framework"),
        ({"target_tokens": float("inf")}, "target_tokens"),
    ],
)
def test_bad_studies_are_one_sentence(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=word) as caught:
        read_experiment(_write(tmp_path, {**PLAIN, **change}))
    assert "\n" not in str(caught.value)


def test_what_is_no_training_job(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(InputError, match="--cluster"):
        read_experiment(shared / "primus/examples/hardware_configs/mi355x.yaml")
    with pytest.raises(InputError, match="--cluster"):
        read_experiment(
            shared / "primus/examples/agents/tuning_agent/target_cluster_mi355x_4nodes.yaml"
        )
    with pytest.raises(InputError, match="neither"):
        read_experiment(_write(tmp_path, {"a": 1}))
    with pytest.raises(InputError, match="cannot read"):
        read_experiment(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="cannot read"):
        read_experiment(tmp_path)


def test_a_model_config_states_its_assumptions(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_70B))
    experiment = read_experiment(tmp_path)
    assert experiment.workload.global_batch_size == 1024
    assert "seq_len is 4096 and gbs 1024 unless --set" in experiment.notes[0]
    assert read_experiment(path).workload == experiment.workload


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"kind": "lora"}, "lora_rank is missing"),
        ({"lora_rank": 16}, "lora_rank is for kind lora"),
        ({"kind": "lora", "lora_rank": 100_000}, "more than the hidden size 6144"),
        ({"capacity_factor": 1e-6}, "drops nearly all tokens"),
    ],
)
def test_adapters_and_capacities_that_nobody_trains_are_refused(
    fields: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    path = _write(tmp_path, PLAIN | {"cluster": "8xMI355X"} | fields)
    with pytest.raises(InputError, match=sentence):
        read_experiment(path)
