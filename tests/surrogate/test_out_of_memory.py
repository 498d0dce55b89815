"""Runs out of memory correct the memory of their stack, and are known not to fit themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs.errors import InputError
from surrogate.calibration import Calibration
from surrogate.calibration_file import read_calibration, write_calibration
from surrogate.learned import Learned, shipped
from surrogate.memory import memory
from surrogate.memory_calibration import MemoryFacts
from tests.surrogate.learned_cases import study


def learned_from(facts: MemoryFacts) -> Learned:
    """What ships with these facts of memory."""
    return replace(shipped(), calibration=replace(Calibration.nothing(), peaks=facts))


def row_below(share: float) -> int:
    """The config of the study whose projected peak is nearest to this share of its GPU."""
    cases = study()
    return int(np.argmin(np.abs(memory(cases).device_gib / cases.cluster.hbm_gib - share)))


def failed(row: int, run_id: str = "oom-0") -> MemoryFacts:
    """The fact that a config of the study went out of memory."""
    return MemoryFacts.of_out_of_memory(study().take(np.array([row])), [run_id])


def test_a_surprising_oom_raises_the_stack_and_an_expected_one_hardly() -> None:
    cases = study()
    before = memory(cases).device_gib
    surprising = failed(row_below(0.85)).memory(cases).device_gib / before
    assert (surprising > 1.02).all()
    assert (surprising < 1.4).all()
    expected = failed(int(np.argmax(before))).memory(cases).device_gib / before
    assert (np.abs(expected - 1.0) < np.abs(surprising - 1.0)).all()


def test_only_the_very_config_on_the_very_job_is_known_not_to_fit() -> None:
    cases, row = study(), row_below(0.85)
    facts = failed(row)
    assert np.flatnonzero(facts.ran_out(cases)).tolist() == [row]
    larger = replace(cases.cluster, num_gpus=2 * cases.cluster.num_gpus)
    assert not facts.ran_out(replace(cases, cluster=larger)).any()


def test_ooms_are_merged_and_read_as_written(tmp_path: Path) -> None:
    row = row_below(0.85)
    path = tmp_path / "c.json"
    calibration = learned_from(failed(row).merged(failed(row))).calibration
    write_calibration(path, calibration)
    again = read_calibration(path).peaks
    assert [run.run_id for run in again.out_of_memory] == ["oom-0"]
    assert again.ran_out(study())[row]
    assert again.memory(study()).device_gib == pytest.approx(
        failed(row).memory(study()).device_gib, rel=1e-4
    )


def test_a_damaged_run_out_of_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    write_calibration(path, learned_from(failed(0)).calibration)
    path.write_text(path.read_text().replace('"kind"', '"sort"'))
    with pytest.raises(InputError, match="out_of_memory"):
        read_calibration(path)
