"""``export`` writes what reads back as the same config, for the input and for a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specs.config import TrainingConfig
from specs.formats.megatron import read_arguments
from specs.formats.reader import read_experiment
from tests.studies.conftest import Ran

Command = Callable[..., Ran]


def test_input_with_changes(small_study: Path, tmp_path: Path, foretune: Command) -> None:
    ran = foretune("export", small_study, "--set", "mbs=2", "--out", tmp_path / "e", "--json")
    assert ran.code == 0, ran.err
    yaml, script = (Path(path) for path in ran.json["files"])
    config = TrainingConfig.from_labels(ran.json["config"])
    assert (config.tp, config.mbs) == (2, 2)
    assert read_experiment(yaml).baseline == config
    text = script.read_text()
    assert "--micro-batch-size 2" in text
    assert "torchrun --nnodes 2 --nproc-per-node 8" in text
    flags = text.split("CONFIG=(")[1].split("\n)")[0].split()
    assert read_arguments(flags)[0] == config


def test_trial_of_a_study(small_study: Path, tmp_path: Path, foretune: Command) -> None:
    storage = tmp_path / "s.journal"
    found = foretune(
        "tune", small_study, "--trials", 4, "--storage", storage, "--out", tmp_path, "--json"
    ).json
    ran = foretune(
        "export", small_study, "--trial", 3, "--storage", storage, "--out", tmp_path, "--json"
    )
    assert ran.code == 0, ran.err
    assert found["trials"] == 4
    yaml = next(Path(path) for path in ran.json["files"] if path.endswith("small_trial_3.yaml"))
    assert read_experiment(yaml).baseline.as_labels() == ran.json["config"]


def test_a_trial_or_study_that_does_not_exist(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    storage = tmp_path / "s.journal"
    no_storage = foretune("export", small_study, "--trial", 1, "--storage", storage)
    assert (no_storage.code, "no storage" in no_storage.err) == (2, True)
    foretune("tune", small_study, "--trials", 2, "--storage", storage, "--out", tmp_path, "--json")
    no_trial = foretune("export", small_study, "--trial", 9, "--storage", storage)
    assert (no_trial.code, "has 2 trials" in no_trial.err) == (2, True)
    no_study = foretune("export", small_study, "--trial", 0, "--study", "x", "--storage", storage)
    assert (no_study.code, "it holds small" in no_study.err) == (2, True)


def test_a_script_exports_its_environment_and_a_yaml_says_what_must_be_set(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    ran = foretune("export", small_study, "--set", "tp=2", "--out", tmp_path / "o", "--json")
    assert ran.code == 0, ran.err
    text = {Path(file).suffix: Path(file).read_text() for file in ran.json["files"]}
    assert "# CUDA_DEVICE_MAX_CONNECTIONS=1 must be set in the environment." in text[".yaml"]
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text[".sh"]
    assert "must be set" not in text[".sh"]


@pytest.mark.parametrize(
    ("model", "flags", "said"),
    [
        ("llama3.1-8b", ("--rotary-base 500000", "--norm-epsilon 1e-05"), "No scaling"),
        ("qwen2.5-14b", ("--rotary-base 1000000",), "norm epsilon is Megatron's"),
        ("nemotron4-15b", (), "rotary base and the norm epsilon are Megatron's"),
        ("gpt3-5b", (), ""),
    ],
)
def test_what_is_not_known_of_a_model_is_left_to_the_user(
    model: str, flags: tuple[str, ...], said: str, tmp_path: Path, foretune: Command
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"{{model: {model}, seq_len: 2048, global_batch_size: 64, cluster: 1x8xMI300X}}"
    )
    assert foretune("export", path, "--set", "tp=8", "--out", tmp_path / "out").code == 0
    script, overlay = ((tmp_path / "out" / f"s.{kind}").read_text() for kind in ("sh", "yaml"))
    assert all(flag in script for flag in flags)
    for text in (script, overlay):
        assert said in text
        assert ("state" in text.split("seq-length")[0]) is bool(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mock_data: true", ["mock_data is on, as in own.yaml"]),
        ("mock_data: ${PRIMUS_MOCK:true}", ["mock_data is on, as in own.yaml"]),
        ("mock_data: false", []),
        ("moe_router_force_load_balancing: true", ["moe_router_force_load_balancing is on, as in"]),
    ],
)
def test_switches_of_benchmarks_are_said_to_be_no_training(
    text: str, said: list[str], tmp_path: Path, foretune: Command
) -> None:
    assert foretune("export", "mixtral_8x22b_mi355x", "--out", tmp_path).code == 0
    alone = (tmp_path / "mixtral_8x22b_mi355x.yaml").read_text()
    assert "# mock_data is on: " in alone
    assert "# moe_router_force_load_balancing is on: " in alone
    switches = ("mock_data: true", "moe_router_force_load_balancing: true")
    kept = [line for line in alone.splitlines() if line.strip() not in switches]
    place = next(i for i, line in enumerate(kept) if line.strip() == "overrides:")
    kept.insert(place + 1, f"      {text}")
    own = tmp_path / "own.yaml"
    own.write_text("\n".join(line for line in kept if not line.startswith("#")) + "\n")
    out = tmp_path / "out"
    assert foretune("export", own, "--cluster", "8x8xMI355X", "--out", out).code == 0
    head = [line for line in next(out.glob("*.yaml")).read_text().splitlines() if line[:1] == "#"]
    assert [any(words in line for line in head) for words in said] == [True] * len(said)
    assert sum(" is on" in line for line in head) == len(said)
