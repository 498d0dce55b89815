"""Measured peaks correct the memory of their stack, in whatever reading they were taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs.runs import RunTable
from surrogate.calibration_file import read_calibration, write_calibration
from surrogate.learned import Learned, shipped
from surrogate.memory import counter_reading, memory
from surrogate.memory_calibration import GROUPS, MemoryFacts, moved_constants
from surrogate.memory_constants import shipped_memory_constants
from surrogate.projection import project, projection_json
from surrogate.run_cases import cases_of
from tests.surrogate.learned_cases import runs, study


def with_peaks(table: RunTable, counter: str, *factors: float) -> RunTable:
    """The runs with peaks that many times as high as projected, read from ``counter``."""
    counters = np.array([counter] * len(table), dtype=object)
    peaks = counter_reading(cases_of(table), counters) * np.array(factors)
    return replace(table, memory_counter=counters, peak_memory_gib=peaks)


def device_gib(learned: Learned) -> np.ndarray:
    """Projected device memory of the configs of the study."""
    return np.asarray(project(study(), learned.constants, learned).device_gib)


def test_without_peaks_memory_is_as_projected() -> None:
    learned = shipped().with_peaks(runs(1.0, {}))
    assert not len(learned.peaks())
    assert device_gib(learned) == pytest.approx(memory(study()).device_gib, rel=1e-12)


def test_a_peak_is_explained_as_it_is_projected() -> None:
    table = with_peaks(runs(1.0, {}), "reserved", 1.2)
    peaks = shipped().with_peaks(table).peaks()
    gap = peaks.gaps(cases_of(table), table.peak_memory_gib, table.memory_counter)[0]
    assert gap.projected_gib == pytest.approx(
        peaks.reading(cases_of(table), table.memory_counter)[0]
    )
    assert gap.projected_gib == pytest.approx(sum(gap.components.values()))


@pytest.mark.parametrize("counter", ["device", "reserved", "allocated"])
def test_a_peak_moves_its_stack_part_of_the_way(counter: str) -> None:
    learned = shipped().with_peaks(with_peaks(runs(1.0, {}), counter, 1.2))
    ratio = device_gib(learned) / memory(study()).device_gib
    assert ((ratio > 1.03) & (ratio < 1.2)).all()
    other = replace(cases_of(runs(1.0, {"framework": "TorchTitan", "sharding": "fsdp"})))
    assert learned.peaks().memory(other).device_gib == pytest.approx(memory(other).device_gib)


def test_peaks_that_agree_with_the_projection_change_nothing() -> None:
    learned = shipped().with_peaks(with_peaks(runs(1.0, {}, {"tp": "4"}), "reserved", 1.0, 1.0))
    assert device_gib(learned) == pytest.approx(memory(study()).device_gib, rel=1e-9)


def test_peaks_find_the_constant_that_is_other() -> None:
    """Runs with few and many activations tell activations from the rest."""
    table = runs(
        1.0, {"mbs": "1", "tp": "8"}, {"mbs": "4", "tp": "8"}, {"mbs": "8", "tp": "8"},
        {"mbs": "4", "tp": "4"}, {"recompute": "full", "tp": "8"},
    )  # fmt: skip
    cases = cases_of(table)
    truth = moved_constants(shipped_memory_constants(), {"activations": 1.12}, ("Primus-Megatron",))
    counters = np.array(["reserved"] * len(table), dtype=object)
    table = replace(
        table, memory_counter=counters, peak_memory_gib=counter_reading(cases, counters, truth)
    )
    peaks = shipped().with_peaks(table).peaks()
    factors = peaks.factors("Primus-Megatron")
    assert max(factors, key=lambda name: abs(np.log(factors[name]))) == "activations"
    after, before = np.abs(peaks.leave_one_out()), np.abs(peaks.errors)
    assert after.mean() < 0.5 * before.mean()


def test_a_peak_in_another_unit_is_left_out() -> None:
    table = with_peaks(runs(1.0, {}, {"tp": "4"}), "device", 1.05, 1000.0)
    assert shipped().with_peaks(table).peaks().run_ids == ("mine-0",)


def test_peaks_of_failed_runs_and_of_unstated_recomputation_say_nothing() -> None:
    table = with_peaks(runs(1.0, {}, {"tp": "4"}), "device", 1.2, 1.2)
    failed = replace(
        table, out_of_memory=np.array([True, False]), recompute_unknown=np.array([False, True])
    )
    assert not len(shipped().with_peaks(failed).peaks())


def test_stages_of_one_projection_add_up_to_its_calibrated_peak() -> None:
    learned = shipped().with_peaks(with_peaks(runs(1.0, {}), "device", 1.2))
    cases = study()
    row = int(np.flatnonzero(cases.config.pp == 4)[0])
    told = projection_json(cases, row, learned.constants, learned)["memory"]
    assert max(stage["total_gib"] for stage in told["stages"]) == pytest.approx(told["peak_gib"])
    assert told["peak_gib"] > 1.03 * memory(cases).device_gib[row]


def test_peaks_are_merged_and_read_as_written(tmp_path: Path) -> None:
    table = with_peaks(runs(1.0, {}, {"tp": "4"}), "device", 1.2, 1.1)
    one, two = (shipped().with_peaks(table.take([row])).calibration for row in (0, 1))
    both = shipped().with_peaks(table)
    path = tmp_path / "c.json"
    write_calibration(path, two.merged(one))
    again = replace(shipped(), calibration=read_calibration(path))
    assert device_gib(again) == pytest.approx(device_gib(both), rel=1e-4)
    assert set(MemoryFacts.nothing().merged(again.peaks()).run_ids) == {"mine-0", "mine-1"}
    assert set(again.peaks().factors("Primus-Megatron")) == set(GROUPS)
