"""Neighbourhood, families and the worth of measurements."""

from __future__ import annotations

import numpy as np
import pytest

from search.prior import FIRST_AGREEMENT, log_weights, standings, trust
from search.sensitivity import decisive, families, neighbourhood, next_values
from specs.choices import Recompute
from specs.config import ConfigTable, TrainingConfig


class Seen:
    """A projection that loses 10% for each doubling of mbs away from 4 and 1% by tp."""

    def __init__(self, table: ConfigTable) -> None:
        away = np.abs(np.log2(table.mbs / 4))
        self.tokens_per_s_per_gpu = 100 * (1 - 0.1 * away - 0.01 * (table.tp > 1))
        self.device_gib = np.zeros(len(table))
        self.fit_probability = np.where(table.mbs > 4, 0.0, 1.0)


def all_legal(table: ConfigTable) -> np.ndarray:
    return table.pp == 1


def test_every_axis_moves_one_step_both_ways() -> None:
    best = TrainingConfig(mbs=4, tp=2)
    axes = {"mbs": (1, 2, 4, 8, 16), "tp": (1, 2, 4), "pp": (1, 2), "recompute": tuple(Recompute)}
    near = neighbourhood(best, axes, Seen, all_legal)
    moved = {(step.axis, step.after): step for step in near.steps}
    assert set(moved) == {
        *(("mbs", 2), ("mbs", 8), ("tp", 1), ("tp", 4), ("pp", 2)),
        *(("recompute", "selective"), ("recompute", "full")),
    }
    assert moved["mbs", 2].gain == pytest.approx(-10 / 99)
    assert moved["mbs", 8].fits is False
    assert moved["pp", 2].gain is None
    assert moved["tp", 1].gain == pytest.approx(1 / 99)
    assert near.sharpest[0].axis == "mbs"
    assert near.basin_share == pytest.approx(4 / 5)
    assert near.is_broad


def test_the_sharpest_steps_name_each_decision_once() -> None:
    best = TrainingConfig(mbs=4, recompute=Recompute.FULL, recompute_layers=2)
    axes = {"mbs": (1, 2, 4), "tp": (1, 2), "recompute": tuple(Recompute), "recompute_layers": (1,)}
    near = neighbourhood(best, axes, Seen, all_legal)
    moved = [step.axis for step in near.runnable]
    assert {"recompute", "recompute_layers"} <= set(moved)
    sharp = [step.axis for step in near.sharpest]
    assert sharp[:2] == ["mbs", "tp"]
    assert len([axis for axis in sharp if axis.startswith("recompute")]) == 1


def test_next_values_at_the_edge() -> None:
    assert next_values(TrainingConfig(tp=1), "tp", (1, 2, 4)) == [2]
    assert next_values(TrainingConfig(tp=8), "tp", (1, 2, 4)) == [4]


def test_families_are_ordered_by_their_best() -> None:
    configs = [TrainingConfig(tp=tp, mbs=mbs) for tp in (1, 2) for mbs in (1, 2)]
    found = families(ConfigTable.from_configs(configs), np.array([90.0, 95.0, 100.0, 80.0]))
    assert [family.mesh["tp"] for family in found] == [2, 1]
    assert [family.best for family in found] == [2, 1]
    assert found[1].gap == pytest.approx(0.05)
    assert [family.members for family in found] == [2, 2]


def test_the_uncertain_rival_is_worth_measuring_and_the_certain_loser_is_not() -> None:
    generator = np.random.default_rng(0)
    log_speed = np.array([0.0, -0.01, -0.5]) + generator.normal(size=(20_000, 3)) * [
        0.001,
        0.1,
        0.1,
    ]
    decision = decisive(log_speed, np.ones_like(log_speed, dtype=bool))
    assert decision.choice == 0
    assert decision.most_decisive == 1
    assert decision.gain[1] == pytest.approx(0.1 * 0.351, rel=0.1)  # sd times the unit loss at 0.1
    assert decision.gain[2] < 1e-3
    assert 0.3 < decision.change[1] < 0.6


def test_what_all_candidates_share_is_not_worth_measuring() -> None:
    shared = np.random.default_rng(0).normal(size=(5000, 1)) * 0.3
    log_speed = shared + np.array([0.0, -0.02, -0.05])
    assert decisive(log_speed, np.ones_like(log_speed, dtype=bool)).gain.max() < 1e-3


def test_a_config_that_may_not_fit_is_worth_measuring() -> None:
    log_speed = np.tile([0.05, 0.0], (1000, 1))
    fits = np.ones((1000, 2), dtype=bool)
    fits[:500, 0] = False
    decision = decisive(log_speed, fits)
    assert decision.choice == 1
    assert decision.most_decisive == 0
    assert decision.gain[0] == pytest.approx(0.025, abs=0.002)


def test_trust_begins_small_grows_with_agreement_and_is_lost() -> None:
    value = np.linspace(0, 1, 12)
    assert trust(value[:2], value[:2]) == FIRST_AGREEMENT
    assert trust(value, value) > trust(value[:4], value[:4]) > FIRST_AGREEMENT
    assert trust(-value, value) == 0.0
    assert trust(np.zeros(12), value) < FIRST_AGREEMENT
    assert log_weights(-value, np.arange(12), value, 12) is None


def test_an_opinion_fades_and_gaps_in_it_are_neutral() -> None:
    opinion = np.array([1.0, 2.0, np.nan, 3.0])
    assert standings(opinion)[2] == 0.0
    none = np.empty(0, dtype=np.int64)
    early, late = (log_weights(opinion, none, np.empty(0), n) for n in (0, 30))
    assert early is not None
    assert late is not None
    assert abs(late[3]) < abs(early[3])
