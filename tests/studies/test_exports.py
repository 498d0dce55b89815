"""Exports over the real search spaces: what a study writes reads back as the same config."""

from __future__ import annotations

from pathlib import Path

import pytest

from search.space import Space
from specs.errors import InputError
from specs.formats.megatron import arguments, read_arguments
from specs.formats.primus import read_primus, write_overlay
from specs.formats.reader import read_experiment

STUDIES = Path(__file__).resolve().parents[2] / "studies"


@pytest.mark.parametrize(
    "name", ["mixtral_8x22b_mi355x", "deepseek_v3_mi355x", "llama3.1_70b_mi300x"]
)
def test_configs_of_a_space_read_back(name: str, tmp_path: Path) -> None:
    experiment = read_experiment(STUDIES / f"{name}.yaml")
    assert experiment.cluster is not None
    path = tmp_path / "export.yaml"
    for config in Space.of(experiment, experiment.cluster).sample(120, seed=1).configs():
        write_overlay(path, experiment, config)
        assert read_primus(path, environment={}).baseline == config
        try:
            flags = arguments(config, experiment.workload, experiment.stack)
        except InputError as error:
            assert "export for Primus" in str(error)  # noqa: PT017
            continue
        assert read_arguments(flags)[0] == config
