"""The process: gradient, interpolation, the physics without data, agreement between studies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from search.encoding import AxisValues, Coordinates, coordinates
from search.gaussian_process import GaussianProcess, Points, Prior, _Likelihood
from search.memory_residual import MEMORY_PRIOR, MemoryResidual
from surrogate.memory_calibration import FARTHEST, beyond

AXES = (
    AxisValues("size", 4, np.arange(4.0)),
    AxisValues("choice", 3, None),
    AxisValues("flag", 2, None),
)


def points(seed: int, count: int, tasks: int = 1) -> Points:
    generator = np.random.default_rng(seed)
    codes = np.stack([generator.integers(0, axis.size, count) for axis in AXES], axis=1)
    task = generator.integers(0, tasks, count) if tasks > 1 else None
    return Points(coordinates(AXES, codes), generator.normal(size=(count, 1)), task)


def grid() -> Coordinates:
    codes = np.stack(np.meshgrid(*(np.arange(a.size) for a in AXES), indexing="ij"), -1)
    return coordinates(AXES, codes.reshape(-1, len(AXES)))


@given(st.integers(0, 10_000), st.sampled_from([1, 2]))
@settings(max_examples=15, deadline=None)
def test_gradient_is_that_of_the_likelihood(seed: int, tasks: int) -> None:
    generator = np.random.default_rng(seed)
    given_points = points(seed, 12, tasks)
    problem = _Likelihood(given_points, generator.normal(size=12) * 0.2, np.zeros(12), Prior())
    theta = problem.centre + 0.3 * generator.normal(size=len(problem.centre))
    slope = approx_fprime(theta, lambda t: problem.loss(t)[0], 1e-6)
    assert problem.loss(theta)[1] == pytest.approx(slope, rel=1e-3, abs=5e-3)


def test_likeness_is_one_for_the_same_value_and_falls_with_distance() -> None:
    alike = AXES[0].vectors() @ AXES[0].vectors().T
    assert np.diag(alike) == pytest.approx(1.0)
    assert (np.diff(alike[0]) < 0).all()
    assert AXES[1].vectors() @ AXES[1].vectors().T == pytest.approx(np.eye(3))


def test_without_data_the_process_is_the_projection() -> None:
    trend = np.linspace(-1, 0, len(grid()))[:, None]
    nothing = Points(grid().take(slice(0, 0)), trend[:0])
    process = GaussianProcess.fit(nothing, np.empty(0), Prior())
    mean, sd = process.predict(Points(grid(), trend))
    assert mean == pytest.approx(trend[:, 0] * Prior().slope[0])
    assert (sd > 0).all()


def test_a_measurement_narrows_itself_most_and_pulls_its_likes() -> None:
    everything = Points(grid(), np.zeros((len(grid()), 1)))
    process = GaussianProcess.fit(everything.take([0]), np.array([0.3]), Prior())
    mean, sd = process.predict(everything)
    assert int(np.argmin(sd)) == 0
    assert int(np.argmax(mean)) == 0
    assert 0 < mean[1] < mean[0]


def test_the_same_data_give_the_same_process() -> None:
    given_points = points(3, 20)
    y = np.random.default_rng(1).normal(size=20) * 0.1
    first = GaussianProcess.fit(given_points, y, Prior())
    again = GaussianProcess.fit(given_points, y, Prior())
    assert (first.theta == again.theta).all()


def test_agreement_falls_where_another_study_contradicts() -> None:
    codes = np.tile(np.stack(np.meshgrid(range(4), range(3), indexing="ij"), -1).reshape(-1, 2), 1)
    codes = np.column_stack([codes, np.zeros(len(codes), dtype=int)])
    effect = np.random.default_rng(0).normal(size=len(codes)) * 0.3
    both = coordinates(AXES, np.concatenate([codes, codes]))
    task = np.repeat([0, 1], len(codes))
    trends = np.zeros((len(task), 1))
    agreeing = GaussianProcess.fit(
        Points(both, trends, task), np.concatenate([effect, effect]), Prior()
    )
    opposed = GaussianProcess.fit(
        Points(both, trends, task), np.concatenate([effect, -effect]), Prior()
    )
    assert agreeing.hyper.agreement > 0.7 > 0.3 > opposed.hyper.agreement


@given(st.floats(-3, 3), st.floats(0.01, 1.0), st.floats(-3, 3))
@settings(deadline=None)
def test_beyond_lies_beyond_and_is_narrower(mean: float, sd: float, bound: float) -> None:
    moved, variance = beyond(np.array([mean]), np.array([sd]), np.array([bound]))
    assert moved[0] >= max(mean, min(bound, mean + FARTHEST * sd)) - 1e-6 * sd - 1e-9
    assert 0 < variance[0] <= sd**2 * (1 + 1e-9)


def test_ooms_and_unread_peaks_move_the_memory_residual() -> None:
    everything = Points(grid(), np.zeros((len(grid()), 0)))
    one = everything.take([0])
    share = np.full(len(everything), np.log(0.95))
    calm = MemoryResidual.fit(
        everything.take([]), np.empty(0), np.empty(0, dtype=np.int64)
    ).fit_probability(everything, share)
    oom = MemoryResidual.fit(one, np.array([-np.log(0.95)]), np.array([1]))
    ran = MemoryResidual.fit(one, np.array([0.0]), np.array([-1]))
    assert oom.fit_probability(everything, share)[0] < 0.5 < calm[0]
    assert (oom.fit_probability(everything, share) < calm).all()
    assert ran.fit_probability(everything, share)[0] > calm[0]


def test_priors_have_a_slope_sd_for_each_slope() -> None:
    for prior in (Prior(), MEMORY_PRIOR, replace(Prior(), slope=(1.0, 0.0), slope_sd=(0.4, 0.2))):
        assert len(prior.slope) == len(prior.slope_sd)
