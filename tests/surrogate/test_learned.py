"""The residual falls back to the physics, calibration shrinks, and files are read as written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs import catalog
from specs.choices import Precision
from specs.cluster import Cluster
from specs.config import ConfigTable
from specs.errors import InputError
from specs.models_json import models_json
from specs.runs import RunTable, read_runs, table_of
from specs.stack import Framework, Stack
from specs.workload import Workload
from surrogate.calibration import (
    PROJECTION_BIAS,
    Calibration,
    read_calibration,
    write_calibration,
)
from surrogate.cases import Cases
from surrogate.learned import SHIPPED, Learned, read_learned, shipped
from surrogate.learning import has_throughput, learn
from surrogate.projection import project
from surrogate.residual import Residual
from surrogate.run_cases import cases_of
from surrogate.step_time import step_time
from surrogate.uncertainty import TRUST


def study(model: str = "llama3-70b", gpu: str = "MI300X", nodes: int = 8) -> Cases:
    """A small grid of configs on one cluster."""
    tp, pp, mbs = (axis.ravel() for axis in np.meshgrid([1, 2, 4, 8], [1, 2, 4], [1, 2]))
    config = ConfigTable.from_columns({"tp": tp, "pp": pp, "mbs": mbs, "etp": tp})
    workload = Workload(
        model=catalog.model(model), seq_len=4096, global_batch_size=512, routing_imbalance=1.0,
        target_tokens=None,
    )  # fmt: skip
    cluster = Cluster(
        name="", gpu=catalog.gpu(gpu), num_nodes=nodes, gpus_per_node=8,
        price_usd_per_gpu_hour=None,
    )  # fmt: skip
    stack = Stack(framework=Framework.PRIMUS, framework_name="Primus-Megatron")
    return Cases.of_study(config, workload, cluster, stack)


def runs(speed: float, *changes: dict[str, str]) -> RunTable:
    """Measured runs like those of ``study``, ``speed`` times as fast as projected."""
    base = {
        "source": "me", "gpu": "MI300X", "gpus_per_node": "8", "num_gpus": "64",
        "framework": "Primus-Megatron", "model": "llama3-70b", "seq_len": "4096", "gbs": "512",
        "mbs": "1", "tp": "8", "pp": "1", "recompute": "none", "sharding": "zero1",
        "tokens_per_s_per_gpu": "1",
    }  # fmt: skip
    text = [base | {"run_id": f"mine-{i}"} | change for i, change in enumerate(changes)]
    table = table_of(text, catalog.model, catalog.gpu)
    projected = shipped().predict(table).value
    return replace(table, tokens_per_s_per_gpu=projected * speed)


def test_without_facts_the_residual_is_nothing() -> None:
    found = Residual.nothing().predict(study())
    assert (found.mean == 0).all()
    assert (found.sd > 0).all()


def test_the_residual_falls_back_to_the_physics_far_from_its_facts() -> None:
    table = runs(1.0, {}, {"tp": "4"})
    cases = cases_of(table)
    residual = Residual.fit(cases, np.array([0.2, 0.2]))
    near = residual.predict(cases)
    assert (near.mean > 0.1).all()
    far = residual.predict(study("qwen3-30b-a3b", "GB200"))
    assert np.abs(far.mean).max() < 0.01
    assert (far.sd[0] > near.sd).all()


def test_one_study_and_a_table_of_runs_get_the_same_residual() -> None:
    cases = study()
    residual = shipped().residual
    columns = cases.config
    rows = Cases.of_runs(
        columns,
        [Workload(model=cases.models[0], seq_len=4096, global_batch_size=512,
                  routing_imbalance=1.0, target_tokens=None)] * len(cases),
        [Cluster(name="", gpu=cases.gpus[0], num_nodes=8, gpus_per_node=8,
                 price_usd_per_gpu_hour=None)] * len(cases),
        [cases.stacks[0]] * len(cases),
    )  # fmt: skip
    one, many = residual.predict(cases), residual.predict(rows)
    assert one.mean == pytest.approx(many.mean, abs=5e-3)
    assert one.sd == pytest.approx(many.sd, rel=0.15)


def test_the_residual_is_read_as_written() -> None:
    table = runs(1.0, {}, {"tp": "4"})
    cases = cases_of(table)
    residual = Residual.fit(cases, np.array([0.2, -0.1]))
    again = Residual.from_json(json.loads(json.dumps(residual.as_json())))
    assert again.predict(cases).mean == pytest.approx(residual.predict(cases).mean, abs=1e-3)
    with pytest.raises(InputError, match="residual"):
        Residual.from_json({"features": []})


def test_more_bandwidth_is_never_slower_with_everything_learned() -> None:
    cases = study()
    faster = replace(
        cases, cluster=replace(cases.cluster, nic_bytes_per_s=cases.cluster.nic_bytes_per_s * 2)
    )
    before, after = project(cases), project(faster)
    assert (after.tokens_per_s_per_gpu >= before.tokens_per_s_per_gpu * (1 - 1e-9)).all()


def test_one_run_moves_its_own_key_and_little_else() -> None:
    calibrated = shipped().calibrated(runs(0.7, {}))
    mine = runs(1.0, {}, {"tp": "4", "pp": "2"})
    gain = calibrated.predict(mine).value / shipped().predict(mine).value
    assert 0.7 < gain[0] < 0.9, "shrunk towards the measured run"
    assert 0.65 < gain[1] < 1.0, "constants that explain the run may weigh more in another layout"
    other = study("mixtral-8x7b", "H100-SXM")
    elsewhere = project(other, calibrated.constants, calibrated)
    assert elsewhere.tokens_per_s_per_gpu == pytest.approx(
        project(other).tokens_per_s_per_gpu, rel=1e-6
    )


def test_runs_that_agree_with_the_projection_change_nothing() -> None:
    table = runs(1.0, {}, {"tp": "4"})
    calibrated = shipped().calibrated(table)
    assert calibrated.predict(table).value == pytest.approx(shipped().predict(table).value)


def test_calibration_narrows_the_spread_and_says_so() -> None:
    table = runs(0.8, {}, {"tp": "4"}, {"mbs": "2"})
    calibrated = shipped().calibrated(table)
    offset = calibrated.calibration.offset(cases_of(table))
    assert offset.calibrated.all()
    assert offset.measured.all()
    assert (offset.open_share < 0.5).all()
    trust = project(cases_of(table), calibrated.constants, calibrated).trust
    assert set(trust) == {TRUST[-1]}


def test_revealed_runs_teach_in_rehearsal_what_they_teach_for_good() -> None:
    table = runs(0.75, {}, {"tp": "4"}, {"mbs": "2"})
    known, rest = np.array([0, 1]), np.array([2])
    rehearsed = shipped().rehearse(table)(known, rest)
    real = shipped().calibrated(table.take(known)).predict(table.take(rest))
    assert rehearsed.value == pytest.approx(real.value, rel=0.02)
    nothing = shipped().rehearse(table)(known[:0], rest)
    assert nothing.value == pytest.approx(shipped().predict(table.take(rest)).value, rel=1e-6)


def test_a_structural_difference_moves_a_constant_more_than_an_offset() -> None:
    fast, slow = {"tp": "1", "pp": "8"}, {"tp": "8", "pp": "1"}
    table = runs(1.0, *[fast | {"mbs": m} for m in ("1", "2")], *[slow | {"mbs": m} for m in "12"])
    measured = table.tokens_per_s_per_gpu * np.array([1.0, 1.0, 0.7, 0.7])
    calibrated = shipped().calibrated(replace(table, tokens_per_s_per_gpu=measured))
    moved = {m.constant: m.factor for m in calibrated.calibration.moved_constants()[:12]}
    assert any(name.startswith(("tp_", "link_")) for name in moved)


def test_projections_that_no_run_has_corrected_are_believed_to_be_optimistic() -> None:
    table = runs(1.0, {})
    bare = Learned.nothing()
    physics = step_time(cases_of(table), bare.constants).step_time_s
    tokens = 4096 * 512 / 64
    assert bare.predict(table).value == pytest.approx(
        tokens / physics * np.exp(PROJECTION_BIAS), rel=1e-6
    )


def test_a_calibration_is_read_as_written(tmp_path: Path) -> None:
    table = runs(0.8, {}, {"tp": "4"})
    calibrated = shipped().calibrated(table)
    path = tmp_path / "c.json"
    write_calibration(path, calibrated.calibration)
    again = replace(shipped(), calibration=read_calibration(path))
    assert again.predict(table).value == pytest.approx(calibrated.predict(table).value, rel=2e-3)
    content = json.loads(path.read_text())
    assert content["schema_version"] == 2
    assert [run["run_id"] for run in content["runs"]] == ["mine-0", "mine-1"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema_version": 9}', "\x00"])
def test_an_unusable_calibration_is_bad_input(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_calibration(path)
    with pytest.raises(InputError):
        read_learned(path)
    with pytest.raises(InputError):
        read_calibration(tmp_path / "missing.json")


def test_measuring_a_run_again_replaces_it() -> None:
    first = shipped().calibrated(runs(0.8, {}))
    second = first.calibrated(runs(0.9, {}))
    assert len(second.calibration) == 1
    empty = Calibration.nothing()
    assert len(empty) == 0


def test_joint_draws_share_what_candidates_have_in_common() -> None:
    cases = study().take(np.arange(6))
    drawn = shipped().joint_draws(cases, draws=400, seed=3)
    assert drawn.shape == (400, 6)
    assert (drawn == shipped().joint_draws(cases, draws=400, seed=3)).all()
    alone = drawn.std(axis=0).mean()
    apart = (drawn - drawn.mean(axis=1, keepdims=True)).std(axis=0).mean()
    assert apart < alone


def test_shipped_facts_belong_to_this_physics(shared: Path) -> None:
    """Learned again on a physics that has changed since: ``python -m surrogate.learning``."""
    measured = shared / "measured"
    table = read_runs(measured / "runs.csv", models_json(measured / "models.json").find)
    table = table.take(has_throughput(table))
    learned = read_learned(SHIPPED)
    assert len(learned.residual) == len(table)
    cases = cases_of(table)
    projected = project(cases, learned.constants).step_time_s
    tokens = np.array([w.tokens_per_step for w in table.workloads]) / cases.cluster.num_gpus
    errors = np.log(table.tokens_per_s_per_gpu * projected / tokens)
    assert np.abs(errors - learned.residual.errors).max() < 0.01


def test_learning_recovers_a_constant_from_runs_that_were_made_with_it() -> None:
    changes = [
        {"tp": str(tp), "pp": str(pp), "mbs": str(mbs)}
        for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2)
    ]  # fmt: skip
    table = runs(1.0, *changes)
    truth = shipped().constants.changed({"gemm_utilisation": 0.9})
    cases = cases_of(table)
    assert Precision.BF16.label == "bf16"
    made = project(cases, truth).tokens_per_s_per_gpu
    learned = learn(replace(table, tokens_per_s_per_gpu=made), start=shipped().constants)
    again = learned.predict(table).value
    assert np.abs(np.log(again / made)).mean() < 0.01
