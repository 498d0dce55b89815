"""The seed sweep starts at the baseline, changes one axis at a time and repeats nothing."""

from __future__ import annotations

from search.companions import with_companions
from search.seed_sweep import seed_sweep
from specs.choices import MoeDispatcher, Precision, Recompute, RecomputeMethod, Schedule
from specs.config import TrainingConfig

BASELINE = TrainingConfig(pp=4, ep=8, mbs=2)
AXES = {
    "tp": [1, 2, 4],
    "pp": [1, 2, 4, 8],
    "vpp": [1, 2, 7],
    "mbs": [1, 4],
    "schedule": list(Schedule),
    "recompute": list(Recompute),
    "precision": [Precision.BF16, Precision.FP8_CS],
}


def test_baseline_comes_first_even_where_the_axes_leave_its_value_out() -> None:
    proposals = seed_sweep(BASELINE, AXES)
    assert proposals[0].config == BASELINE
    assert seed_sweep(BASELINE, {"mbs": [8]})[0].config == BASELINE


def test_every_value_of_every_axis_is_tried_once() -> None:
    configs = [proposal.config for proposal in seed_sweep(BASELINE, AXES)]
    assert len(configs) == len(set(configs))
    for name, values in AXES.items():
        assert set(values) <= {getattr(config, name) for config in configs}


def test_a_short_budget_still_touches_every_axis() -> None:
    reasons = [proposal.reason for proposal in seed_sweep(BASELINE, AXES)[1 : 2 * len(AXES)]]
    assert {reason.split()[0] for reason in reasons} == set(AXES)


def test_companions_follow_the_axis_that_is_changed() -> None:
    def changed(**axes: object) -> TrainingConfig:
        return with_companions(BASELINE, axes)

    assert changed(vpp=2).schedule is Schedule.INTERLEAVED
    assert changed(schedule=Schedule.ZBV).vpp == 2
    assert changed(schedule=Schedule.INTERLEAVED).vpp == 2
    assert changed(tp=2).sequence_parallel
    assert changed(pp=1, vpp=1).schedule is Schedule.ONE_F_ONE_B
    assert changed(sync_free_stage=2).moe_dispatcher is MoeDispatcher.DEEPEP
    assert changed(recompute=Recompute.FULL).recompute_method is RecomputeMethod.UNIFORM
    block = changed(recompute_layers=3)
    assert (block.recompute, block.recompute_method) == (Recompute.FULL, RecomputeMethod.BLOCK)
    assert changed(layout="Et*14|t*14|t*14|t*14|t*0|t*0|t*0|L").vpp == 2


def test_an_axis_that_is_set_explicitly_is_never_overruled() -> None:
    config = with_companions(BASELINE, {"vpp": 2, "schedule": Schedule.ONE_F_ONE_B})
    assert config.schedule is Schedule.ONE_F_ONE_B
    assert config.vpp == 2
