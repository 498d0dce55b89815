"""The keep rule on recorded and on drawn noise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specs.errors import InputError
from studies.toolbox.boundaries import look_levels
from studies.toolbox.decision import (
    CANDIDATE_SHARE,
    Rule,
    centre,
    contrasts,
    estimate,
    judge,
    log_ratios,
)
from studies.toolbox.factorial import read_table, shipped_table
from studies.toolbox.noise import (
    keep_rates,
    null_knob,
    paired_keep_rates,
    read_null_knob,
    rocket_keep_rate,
)
from studies.toolbox.replay import control_ratios
from studies.toolbox.rocket import judge_trace, published_trace
from studies.toolbox.verdicts import Verdict

SERIES = 400


def test_a_copy_is_not_kept_and_a_true_gain_is_on_a_null_knob() -> None:
    noise = null_knob()
    copies = keep_rates(noise, 0.0, Rule(), SERIES, seed=1)
    gains = keep_rates(noise, 0.05, Rule(), SERIES, seed=2)
    assert copies.keep <= 0.05
    assert gains.keep >= 0.80
    assert gains.drop <= 0.02


def test_the_shipped_noise_is_that_of_its_source(shared: Path) -> None:
    table = shared / "measured/inference/cmontemuino_mi300x_llama8b_latency.csv"
    shipped, source = null_knob(), read_null_knob(table)
    assert shipped.keys() == source.keys()
    for point, processes in shipped.items():
        for ours, theirs in zip(processes, source[point], strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("sd", [0.01, 0.03])
def test_a_copy_is_not_kept_under_normal_noise_between_and_within_processes(sd: float) -> None:
    generator = np.random.default_rng(3)
    processes = [
        np.exp(generator.normal(0, 0.007) + generator.normal(0, sd, 40)) for _ in range(30)
    ]
    rates = keep_rates({"all": processes}, 0.0, Rule(), SERIES, seed=4)
    assert rates.keep <= 0.05


def test_a_copy_is_not_kept_and_a_true_gain_is_on_the_noise_of_a_busy_cpu() -> None:
    pairs = control_ratios(read_table(shipped_table(), "cpu_s"))
    assert paired_keep_rates(pairs, 0.0, Rule(), SERIES, seed=11).keep <= 0.05
    assert paired_keep_rates(pairs, 0.05, Rule(), SERIES, seed=12).keep >= 0.75


def test_looks_together_cross_their_bounds_as_often_as_promised() -> None:
    first, last, alpha = 2, 16, 0.05
    sums = np.random.default_rng(13).normal(size=(100_000, last)).cumsum(1)
    scores = sums[:, first - 1 :] / np.sqrt(np.arange(first, last + 1))
    levels = look_levels(first, last, alpha)
    crossed = (scores > stats.norm.isf(levels)).any(1).mean()
    assert crossed == pytest.approx(alpha, abs=0.003)
    assert list(levels) == sorted(levels)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12))
def test_the_centre_of_a_block_lies_within_it_and_moves_with_it(values: list[float]) -> None:
    block = np.asarray(values)
    assert block.min() - 1e-12 <= centre(block) <= block.max() + 1e-12
    assert centre(block + 3) == pytest.approx(centre(block) + 3)
    assert centre(-block) == pytest.approx(-centre(block))


def test_both_copies_are_the_baseline_and_the_control_tells_nothing_of_the_candidate() -> None:
    times = np.exp(np.random.default_rng(14).normal(0, 0.02, (3, 20_000)))
    ratios, control = contrasts(*times)
    assert np.corrcoef(ratios, control)[0, 1] == pytest.approx(0, abs=0.03)
    assert ratios.var() / control.var() == pytest.approx(CANDIDATE_SHARE, rel=0.05)


def test_a_gain_at_the_threshold_is_kept_no_more_often_than_promised() -> None:
    generator = np.random.default_rng(5)
    processes = [np.exp(generator.normal(0, 0.005, 40)) for _ in range(30)]
    rates = keep_rates({"all": processes}, 0.02, Rule(), SERIES, seed=6)
    assert rates.keep <= 0.05


def test_the_mean_of_three_runs_keeps_copies_that_our_rule_does_not() -> None:
    generator = np.random.default_rng(7)
    processes = [np.exp(generator.normal(0, 0.05, 40)) for _ in range(30)]
    noise = {"busy": processes}
    assert rocket_keep_rate(noise, 0.0, SERIES, seed=8) > 0.25
    assert keep_rates(noise, 0.0, Rule(), SERIES, seed=8).keep <= 0.05


def test_a_noisy_control_forbids_a_claim() -> None:
    generator = np.random.default_rng(9)
    blocks = [generator.normal(0.30, 0.002, 8) for _ in range(4)]
    control = [generator.normal(shift, 0.002, 8) for shift in (-0.05, 0.05, -0.06, 0.04)]
    judgement = judge(blocks, control, Rule(max_blocks=4))
    assert judgement.verdict is Verdict.NOISY
    assert judgement.control_half_width > 0.02
    assert judge(blocks, control, Rule()).verdict is None, "more restarts may still settle it"


def test_noise_that_no_restarts_will_settle_ends_a_comparison_early() -> None:
    blocks = [np.full(8, 0.3)] * 3
    control = [np.full(8, shift) for shift in (-0.5, 0.5, -0.6)]
    assert judge(blocks[:2], control[:2], Rule()).verdict is None
    assert judge(blocks, control, Rule()).verdict is Verdict.NOISY


def test_copies_that_differ_steadily_forbid_a_claim() -> None:
    blocks = [np.full(8, 0.3)] * 16
    control = [np.full(8, 0.08)] * 16
    assert judge(blocks, control, Rule()).verdict is Verdict.NOISY


def test_one_process_is_never_enough_to_keep() -> None:
    blocks, control = [np.full(8, 0.5)], [np.zeros(8)]
    assert judge(blocks, control, Rule()).verdict is None
    assert judge(blocks * 2, control * 2, Rule()).verdict is Verdict.KEEP


@given(
    st.floats(-0.4, 0.4),
    st.lists(st.floats(-0.02, 0.02), min_size=3, max_size=12),
    st.integers(1, 4),
)
def test_intervals_hold_their_estimate_and_shift_with_it(
    shift: float, residuals: list[float], blocks: int
) -> None:
    control = [np.asarray(residuals)] * blocks
    plain = judge(control, control, Rule())
    moved = judge([block + shift for block in control], control, Rule())
    assert plain.lower <= plain.ratio <= plain.upper
    assert moved.ratio == pytest.approx(plain.ratio * np.exp(shift))
    assert moved.upper / moved.lower == pytest.approx(plain.upper / plain.lower, rel=1e-6)


def test_an_outlier_moves_the_estimate_by_less_than_the_threshold() -> None:
    generator = np.random.default_rng(10)
    quiet = [generator.normal(0, 0.004, 8) for _ in range(3)]
    hit = [block.copy() for block in quiet]
    hit[0][0] += np.log(1.115 / 0.898)  # first run of a recorded process against its others
    assert abs(estimate(hit).log_ratio - estimate(quiet).log_ratio) < 0.005


@pytest.mark.parametrize(
    ("base", "other"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 0.0], [1.0, 1.0]), ([np.nan], [1.0])]
)
def test_times_that_are_none_are_refused(base: list[float], other: list[float]) -> None:
    with pytest.raises(ValueError, match=r"time"):
        log_ratios(base, other)


@pytest.mark.parametrize(
    "fields", [{"threshold": -0.1}, {"confidence": 0.4}, {"pairs": 2}, {"min_blocks": 1}]
)
def test_rules_that_cannot_work_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Rule(**fields)  # type: ignore[arg-type]


def test_which_verdicts_of_the_published_trace_stand(shared: Path) -> None:
    ours = judge_trace(published_trace(), Rule())
    source = judge_trace(shared / "measured/inference/rocket_published_trace.csv", Rule())
    assert ours == source
    verdicts = {step.tool: step.verdict for step in ours}
    assert verdicts == {
        "kv_cache_config": Verdict.NO_EFFECT,
        "dtype_cast": Verdict.KEEP,
        "sdpa_attention": Verdict.NO_EFFECT,
        "input_padding": Verdict.NO_EFFECT,
        "torch_compile": Verdict.NO_EFFECT,
    }
    cast = next(step for step in ours if step.tool == "dtype_cast")
    assert cast.lower is not None
    assert 2.3 < cast.lower < cast.ratio
