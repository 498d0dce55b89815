"""Learning from another study: what carries over, what is dropped, what is nearest."""

from __future__ import annotations

import numpy as np
from optuna.distributions import CategoricalDistribution, IntDistribution

from search.acquisition import PROJECTED_PRIOR
from search.gaussian_process import GaussianProcess, Points
from search.pool import Belief, Pool, pool_of
from search.transfer import (
    MOST_POINTS,
    Source,
    is_worth,
    nearest_legal,
    source_points,
    with_sources,
)

SPACE = {
    "x": IntDistribution(1, 8, log=True),
    "y": IntDistribution(0, 3),
    "kind": CategoricalDistribution(("a", "b")),
}
LISTED = [
    {"x": x, "y": y, "kind": kind} for x in (1, 2, 4, 8) for y in range(4) for kind in ("a", "b")
]
EFFECT = {"a": 0.2, "b": -0.2}


def the_pool() -> Pool:
    return pool_of(SPACE, LISTED, lambda listed: Belief(np.ones((len(listed), 1))))


def source(sign: float, parameters: list[dict] | None = None) -> Source:
    used = parameters or LISTED
    measured = np.array([sign * EFFECT[p["kind"]] + 0.1 * sign * p["y"] for p in used])
    return Source("other", tuple(used), np.zeros(len(used)), measured)


def own(pool: Pool, rows: list[int]) -> tuple[Points, np.ndarray]:
    points = Points(pool.located(pool.codes[rows]), np.zeros((len(rows), 1)))
    listed = [pool.parameters(row) for row in rows]
    return points, np.array([EFFECT[p["kind"]] + 0.1 * p["y"] for p in listed])


def test_a_source_that_agrees_helps_and_one_that_contradicts_does_no_harm() -> None:
    pool = the_pool()
    known = [0, 5, 9, 14, 18, 23, 27, 30]
    points, value = own(pool, known)
    everything, truth = own(pool, list(range(len(pool))))
    unseen = np.setdiff1d(np.arange(len(pool)), known)

    def error(sources: list[Source]) -> float:
        joined, values = with_sources(pool, points, value, sources)
        mean, _ = GaussianProcess.fit(joined, values, PROJECTED_PRIOR).predict(everything)
        return float(np.abs(mean - truth)[unseen].mean())

    alone = error([])
    assert error([source(1.0)]) < 0.7 * alone
    assert error([source(-1.0)]) < 1.2 * alone


def test_a_source_without_a_trace_of_this_study_in_it_is_dropped() -> None:
    pool = the_pool()
    points, value = own(pool, [0, 5, 9, 14, 18, 23, 27, 30])
    noise = np.random.default_rng(1).normal(size=len(LISTED)) * 2.0
    placed = source_points(pool, Source("noise", tuple(LISTED), np.zeros(len(LISTED)), noise), 1)
    assert placed is not None
    assert not is_worth(points, value, *placed)
    agreeing = source_points(pool, source(1.0), 1)
    assert agreeing is not None
    assert is_worth(points, value, *agreeing)


def test_with_few_own_points_a_source_is_taken_on_trust() -> None:
    pool = the_pool()
    points, value = own(pool, [0, 5])
    assert len(with_sources(pool, points, value, [source(-1.0)])[0]) > 2


def test_a_long_source_is_cut_to_its_best_half_and_a_spread() -> None:
    used = [dict(LISTED[k % len(LISTED)]) for k in range(300)]
    measured = np.linspace(0, 1, 300)
    chosen = Source("long", tuple(used), np.zeros(300), measured).chosen()
    assert len(chosen) == MOST_POINTS
    assert set(measured[-MOST_POINTS // 2 :]) <= set(chosen.log_measured)
    assert chosen.log_measured.min() == 0.0


def test_the_nearest_candidate_and_values_that_are_not_listed() -> None:
    pool = the_pool()
    exact = nearest_legal(pool, {"x": 4, "y": 2, "kind": "b"})
    assert exact is not None
    assert pool.parameters(exact) == {"x": 4, "y": 2, "kind": "b"}
    near = nearest_legal(pool, {"x": 7, "y": 9, "kind": "a"})
    assert near is not None
    assert pool.parameters(near) == {"x": 8, "y": 3, "kind": "a"}
    assert nearest_legal(pool, {"kind": "c"}) is None
    assert source_points(pool, Source("s", ({"kind": "c"},), np.zeros(1), np.zeros(1)), 1) is None
