"""Properties of the time model, and public runs that it must project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.choices import Overlap, Precision, Recompute, Schedule
from specs.config import ConfigTable, TrainingConfig
from specs.model import Model
from specs.models_json import models_json
from specs.run_rows import model_flops_per_token
from specs.runs import read_runs
from surrogate.communication import Network, all_gather_s, all_to_all_s, dispatch_s
from surrogate.fitting import measured_step_s
from surrogate.run_cases import cases_of
from surrogate.step_time import BREAKDOWN, layer_table, step_time
from surrogate.topology import group
from tests.surrogate.time_cases import SHIPPED, part, seconds, study, with_cluster

RATES = ("hbm_bytes_per_s", "link_bytes_per_s", "nic_bytes_per_s")


@st.composite
def configs(draw: st.DrawFn) -> TrainingConfig:
    """Legal configs of Mixtral 8x22B on 64 GPUs."""
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    return TrainingConfig(
        tp=tp,
        pp=pp,
        vpp=vpp,
        schedule=Schedule.INTERLEAVED if vpp > 1 else Schedule.ONE_F_ONE_B,
        cp=draw(st.sampled_from([1, 2])),
        ep=draw(st.sampled_from([1, 2, 4, 8])),
        mbs=draw(st.sampled_from([1, 2, 4])),
        sequence_parallel=tp > 1,
        recompute=draw(st.sampled_from([Recompute.NONE, Recompute.FULL])),
        precision=draw(st.sampled_from([Precision.BF16, Precision.FP8])),
        overlap=draw(st.sampled_from([Overlap.NONE, Overlap.DP])),
    )


@settings(max_examples=60, deadline=None)
@given(configs(), st.sampled_from(RATES), st.floats(1.1, 4.0))
def test_more_bandwidth_is_never_slower(config: TrainingConfig, rate: str, factor: float) -> None:
    cases = study(config)
    faster = with_cluster(cases, **{rate: float(getattr(cases.cluster, rate)) * factor})
    assert seconds(faster)[0] <= seconds(cases)[0] * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(configs())
def test_nothing_beats_the_speed_of_light(config: TrainingConfig) -> None:
    cases = study(config)
    flops = model_flops_per_token(cases.models[0], 8192, causal=True) * 8192 * 512 / 64
    peak = float(
        cases.cluster.peak_fp8_flops
        if config.precision is Precision.FP8
        else cases.cluster.peak_bf16_flops
    )
    assert seconds(cases)[0] > flops / peak


@settings(max_examples=60, deadline=None)
@given(configs())
def test_breakdown_sums_to_the_step(config: TrainingConfig) -> None:
    result = step_time(study(config), SHIPPED, breakdown=True)
    assert result.breakdown is not None
    assert tuple(result.breakdown) == BREAKDOWN
    assert sum(result.breakdown.values())[0] == pytest.approx(result.step_time_s[0], rel=1e-12)
    assert all(part[0] >= -1e-12 for part in result.breakdown.values())


@settings(max_examples=30, deadline=None)
@given(configs(), st.sampled_from([1024, 2048]))
def test_a_larger_batch_takes_longer_and_is_no_less_efficient(
    config: TrainingConfig, gbs: int
) -> None:
    small, large = seconds(study(config, gbs=512))[0], seconds(study(config, gbs=gbs))[0]
    assert small < large <= small * gbs / 512 * (1 + 1e-9)


def test_longer_sequences_cost_more_than_their_tokens() -> None:
    config = TrainingConfig(tp=8, sequence_parallel=True)
    short, long = (
        seconds(study(config, model="llama3.1-70b", gpu="H100-SXM", seq_len=s, gbs=64))[0]
        for s in (8192, 32768)
    )
    assert long > 4 * short


def test_work_is_conserved_by_data_parallelism() -> None:
    config = TrainingConfig(tp=8, sequence_parallel=True, overlap=Overlap.DP)
    single, double = (
        study(config, model="llama3.1-70b", gpu="H100-SXM", num_gpus=n, gbs=64) for n in (64, 128)
    )
    assert part(single, "gemm")[0] == pytest.approx(2 * part(double, "gemm")[0])


def test_one_row_is_a_table_of_one_row() -> None:
    rows = [
        TrainingConfig(pp=4, ep=8, mbs=m, precision=p)
        for m in (1, 2)
        for p in (Precision.BF16, Precision.FP8)
    ]
    together = seconds(study(*rows))
    alone = [seconds(study(row))[0] for row in rows]
    assert together == pytest.approx(alone, rel=1e-12)


def test_layers_are_shared_by_no_rows_that_differ_in_them() -> None:
    draw = np.random.default_rng(0).integers
    rows = 200
    columns = {
        **{axis: 2 ** draw(0, 3, rows) for axis in ("tp", "pp", "cp", "ep", "etp", "mbs")},
        **{axis: draw(0, 2, rows) for axis in ("sequence_parallel", "cross_entropy_fusion")},
        **{axis: draw(0, 3, rows) for axis in ("cp_comm", "moe_dispatcher", "sync_free_stage")},
        "recompute_modules": draw(0, 1 << 8, rows),
        "overlap": draw(0, 1 << 4, rows),
        "precision": np.where(draw(0, 2, rows), int(Precision.FP8), int(Precision.BF16)),
    }
    cases = replace(study(TrainingConfig()), config=ConfigTable.from_columns(columns))
    alone = [seconds(cases.take(slice(row, row + 1)))[0] for row in range(rows)]
    assert seconds(cases) == pytest.approx(alone, rel=1e-12)


def test_layers_can_be_shared_over_chunks() -> None:
    cases = study(*(TrainingConfig(pp=4, ep=8, mbs=m) for m in (1, 2, 4)))
    layers = layer_table(cases, SHIPPED)
    last = slice(1, 3)
    shared = step_time(cases.take(last), SHIPPED, layers=layers.take(last)).step_time_s
    assert shared == pytest.approx(seconds(cases)[last], rel=1e-12)


def test_sliding_windows_save_attention() -> None:
    model = study(TrainingConfig(), model="llama3-8b").models[0]
    windowed = model.model_copy(update={"name": "w", "sliding_window": 1024, "window_layers": 32})
    plain = _attention_of(model)
    assert 0 < _attention_of(windowed) < 0.5 * plain


def _attention_of(model: Model) -> float:
    from specs.model import ModelColumns

    cases = study(TrainingConfig(), model="llama3-8b", gpu="H100-SXM", num_gpus=8, seq_len=32768)
    cases = replace(cases, model=ModelColumns.of_one(model), models=(model,))
    return float(part(cases, "attention")[0])


def _network() -> Network:
    return Network(*(np.array(v) for v in (300e9, 50e9, 200e9, 40e9, 150e9, 40e9, 2e-5, 3e-5)))


@given(st.sampled_from([2, 4, 8, 16, 64]), st.integers(1, 8), st.floats(1e3, 1e9))
def test_deduplicated_dispatch_moves_no_more_than_all_to_all(
    size: int, topk: int, token_bytes: float
) -> None:
    members = group(np.array(size), 1, np.array(8))
    network = _network()
    # At equal rates: a token travels once per rank instead of once per expert.
    same = Network(
        network.link, network.nic, network.alltoall_link, network.alltoall_nic,
        network.alltoall_link, network.alltoall_nic, network.link_latency, network.nic_latency,
    )  # fmt: skip
    once = dispatch_s(token_bytes, topk, members, same)
    plain = all_to_all_s(token_bytes * topk, members, same)
    # Inside a node tokens for other nodes are forwarded too, so allow for that.
    assert once <= plain * size / max(size - 1, 1) * 8 / 7 + 1e-12 or size > 8


@given(st.sampled_from([1, 2, 8, 16, 64]), st.sampled_from([1, 2, 8]))
def test_gathering_is_bounded_by_its_slowest_domain(size: int, stride: int) -> None:
    members = group(np.array(size), stride, np.array(8))
    time = float(all_gather_s(1e9, members, _network()))
    if size == 1:
        assert time == 0
        return
    within = size * stride <= 8
    rate = 300e9 if within else min(300e9, 50e9 * 8 / stride)
    assert time >= 1e9 * (size - 1) / size / rate


GOLDENS = {
    # run: tolerance. Public runs of four GPU generations and their sources (source column of the
    # measured runs): projections must stay this close.
    "korthikanti-gpt3-175b-meg-seqsel": 0.15,
    "vtrain-multi-3.6b-t1d64p1-m8-g512-n64": 0.15,
    "maxtext-dsv3-rerun-dense-cf1.25-pdbs8": 0.15,
    "mbridge-26.06-gb300-llama3.1-405b-fp8-cs-256g": 0.15,
}


@pytest.fixture(scope="module")
def measured(shared: Path):  # type: ignore[no-untyped-def]
    folder = shared / "measured"
    return read_runs(folder / "runs.csv", models_json(folder / "models.json").find)


def test_public_runs_are_projected(measured) -> None:  # type: ignore[no-untyped-def]
    rows = [i for i, run in enumerate(measured.run_id) if run in GOLDENS]
    assert len(rows) == len(GOLDENS)
    table = measured.take(np.array(rows))
    step = step_time(cases_of(table), SHIPPED).step_time_s
    for run, projected, real in zip(table.run_id, step, measured_step_s(table), strict=True):
        assert projected == pytest.approx(real, rel=GOLDENS[run]), run


def test_physics_alone_projects_half_of_all_dense_runs_within_6_percent(measured) -> None:  # type: ignore[no-untyped-def]
    stated = np.isin(measured.throughput_from, ("tokens", "step")) & ~measured.is_moe
    table = measured.take(np.flatnonzero(stated))
    step = step_time(cases_of(table), SHIPPED).step_time_s
    assert np.median(np.abs(step / measured_step_s(table) - 1)) < 0.06
