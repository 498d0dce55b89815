"""Planners, the search loop, the final pass and replays, on an invented machine without noise."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specs.errors import InputError
from studies.toolbox.bundle import BASELINE, OFF, Bundle
from studies.toolbox.decision import Rule
from studies.toolbox.factorial import read_table, shipped_table
from studies.toolbox.noise import null_knob
from studies.toolbox.planners import PLANNERS, make_planner
from studies.toolbox.planners.acquisition import expected_cost, kernel, posterior
from studies.toolbox.replay import ROCKET, replay, score, truth
from studies.toolbox.runtime import Host
from studies.toolbox.search import Progress, Suggestion, finish, spend
from studies.toolbox.space import ToolSpace, checked_axes
from studies.toolbox.verdicts import Outcome, Verdict
from studies.toolbox.workload import Generation

AXES = {
    "dtype_cast": ("bfloat16",),
    "kv_cache_config": ("static",),
    "sdpa_attention": ("eager", "math"),
    "torch_compile": ("default",),
}
THRESHOLD = 0.02


def gain(bundle: Bundle) -> float:
    """Log gain with the two traps: a pair that only works together, and one that hurts."""
    total = 0.5 * ("dtype_cast" in bundle) + 0.06 * (bundle.get("sdpa_attention") == "math")
    if "torch_compile" in bundle:
        total += 0.3 if "kv_cache_config" in bundle else -0.02
    if {"dtype_cast", "sdpa_attention"} <= {tool for tool, _ in bundle}:
        total -= 0.16
    return total


def bundles() -> list[Bundle]:
    choices = [[(tool, s) for s in (OFF, *settings_)] for tool, settings_ in AXES.items()]
    found = [Bundle.of(dict(pairs)) for pairs in product(*choices)]
    return sorted((b for b in found if len(b)), key=lambda b: (len(b), b.pairs))


BEST = max(bundles(), key=gain)


def outcome(bundle: Bundle, base: Bundle = BASELINE, **fields: Any) -> Outcome:
    log_ratio = gain(bundle) - gain(base)
    verdict = Verdict.KEEP if log_ratio > math.log1p(THRESHOLD) else Verdict.DROP
    known = {"verdict": verdict, "log_ratio": log_ratio, "standard_error": 0.002, "sentence": "."}
    return Outcome(bundle=bundle, base=base, **known | fields)  # type: ignore[arg-type]


def searched(
    planner: str, trials: int, evaluate: Callable[[Bundle], Outcome] = outcome, seed: int = 0
) -> Progress:
    progress = Progress(bundles())
    spend(make_planner(planner, seed, THRESHOLD), progress, lambda s: evaluate(s.bundle), trials)
    return progress


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_planner_proposes_open_bundles_only_and_stops(planner: str, seed: int) -> None:
    progress = searched(planner, 100, seed=seed)
    assert set(progress.outcomes) <= set(bundles())
    assert len(progress.outcomes) <= len(bundles())
    if planner != "greedy":
        assert len(progress.outcomes) == len(bundles())


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_budget_is_kept(planner: str) -> None:
    assert len(searched(planner, 3).outcomes) <= 3


def test_greedy_misses_the_pair_that_only_works_together_and_keeps_what_hurts_later() -> None:
    greedy = searched("greedy", 100).best
    acquisition = searched("acquisition", 10).best
    assert greedy is not None
    assert acquisition is not None
    assert acquisition.bundle == BEST
    assert gain(greedy.bundle) < gain(BEST)


def test_the_final_pass_removes_what_does_not_earn_its_place() -> None:
    overloaded = BEST.with_("sdpa_attention", "math")
    final = finish(overloaded, outcome, lambda _bundle: True, THRESHOLD)
    assert final.stack == BEST
    assert final.removed == ("sdpa_attention",)
    assert final.proven is not None
    assert final.proven.bundle == BEST
    assert {o.base for o in final.leave_one_out} >= {overloaded.without("sdpa_attention")}


def test_a_tool_that_another_needs_is_not_left_out() -> None:
    def legal(bundle: Bundle) -> bool:
        return "torch_compile" not in bundle or "kv_cache_config" in bundle

    final = finish(BEST, outcome, legal, THRESHOLD)
    assert final.stack == BEST
    assert all(legal(o.base) for o in final.leave_one_out)


def test_a_stack_that_fails_when_measured_again_is_not_proven() -> None:
    def unlucky(bundle: Bundle, base: Bundle) -> Outcome:
        return outcome(bundle, base, verdict=Verdict.NOISY)

    assert finish(BEST, unlucky, lambda _bundle: True, THRESHOLD).proven is None


def test_what_changed_nothing_or_is_wrong_is_not_tried_in_larger_bundles() -> None:
    def evaluate(bundle: Bundle) -> Outcome:
        if bundle.get("sdpa_attention") == "eager":
            idle = {"idle": ["sdpa_attention"]}
            return outcome(bundle, verdict=Verdict.NO_EFFECT, log_ratio=None, details=idle)
        if "dtype_cast" in bundle:
            return outcome(bundle, verdict=Verdict.WRONG, log_ratio=None)
        return outcome(bundle)

    progress = searched("exhaustive", 100, evaluate)
    assert sum("dtype_cast" in bundle for bundle in progress.outcomes) == 1
    assert sum(b.get("sdpa_attention") == "eager" for b in progress.outcomes) == 1


def test_where_noise_left_all_open_the_most_promising_is_confirmed() -> None:
    progress = Progress(bundles(), {b: outcome(b, verdict=Verdict.NOISY) for b in bundles()})
    assert progress.best is None
    assert progress.contender is not None
    assert progress.contender.bundle == BEST


def test_compiling_that_fails_alone_is_tried_in_company() -> None:
    def evaluate(bundle: Bundle) -> Outcome:
        if "torch_compile" in bundle and "kv_cache_config" not in bundle:
            return outcome(bundle, verdict=Verdict.FAILED, log_ratio=None)
        return outcome(bundle)

    best = searched("exhaustive", 100, evaluate).best
    assert best is not None
    assert best.bundle == BEST


def test_the_posterior_learns_an_interaction() -> None:
    cast, math_ = Bundle.of({"dtype_cast": "bfloat16"}), Bundle.of({"sdpa_attention": "math"})
    both = cast.with_("sdpa_attention", "math")
    known = Progress(bundles(), {b: outcome(b) for b in (cast, math_)})
    before = posterior(known, [both])
    known.outcomes[both] = outcome(both)
    after = posterior(known, [both])
    assert before[0][0] > after[0][0] == pytest.approx(gain(both), abs=0.02)
    assert after[1][0] < before[1][0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(bundles()), min_size=1, max_size=8, unique=True))
def test_the_prior_covariance_is_one(chosen: list[Bundle]) -> None:
    matrix = kernel(chosen, chosen)
    np.testing.assert_allclose(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9


# ------------------------------------------------------------------------------------- space


HOST = Host(
    device="cpu", gpu="", rocm=False, dtype="float32", attention="sdpa", compiler=True,
    vocab_size=512,
)  # fmt: skip


def space(**fields: Any) -> ToolSpace:
    known = {"axes": checked_axes(None), "host": HOST, "work": Generation(2, 16, 8)}
    return ToolSpace(**known | fields)  # type: ignore[arg-type]


def test_lossy_tools_need_a_budget() -> None:
    without = space()
    assert "--lossy-budget" in without.refused["int8_quantisation=dynamic"]
    assert not any("int8_quantisation" in bundle for bundle in without.bundles)
    assert any("int8_quantisation" in bundle for bundle in space(lossy_budget=100.0).bundles)


def test_what_this_machine_cannot_do_is_said() -> None:
    refused = space().refused
    assert "GPU" in refused["torch_compile=reduce-overhead"]
    assert "ROCm" in refused["tunable_op=tune"]
    assert "already" in refused["dtype_cast=float32"]


def test_conflicts_keep_bundles_apart() -> None:
    known = space(lossy_budget=100.0)
    apart = [
        {"torch_compile": "fixed-shapes"},
        {"torch_compile": "default", "int8_quantisation": "dynamic"},
        {"dtype_cast": "bfloat16", "int8_quantisation": "dynamic"},
        {"dtype_cast": "bfloat16", "matmul_precision": "medium"},
    ]
    for pairs in apart:
        assert known.why_illegal(Bundle.of(pairs))
        assert Bundle.of(pairs) not in known.bundles


@pytest.mark.parametrize("axes", [{"nothing": ["a"]}, {"dtype_cast": ["int3"]}])
def test_tools_and_settings_that_do_not_exist_are_refused(axes: dict[str, Iterable[str]]) -> None:
    with pytest.raises(InputError, match=r"there is no tool|has no setting"):
        checked_axes(axes)


# ------------------------------------------------------------------------------------ replay


@pytest.fixture
def table(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    path = tmp_path / "factorial.jsonl"
    with path.open("w") as file:
        for bundle in bundles():
            for block in range(3):
                seconds = {
                    arm: list(np.exp(generator.normal(0, 0.01, 6)) / math.exp(shift))
                    for arm, shift in (("base", 0), ("control", 0), ("candidate", gain(bundle)))
                }
                row = {"bundle": bundle.as_json(), "block": block, "preparing_s": 5.0}
                file.write(json.dumps(row | {"cpu_s": seconds, "wall_s": seconds}) + "\n")
    return path


def test_replays_know_the_truth_and_find_it(table: Path) -> None:
    measured = read_table(table, "cpu_s")
    known = truth(measured)
    assert max(known, key=lambda bundle: known[bundle]) == BEST
    found = score(measured, "acquisition", Rule(), 12, 10, lambda _steps: None)
    assert found.found >= 0.9
    assert found.regret < 0.05
    assert found.false_keep_rate <= 0.05


def test_keeping_for_ever_regrets(table: Path) -> None:
    measured = read_table(table, "cpu_s")
    rocket = score(measured, ROCKET, Rule(), 12, 10, lambda _steps: None)
    acquisition = score(measured, "acquisition", Rule(), 12, 10, lambda _steps: None)
    assert rocket.regret > acquisition.regret


def test_a_replay_repeats_with_its_seed(table: Path) -> None:
    measured = read_table(table, "cpu_s")
    assert replay(measured, "tpe", Rule(), 6, 3) == replay(measured, "tpe", Rule(), 6, 3)


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    for text in ("", "{}", "no json"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"factorial|no measured"):
            read_table(path, "cpu_s")


def test_suggestions_say_why() -> None:
    for planner in PLANNERS:
        made = make_planner(planner, 0, THRESHOLD).suggest(Progress(bundles()))
        assert isinstance(made, Suggestion)
        assert made.reason


def test_the_shipped_factorial_has_interactions_that_greedy_misses() -> None:
    measured = read_table(shipped_table(), "cpu_s")
    known = truth(measured)
    best = max(known, key=lambda bundle: known[bundle])
    pair = Bundle.of({"dtype_cast": "bfloat16", "torch_compile": "default"})
    alone = sum(known[Bundle((part,))] for part in pair)
    assert abs(known[pair] - alone) > math.log(1.1)
    quiet = null_knob()
    acquisition = score(measured, "acquisition", Rule(), 12, 5, lambda _steps: None, quiet)
    greedy = score(measured, "greedy", Rule(), 12, 5, lambda _steps: None, quiet)
    assert acquisition.regret < 0.05 < greedy.regret
    assert best in measured


def test_costly_bundles_wait() -> None:
    cheap, costly = Bundle.of({"dtype_cast": "bfloat16"}), Bundle.of({"torch_compile": "default"})
    unknown = expected_cost(Progress(bundles()), [cheap, costly])
    assert unknown[1] > unknown[0] == 1
    known = Progress(
        bundles(), {cheap: outcome(cheap, cost_s=1), costly: outcome(costly, cost_s=9)}
    )
    assert expected_cost(known, [cheap, costly])[1] == pytest.approx(9)
