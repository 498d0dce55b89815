"""No projection and no end of an interval is faster than the GPU multiplies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specs.choices import Precision, TrainingKind
from specs.run_rows import model_flops_per_token
from surrogate.calibration import LARGEST_LOG_ERROR
from surrogate.learned import shipped
from surrogate.projection import project, projection_json, throughput
from surrogate.run_cases import cases_of
from surrogate.speed_of_light import FROZEN_SHARE, fastest_tokens_per_s_per_gpu
from tests.surrogate.learned_cases import runs, study


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_it_is_the_peak_of_the_format_over_the_flops_of_a_token(precision: Precision) -> None:
    cases = study()
    codes = np.full(len(cases), int(precision))
    cases = replace(cases, config=cases.config.changed(precision=codes))
    flops = model_flops_per_token(cases.models[0], 4096, causal=True)
    peak = cases.gpus[0].peak_flops[precision.gemm_format].value
    np.testing.assert_allclose(fastest_tokens_per_s_per_gpu(cases), peak / flops)


def test_frozen_weights_need_no_gradients() -> None:
    cases = study()
    lora = replace(cases.workload, kind=np.array(int(TrainingKind.LORA)))
    tuned = replace(cases, workload=lora)
    gain = fastest_tokens_per_s_per_gpu(tuned) / fastest_tokens_per_s_per_gpu(cases)
    np.testing.assert_allclose(gain, 1 / FROZEN_SHARE)


def test_mfu_of_adapters_counts_what_they_need() -> None:
    cases = study()
    tuned = replace(
        cases,
        workload=replace(
            cases.workload, kind=np.array(int(TrainingKind.LORA)), lora_rank=np.array(16)
        ),
    )
    found = projection_json(tuned)["throughput"]
    fastest = float(fastest_tokens_per_s_per_gpu(tuned)[0])
    assert found["mfu"] == pytest.approx(found["tokens_per_s_per_gpu"] / fastest)


def test_rows_of_several_models_and_lengths_have_their_own() -> None:
    table = runs(1.0, {}, {"model": "llama3-8b", "tp": "1"}, {"seq_len": "8192"})
    cases = cases_of(table)
    alone = [fastest_tokens_per_s_per_gpu(cases.take(np.array([row])))[0] for row in range(3)]
    np.testing.assert_allclose(fastest_tokens_per_s_per_gpu(cases), alone)


def test_runs_that_contradict_each_other_widen_no_interval_beyond_it() -> None:
    table = runs(1.0, *({"tp": tp, "mbs": mbs} for tp in "48" for mbs in "12"))
    factors = np.exp(LARGEST_LOG_ERROR * 0.6 * np.array([1, -1, 1, -1]))
    told = replace(table, tokens_per_s_per_gpu=table.tokens_per_s_per_gpu * factors)
    learned = shipped().calibrated(told)
    cases = study()
    fastest = fastest_tokens_per_s_per_gpu(cases)
    found = project(cases, learned.constants, learned)
    assert (found.hi90 <= fastest).all()
    assert (found.lo90 < found.tokens_per_s_per_gpu).all()


def test_runs_told_too_fast_project_no_config_beyond_it() -> None:
    table = runs(np.exp(0.9 * LARGEST_LOG_ERROR), *({"tp": tp} for tp in "1248"))
    learned = shipped().calibrated(table)
    cases = study()
    fastest = fastest_tokens_per_s_per_gpu(cases)
    found = project(cases, learned.constants, learned)
    assert (found.tokens_per_s_per_gpu <= fastest).all()
    assert (found.tokens_per_s_per_gpu == fastest).any()
    tokens = cases.workload.seq_len * cases.workload.global_batch_size / cases.cluster.num_gpus
    np.testing.assert_allclose(found.step_time_s * found.tokens_per_s_per_gpu, tokens)
    speed = throughput(cases, learned.constants, learned)
    np.testing.assert_allclose(speed, found.tokens_per_s_per_gpu)
