"""Runs out of memory correct the memory of their stack, and are known not to fit themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs.cluster import Cluster
from specs.errors import InputError
from specs.workload import Workload
from surrogate.calibration import Calibration
from surrogate.calibration_file import read_calibration, write_calibration
from surrogate.cases import Cases
from surrogate.learned import Learned, shipped
from surrogate.memory import UNSTATED_WIDTH, fit_probability, memory, memory_log_sd
from surrogate.memory_calibration import LARGEST_LOG_ERROR, MemoryFacts
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


def test_an_oom_beyond_reason_moves_memory_no_farther_than_is_plausible() -> None:
    cases, row = study(), row_below(0.85)
    before = memory(cases).device_gib
    (run,) = failed(row).out_of_memory
    wild = replace(run, log_bound=LARGEST_LOG_ERROR)
    moved = replace(MemoryFacts.nothing(), out_of_memory=(wild,)).memory(cases).device_gib / before
    plausible = failed(row).memory(cases).device_gib / before
    assert (moved >= plausible - 1e-9).all()
    assert (moved < 1.6).all()


def test_an_oom_does_not_override_a_measured_peak() -> None:
    cases, row = study(), row_below(0.85)
    one, gib = cases.take(np.array([row])), memory(cases).device_gib[row]
    peak = MemoryFacts.of(one, np.array(["device"], dtype=object), np.array([gib]), np.array(["p"]))
    (run,) = failed(int(np.argmin(memory(cases).device_gib))).out_of_memory
    facts = replace(peak, out_of_memory=(replace(run, log_bound=LARGEST_LOG_ERROR),))
    assert float(facts.memory(one).device_gib[0]) == pytest.approx(gib, rel=0.1)


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


def test_a_table_of_many_jobs_fits_as_each_job_does() -> None:
    """Rows of a table know what ran out on their job as rows of a study do."""
    one, other = study(), study(nodes=4)
    facts = failed(row_below(0.85)).merged(failed(row_below(0.7), "oom-1"))
    stack, model = one.stacks[0], one.models[0]
    workload = Workload(
        model=model, seq_len=4096, global_batch_size=512, routing_imbalance=1.0, target_tokens=None
    )
    clusters = [
        Cluster(name="", gpu=one.gpus[0], num_nodes=nodes, gpus_per_node=8,
                price_usd_per_gpu_hour=None)
        for nodes in (8, 4)
    ]  # fmt: skip
    n = len(one)
    table = Cases.of_runs(
        one.config.take(np.tile(np.arange(n), 2)),
        [workload] * 2 * n,
        [clusters[0]] * n + [clusters[1]] * n,
        [stack] * 2 * n,
    )
    found = facts.fit_probability(table, facts.memory(table).device_gib)
    alone = [facts.fit_probability(cases, facts.memory(cases).device_gib) for cases in (one, other)]
    assert found == pytest.approx(np.concatenate(alone), rel=1e-9, abs=1e-12)
    plain = fit_probability(facts.memory(one).device_gib, one.cluster.hbm_gib, memory_log_sd(one))
    assert (alone[0] < plain - 0.1).any()
    assert facts.failed_here(other) is None
    assert len(facts.failed_here(one) or ()) == 2


def test_a_row_that_leaves_its_memory_open_fits_less_surely() -> None:
    cases, unstated = study(), np.ones(len(study()), dtype=bool)
    held, capacity_gib = memory(cases).device_gib, cases.cluster.hbm_gib
    nothing = MemoryFacts.nothing()
    found = nothing.fit_probability(cases, held, unstated)
    sd = UNSTATED_WIDTH * memory_log_sd(cases)
    assert found == pytest.approx(fit_probability(held, capacity_gib, sd))
    assert nothing.fit_probability(cases, held, ~unstated) == pytest.approx(
        nothing.fit_probability(cases, held)
    )
    # What is no leaner than a config that ran out does not fit, however wide the spread.
    row = row_below(0.85)
    facts = failed(row)
    moved = facts.memory(cases).device_gib
    told = facts.fit_probability(cases, moved, unstated)
    assert told[moved >= moved[row]] == pytest.approx(0.0, abs=1e-12)
    assert (told[moved < moved[row] * 0.5] > 0.0).all()
