"""A node whose truth is known is found again, and a perfect node changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search.profile_plan import Node, profile_plan
from specs import catalog
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.profile_rows import Profile, ProfileRow
from specs.stack import Stack
from specs.workload import Workload
from surrogate.cases import Cases
from surrogate.learned import Learned
from surrogate.profile_calibration import KNOWLEDGE_SD, calibrate, profiled
from surrogate.profile_predictions import NodePhysics, observations, predicted_s
from surrogate.step_time import step_time

GPU = catalog.gpu("MI355X")
WORKLOAD = Workload(model=catalog.model("mixtral-8x22b"), seq_len=4096, global_batch_size=256)
TABLE = ConfigTable.from_configs(
    [TrainingConfig(tp=2, pp=4, ep=8, etp=1, mbs=mbs, sequence_parallel=True) for mbs in (1, 2)]
)
CASES = Cases.of_study(
    TABLE, WORKLOAD, Cluster(name="c", gpu=GPU, num_nodes=8, gpus_per_node=8), Stack()
)
LEARNED = Learned.nothing()
PLAN = profile_plan(TABLE, CASES, WORKLOAD, GPU, LEARNED.constants, Node(8))


def _measured(factors: dict[str, float], noise: float = 0.0, seed: int = 0) -> Profile:
    """What a node would measure whose constants differ by these factors."""
    physics = NodePhysics.of(GPU, CASES, LEARNED.constants)
    random = np.random.default_rng(seed)
    rows = []
    for item in PLAN:
        what = observations(item, has_backward=False)
        if not what:
            continue
        forward = predicted_s(item, what[0], physics, factors)
        forward *= float(np.exp(noise * random.standard_normal()))
        rows.append(ProfileRow(item, forward, None, 0.01, 3, 15, None, None))
    return Profile(tuple(rows))


def test_perfect_node_changes_nothing():
    found = calibrate(_measured({}), GPU, CASES, LEARNED)
    assert all(factor == pytest.approx(1, abs=1e-6) for factor in found.factors.values())
    before, after = (
        step_time(CASES, learned.constants).step_time_s
        for learned in (LEARNED, profiled(LEARNED, found))
    )
    assert after == pytest.approx(before)


@settings(max_examples=15, deadline=None)
@given(
    gemm=st.floats(0.75, 1.1),
    grouped=st.floats(0.6, 1.2),
    memory=st.floats(0.85, 1.1),
    seed=st.integers(0, 1000),
)
def test_true_factors_are_found(gemm, grouped, memory, seed):
    truth = {
        "gemm_utilisation": gemm,
        "grouped_utilisation": grouped,
        "memory_utilisation": memory,
    }
    found = calibrate(_measured(truth, noise=0.02, seed=seed), GPU, CASES, LEARNED)
    # The prior draws by the share of the variance that the data leave open.
    assert np.log(found.factors["gemm_utilisation"]) == pytest.approx(np.log(gemm), abs=0.09)
    assert np.log(found.factors["memory_utilisation"]) == pytest.approx(np.log(memory), abs=0.09)
    assert found.error(after=True) <= found.error(after=False) + 0.02
    for name, sd in found.posterior_sd.items():
        assert sd <= found.prior_sd[name] <= max(KNOWLEDGE_SD[name])


def test_slower_node_projects_slower():
    found = calibrate(_measured({"gemm_utilisation": 0.8}), GPU, CASES, LEARNED)
    before = step_time(CASES, LEARNED.constants).step_time_s
    after = step_time(CASES, profiled(LEARNED, found).constants).step_time_s
    assert np.all(after > before)
    sd = profiled(LEARNED, found).posterior_sd
    assert sd["gemm_utilisation"] == found.posterior_sd["gemm_utilisation"]


def test_one_absurd_item_does_not_drag_the_others():
    profile = _measured({})
    place = next(i for i, row in enumerate(profile.rows) if row.item.kind == "gemm")
    rows = list(profile.rows)
    odd = rows[place]
    rows[place] = ProfileRow(odd.item, odd.forward_s * 50, None, 0.01, 3, 15, None, None)
    found = calibrate(Profile(tuple(rows)), GPU, CASES, LEARNED)
    assert 0.85 < found.factors["gemm_utilisation"] < 1.05
    assert any("another kernel may have run" in note for note in found.notes)
