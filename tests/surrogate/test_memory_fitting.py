"""Constants are found again where data shows them, and stay at their priors where it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from memory_cases import LLAMA_8B, gpu, study

from specs.config import ConfigTable
from surrogate.constants import ConstantFile, shipped_constants
from surrogate.memory import counter_reading
from surrogate.memory_constants import MemoryConstants
from surrogate.memory_fitting import MemoryRuns, fit_memory, read_tables, with_spread


def priors() -> ConstantFile:
    """The shipped constants put back to their priors, without stacks."""
    shipped = shipped_constants("memory_constants")
    kept = {
        name: constant.model_copy(update={"value": constant.prior})
        for name, constant in shipped.constants.items()
        if not name.startswith("stack_offset/")
    }
    return shipped.model_copy(update={"constants": kept})


def runs(truth: dict[str, float]) -> MemoryRuns:
    """Peaks of a small sweep whose constants are known."""
    sweep = {"tp": [1, 1, 2, 2, 4, 4, 1, 2], "mbs": [1, 2, 1, 4, 2, 8, 4, 2], "pp": [1, 2] * 4}
    table = ConfigTable.from_columns({name: np.array(values) for name, values in sweep.items()})
    cases = study(LLAMA_8B, table, num_gpus=64, device=gpu("nvidia", 80))
    n = len(table)
    counters = np.array(["allocated", "device"] * (n // 2), dtype=object)
    values = priors().values() | truth
    measured = counter_reading(cases, counters, MemoryConstants.from_values(values))
    return MemoryRuns(
        cases=cases,
        counters=counters,
        measured_gib=measured,
        bound=np.zeros(n, dtype=int),
        weight=np.ones(n),
        fold=np.arange(n),
        stack_names=np.array(["Megatron-LM"] * n, dtype=object),
    )


def test_what_the_data_shows_is_found_and_the_rest_stays() -> None:
    found = fit_memory(runs({"activation_scale/megatron": 1.25}), priors()).values()
    assert found["activation_scale/megatron"] > 1.1
    assert found["activation_scale/torchtitan"] == 1.0
    assert found["fragmentation/maxtext"] == priors().values()["fragmentation/maxtext"]


def test_nothing_moves_where_the_priors_are_right() -> None:
    found, held = fit_memory(runs({}), priors()).values(), priors().values()
    for name, value in held.items():
        assert found[name] == pytest.approx(value, rel=1e-3)


def test_a_fit_is_deterministic() -> None:
    one, two = (fit_memory(runs({"context_gib/nvidia": 2.0}), priors()) for _ in range(2))
    assert one == two


def test_the_spread_is_that_of_unseen_folds() -> None:
    told = with_spread(runs({}), priors()).values()
    assert told["log_sd/nvidia"] < 0.01, "nothing is wrong in runs made by the model"
    assert told["log_sd/amd"] == priors().values()["log_sd/amd"]


def test_shipped_constants_are_complete_and_documented() -> None:
    shipped = shipped_constants("memory_constants")
    MemoryConstants.from_values(shipped.values())
    for name, constant in shipped.constants.items():
        assert constant.source, name
        assert constant.value >= 0, name


def test_shipped_constants_explain_the_measured_peaks(shared: Path) -> None:
    """A gate on the whole: half of the stated runs within 4%, nine in ten within 20%."""
    measured = MemoryRuns.of(read_tables(shared / "measured")[:2])
    projected = counter_reading(measured.cases, measured.counters)
    peaks = measured.bound == 0
    error = np.abs(projected / measured.measured_gib - 1)[peaks]
    assert len(error) > 300
    assert np.median(error) < 0.04
    assert np.quantile(error, 0.9) < 0.2
