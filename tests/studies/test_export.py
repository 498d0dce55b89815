"""``export`` writes what reads back as the same config, for the input and for a trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
