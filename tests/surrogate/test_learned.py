"""The residual falls back to the physics, and what was learned is read as written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs.choices import (
    MoeDispatcher,
    Precision,
    Recompute,
    RecomputeMethod,
    Schedule,
    Sharding,
)
from specs.cluster import Cluster
from specs.config import ConfigTable
from specs.errors import InputError
from specs.models_json import models_json
from specs.runs import read_runs
from specs.workload import Workload
from surrogate.calibration import PROJECTION_BIAS
from surrogate.calibration_file import read_calibration
from surrogate.cases import Cases
from surrogate.features import classes, features
from surrogate.learned import SHIPPED, Learned, read_learned, shipped
from surrogate.learning import has_throughput, learn
from surrogate.likeness import covariance
from surrogate.projection import project
from surrogate.residual import Residual
from surrogate.run_cases import cases_of
from surrogate.speed_of_light import fastest_tokens_per_s_per_gpu
from surrogate.step_time import step_time
from surrogate.uncertainty import UNSTATED_WIDTH
from tests.surrogate.learned_cases import runs, study


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


def test_leaving_the_node_is_not_credited_by_clusters_unlike_it() -> None:
    """Runs of 64 GPUs came out a fifth faster than the physics, runs of a node as it says."""
    table = runs(1.0, *({"tp": tp, "num_gpus": n, "dp": ""} for tp in "48" for n in ("8", "64")))
    cases = cases_of(table)
    nodes = np.array([cluster.num_gpus > 8 for cluster in table.clusters])
    residual = Residual.fit(cases, np.where(nodes, 0.2, 0.0))
    seen = residual.predict(cases).mean
    assert (seen[nodes] > 0.15).all()
    alike = residual.predict(study()).mean
    assert alike.max() > 0.15
    other = study("llama3-8b", "H100-SXM")
    shared = covariance(features(other), classes(other), residual.points, residual.labels)
    inside = residual.predict(study("llama3-8b", "H100-SXM", nodes=1)).mean
    carried_over = (shared @ residual.weights - inside).max()
    credited = (residual.predict(other).mean - inside).max()
    assert 0 < credited < 0.6 * carried_over


@pytest.mark.parametrize(
    ("model", "gpu", "nodes"),
    [("llama3-70b", "MI300X", 8), ("llama3.1-405b", "H100", 2048), ("qwen3-235b-a22b", "H100", 16)],
)
def test_one_study_and_a_table_of_runs_get_the_same_residual(
    model: str, gpu: str, nodes: int
) -> None:
    cases = study(model, gpu, nodes)
    residual = shipped().residual
    one, many = residual.predict(cases), residual.predict(_as_runs(cases))
    assert one.mean == pytest.approx(many.mean, abs=5e-3)
    assert one.sd == pytest.approx(many.sd, rel=0.015)


@pytest.mark.parametrize("model", ["mixtral-8x22b", "llama3-8b"])
def test_a_study_is_the_product_of_its_meshes_and_styles(model: str) -> None:
    """With few facts nothing is left out: both ways are then the same to rounding."""
    cases = replace(study(model), config=_any_configs(300))
    facts = _as_runs(cases.take(slice(0, 40)))
    residual = Residual.fit(facts, np.random.default_rng(1).normal(0.0, 0.1, 40))
    one, many = residual.predict(cases), residual.predict(_as_runs(cases))
    for name in ("mean", "sd", "noise_sd", "bare_mean"):
        assert getattr(one, name) == pytest.approx(getattr(many, name), abs=1e-9)
    assert np.abs(one.mean - one.bare_mean).max() > 1e-3


def _any_configs(rows: int) -> ConfigTable:
    """Configs of all kinds, legal or not."""
    draw = np.random.default_rng(0).integers
    return ConfigTable.from_columns(
        {
            **{axis: 2 ** draw(0, 4, rows) for axis in ("tp", "pp", "cp", "ep", "mbs")},
            "vpp": draw(1, 3, rows),
            "recompute": draw(0, len(Recompute), rows),
            "recompute_method": draw(0, len(RecomputeMethod), rows),
            "recompute_layers": draw(0, 4, rows),
            "recompute_modules": draw(0, 1 << 8, rows),
            "moe_dispatcher": draw(0, len(MoeDispatcher), rows),
            "sharding": draw(0, len(Sharding), rows),
            "schedule": draw(0, len(Schedule), rows),
            "precision": draw(0, len(Precision), rows),
        }
    )


def _as_runs(cases: Cases) -> Cases:
    """The configs of ``learned_cases.study`` as rows of a table of runs."""
    workload = Workload(
        model=cases.models[0], seq_len=4096, global_batch_size=512, routing_imbalance=1.0,
        target_tokens=None,
    )  # fmt: skip
    cluster = Cluster(
        name="", gpu=cases.gpus[0], num_nodes=int(cases.cluster.num_gpus) // 8, gpus_per_node=8,
        price_usd_per_gpu_hour=None,
    )  # fmt: skip
    n = len(cases)
    return Cases.of_runs(cases.config, [workload] * n, [cluster] * n, [cases.stacks[0]] * n)


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


def test_projections_that_no_run_has_corrected_are_believed_to_be_optimistic() -> None:
    table = runs(1.0, {})
    bare = Learned.nothing()
    physics = step_time(cases_of(table), bare.constants).step_time_s
    tokens = 4096 * 512 / 64
    assert bare.predict(table).value == pytest.approx(
        tokens / physics * np.exp(PROJECTION_BIAS), rel=1e-6
    )


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


def test_a_run_that_leaves_recomputation_open_has_a_wider_interval() -> None:
    table = runs(1.0, {}, {"model": "mixtral-8x22b", "tp": "1", "ep": "8", "pp": "4"})
    stated = shipped().projections_of(table)
    nothing_said = replace(table, recompute_unknown=np.ones(2, dtype=bool))
    left_open = shipped().projections_of(nothing_said)
    value = left_open.tokens_per_s_per_gpu
    assert value == pytest.approx(stated.tokens_per_s_per_gpu)
    wider = np.log(left_open.lo90 / value) / np.log(stated.lo90 / value)
    assert wider == pytest.approx(UNSTATED_WIDTH)
    assert shipped().predict(nothing_said).hi90 == pytest.approx(left_open.hi90)
    assert (left_open.hi90 <= fastest_tokens_per_s_per_gpu(cases_of(nothing_said))).all()
