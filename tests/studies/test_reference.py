"""A baseline that does not fit: tune and ask name one config that stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from specs.choices import Precision
from specs.config import ConfigTable, TrainingConfig
from studies.reference import nearest_that_fits
from tests.studies.conftest import Ran

TIGHT = """\
name: tight
model: llama3.1-8b
seq_len: 8192
global_batch_size: 128
cluster: 1x8xH100
stack: {framework: Megatron-LM}
baseline: {tp: 2, mbs: 4, sharding: zero1}
axes:
  tp: [1, 2, 4]
  pp: [1, 2]
  cp: 1
  mbs: [1, 2, 4]
  vpp: 1
  schedule: 1f1b
  recompute: [none, full]
  precision: [bf16, fp8-cs]
  sharding: zero1
trials: 12
"""


def test_tune_and_ask_name_the_same_config(tmp_path: Path, foretune: Callable[..., Ran]) -> None:
    study = tmp_path / "tight.yaml"
    study.write_text(TIGHT)
    held = foretune("tune", study, "--out", tmp_path, "--json").json["reference"]
    asked = foretune("ask", study, "--runs", "1", "--out", tmp_path, "--json").json["runs"][0]
    assert held["is_baseline"] is False
    change = held["words"].removeprefix("the baseline with ")
    assert asked["reason"] == f"nearest to the baseline that fits: {change}"
    assert "fp8" not in change
    assert asked["config"]["precision"] == "bf16"


def test_the_nearest_keeps_the_number_format_and_surely_fits() -> None:
    baseline = TrainingConfig(tp=2, mbs=4)
    configs = [
        baseline,
        baseline.changed(precision=Precision.FP8),
        baseline.changed(mbs=2),
        baseline.changed(mbs=1),
        baseline.changed(mbs=1, tp=4),
    ]
    speed = np.array([5.0, 9.0, 8.0, 4.0, 7.0])
    fits = np.array([0.1, 1.0, 0.6, 0.95, 1.0])
    table = ConfigTable.from_configs(configs)
    assert nearest_that_fits(baseline, table, speed, fits) == 3
    assert nearest_that_fits(baseline, table, speed, np.zeros(5)) is None
