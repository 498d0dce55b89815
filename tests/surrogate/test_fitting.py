"""Fitting finds constants that the data tells, and leaves the others at their prior."""

from __future__ import annotations

import numpy as np
import pytest

from specs.choices import Overlap
from specs.config import TrainingConfig
from specs.errors import InputError
from surrogate.cases import Cases
from surrogate.constants import Constant, ConstantFile
from surrogate.fitting import fit, row_weights
from surrogate.step_time import step_time
from surrogate.time_constants import TimeConstants, prior_of
from surrogate.time_rates import BELIEFS, KNOWN_FACTORS
from tests.surrogate.time_cases import study

PRIORS = TimeConstants.of_priors()


def dense_runs() -> Cases:
    """Configs without pipeline, experts or context parallelism."""
    configs = [
        TrainingConfig(tp=tp, mbs=mbs, sequence_parallel=tp > 1, overlap=Overlap.DP)
        for tp in (1, 2, 4, 8)
        for mbs in (1, 2, 4)
    ]
    return study(*configs, model="llama3.1-70b", gpu="H100-SXM", num_gpus=32)


def test_fit_recovers_a_constant_that_the_runs_tell() -> None:
    cases = dense_runs()
    truth = PRIORS.changed({"tp_exposed": 0.75, "stack_efficiency": 0.98})
    found = fit(cases, step_time(cases, truth).step_time_s, np.full(len(cases), 50.0))
    before = np.abs(
        np.log(step_time(cases, PRIORS).step_time_s / step_time(cases, truth).step_time_s)
    )
    assert np.abs(found.log_errors).max() < 0.2 * before.max()


def test_what_the_runs_cannot_tell_stays_at_its_prior() -> None:
    cases = dense_runs()
    truth = PRIORS.changed({"tp_exposed": 0.8})
    found = fit(cases, step_time(cases, truth).step_time_s, np.ones(len(cases)))
    for name in ("host_expert", "grouped_utilisation", "bubble", "cp_imbalance"):
        assert found.constants.log_values[name] == pytest.approx(PRIORS.log_values[name], abs=1e-9)
        assert found.posterior_sd[name] == pytest.approx(prior_of(name)[1], rel=1e-6)


def test_fit_is_deterministic() -> None:
    cases = dense_runs()
    measured = step_time(cases, PRIORS).step_time_s * 1.1
    first, second = (fit(cases, measured, np.ones(len(cases))) for _ in range(2))
    assert first.constants.log_values == second.constants.log_values


def test_an_outlier_does_not_move_the_others() -> None:
    cases = dense_runs()
    measured = step_time(cases, PRIORS).step_time_s.copy()
    measured[0] *= 5.0
    found = fit(cases, measured, np.ones(len(cases)))
    assert np.abs(found.log_errors[1:]).max() < 0.05


def test_a_sweep_does_not_outvote_single_runs() -> None:
    weights = row_weights(["sweep"] * 100 + ["single"])
    assert weights[:100].sum() == pytest.approx(10.0)
    assert weights[100] == 1.0


def test_every_constant_has_a_prior_with_source() -> None:
    for name in (*BELIEFS, *KNOWN_FACTORS):
        prior, sd, _, source = prior_of(name)
        assert prior > 0
        assert sd > 0
        assert source.startswith(("assumed", "measured", "vendor"))


def test_a_file_does_not_tell_the_rounding_of_a_machine() -> None:
    elsewhere = PRIORS.changed({"bubble": 1 + 1e-12, "nic_latency": 1 - 1e-12})
    written = PRIORS.as_file({"bubble": 0.1}, "test", "0")
    assert elsewhere.as_file({"bubble": 0.1 + 1e-13}, "test", "0") == written


def test_constants_survive_their_file() -> None:
    file = PRIORS.as_file({"bubble": 0.1}, "test", "0")
    again = TimeConstants.of_file(ConstantFile.model_validate_json(file.model_dump_json()))
    assert again.log_values == pytest.approx(PRIORS.log_values)


def test_constants_of_another_release_are_refused() -> None:
    unknown = Constant(value=1.0, kind="assumed", source="test")
    with pytest.raises(InputError, match="warp_drive"):
        TimeConstants.of_file(ConstantFile(constants={"warp_drive/fast": unknown}))
