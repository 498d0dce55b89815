"""A calibration shrinks, says what it does not know, and does not depend on how runs are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specs.errors import InputError
from specs.runs import RunTable
from surrogate.calibration import Calibration
from surrogate.calibration_file import calibration_of, read_calibration, write_calibration
from surrogate.cases import Cases
from surrogate.learned import Learned, shipped
from surrogate.memory_calibration import MemoryFacts
from surrogate.projection import Projections, project
from surrogate.run_cases import cases_of
from surrogate.uncertainty import TRUST
from tests.surrogate.learned_cases import runs, study

FOUR = ({}, {"tp": "4"}, {"mbs": "2"}, {"tp": "2", "pp": "2"})


def measured(table: RunTable, *factors: float) -> RunTable:
    """The runs, each this many times as fast."""
    return replace(table, tokens_per_s_per_gpu=table.tokens_per_s_per_gpu * np.array(factors))


def named(table: RunTable, *run_ids: str) -> RunTable:
    """The runs under other names."""
    return replace(table, run_id=np.array(run_ids, dtype=object))


def projected(learned: Learned, cases: Cases) -> Projections:
    """The rows as ``learned`` projects them."""
    return project(cases, learned.constants, learned)


def half_width(learned: Learned, cases: Cases) -> np.ndarray:
    """Half-width of the 90% intervals in log space."""
    found = projected(learned, cases)
    return np.asarray(np.log(found.hi90 / found.lo90) / 2)


def test_one_run_moves_its_own_key_and_little_else() -> None:
    calibrated = shipped().calibrated(runs(0.7, {}))
    mine = runs(1.0, {}, {"tp": "4", "pp": "2"})
    gain = calibrated.predict(mine).value / shipped().predict(mine).value
    assert 0.7 < gain[0] < 0.9, "shrunk towards the measured run"
    assert 0.65 < gain[1] < 1.0, "constants that explain the run may weigh more in another layout"
    other = study("mixtral-8x7b", "H100-SXM")
    elsewhere = project(other, calibrated.constants, calibrated)
    assert elsewhere.tokens_per_s_per_gpu == pytest.approx(
        project(other).tokens_per_s_per_gpu, rel=1e-6
    )


def test_what_is_told_to_move_is_what_moves() -> None:
    table = runs(0.85, *FOUR)
    calibrated = shipped().calibrated(table)
    moved = calibrated.predict(table).value / shipped().predict(table).value
    assert np.exp(calibrated.calibration.moves()) == pytest.approx(moved, rel=0.02)


def test_runs_that_agree_with_the_projection_change_nothing() -> None:
    table = runs(1.0, {}, {"tp": "4"})
    calibrated = shipped().calibrated(table)
    assert calibrated.predict(table).value == pytest.approx(shipped().predict(table).value)


def test_calibration_narrows_the_spread_and_says_so() -> None:
    table = runs(0.8, {}, {"tp": "4"}, {"mbs": "2"})
    calibrated = shipped().calibrated(table)
    offset = calibrated.calibration.offset(cases_of(table))
    assert offset.calibrated.all()
    assert offset.measured.all()
    assert (offset.open_share < 0.5).all()
    trust = project(cases_of(table), calibrated.constants, calibrated).trust
    assert set(trust) == {TRUST[-1]}


def test_revealed_runs_teach_in_rehearsal_what_they_teach_for_good() -> None:
    table = runs(0.75, {}, {"tp": "4"}, {"mbs": "2"})
    known, rest = np.array([0, 1]), np.array([2])
    rehearsed = shipped().rehearse(table)(known, rest)
    real = shipped().calibrated(table.take(known)).predict(table.take(rest))
    assert rehearsed.value == pytest.approx(real.value, rel=0.02)
    nothing = shipped().rehearse(table)(known[:0], rest)
    assert nothing.value == pytest.approx(shipped().predict(table.take(rest)).value, rel=1e-6)


def test_a_structural_difference_moves_a_constant_more_than_an_offset() -> None:
    fast, slow = {"tp": "1", "pp": "8"}, {"tp": "8", "pp": "1"}
    table = runs(1.0, *[fast | {"mbs": m} for m in ("1", "2")], *[slow | {"mbs": m} for m in "12"])
    measured = table.tokens_per_s_per_gpu * np.array([1.0, 1.0, 0.7, 0.7])
    calibrated = shipped().calibrated(replace(table, tokens_per_s_per_gpu=measured))
    moved = {m.constant: m.factor for m in calibrated.calibration.moved_constants()[:12]}
    assert any(name.startswith(("tp_", "link_")) for name in moved)


def test_a_calibration_is_read_as_written(tmp_path: Path) -> None:
    table = runs(0.8, {}, {"tp": "4"})
    calibrated = shipped().calibrated(table)
    path = tmp_path / "c.json"
    write_calibration(path, calibrated.calibration)
    again = replace(shipped(), calibration=read_calibration(path))
    assert again.predict(table).value == pytest.approx(calibrated.predict(table).value, rel=2e-3)
    content = json.loads(path.read_text())
    assert content["schema_version"] == 6
    assert [run["run_id"] for run in content["runs"]] == ["mine-0", "mine-1"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of a calibration of one run, one peak and one run out of memory."""
    table = replace(runs(0.8, {}), peak_memory_gib=np.array([90.0]))
    learned = shipped().calibrated(table).with_peaks(table)
    failed = MemoryFacts.of_out_of_memory(cases_of(runs(1.0, {"tp": "2"})), ["failed"])
    about = {
        "fitted_on": "runs.csv",
        "fit_date": "2026-12-01",
        "data_hash": "1",
        "before": {"n": 1, "mape": 0.25},
        "after": {"n": 1, "mape": 0.125},
    }
    peaks = learned.peaks().merged(failed)
    calibration = replace(learned.calibration, peaks=peaks, about=about)
    path = tmp_path_factory.mktemp("written") / "c.json"
    write_calibration(path, calibration)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file["runs"][0]["labels"].update(release="25.09"),
        lambda file: file["runs"][0].update(log_error=file["runs"][0]["log_error"] + 0.1),
        lambda file: file["runs"][0]["point"].reverse(),
        lambda file: file["peaks"][0].update(framework="TorchTitan"),
        lambda file: file["out_of_memory"][0]["config"].update(tp=4),
        lambda file: file["runs"].clear(),
        lambda file: file["peaks"].append(file["peaks"][0] | {"run_id": "another"}),
        lambda file: file.update(bias=0.5),
        lambda file: file.update(bias_sd=0.1),
        lambda file: file.update(projections="edited"),
        lambda file: file.update(fitted_on="other.csv"),
        lambda file: file.update(fit_date="2020-01-01"),
        lambda file: file.update(data_hash="0"),
        lambda file: file["before"].update(mape=0.5),
        lambda file: file.pop("after"),
    ],
)
def test_an_edited_calibration_is_refused(
    change: Callable[[Any], None], written: dict[str, Any]
) -> None:
    turned = json.dumps(dict(reversed(written.items())), indent=4)
    assert len(calibration_of(turned.encode(), "c.json")) == 1
    edited = json.loads(turned)
    change(edited)
    with pytest.raises(InputError, match=r"c\.json was edited: .*; calibrate again"):
        calibration_of(json.dumps(edited).encode(), "c.json")


@pytest.mark.parametrize(
    ("text", "place"),
    [('"bias": 0.0', '"bias": 0.0, "bias": 0.0'), ('"gpu":', '"gpu": "H100-SXM", "gpu":')],
)
def test_a_key_that_is_stated_twice_is_refused(
    text: str, place: str, written: dict[str, Any]
) -> None:
    content = json.dumps(written)
    assert text in content
    with pytest.raises(InputError, match=r"c\.json is no calibration file: .* is stated twice"):
        calibration_of(content.replace(text, place, 1).encode(), "c.json")


@pytest.mark.parametrize("part", ["runs", "peaks", "out_of_memory"])
def test_a_run_that_is_listed_twice_is_refused(part: str, written: dict[str, Any]) -> None:
    doubled = written | {part: written[part] * 2}
    with pytest.raises(InputError, match=r"c\.json has run '.*' twice; calibrate again"):
        calibration_of(json.dumps(doubled).encode(), "c.json")


def test_a_calibration_of_an_earlier_version_is_to_be_made_again(written: dict[str, Any]) -> None:
    earlier = {name: held for name, held in written.items() if name != "checksum"}
    with pytest.raises(InputError, match="another version of foretune; calibrate again"):
        calibration_of(json.dumps(earlier | {"schema_version": 5}).encode(), "c.json")


def test_measuring_a_run_again_replaces_it() -> None:
    first = shipped().calibrated(runs(0.8, {}))
    second = first.calibrated(runs(0.9, {}))
    assert len(second.calibration) == 1
    empty = Calibration.nothing()
    assert len(empty) == 0


def test_without_runs_everything_is_as_projected() -> None:
    cases = study()
    empty = shipped().calibrated(runs(1.0, {}).take(np.array([], dtype=np.int64)))
    assert projected(empty, cases).tokens_per_s_per_gpu == pytest.approx(
        projected(shipped(), cases).tokens_per_s_per_gpu, rel=0
    )
    assert half_width(empty, cases) == pytest.approx(half_width(shipped(), cases), rel=0)


def test_more_runs_of_the_same_truth_never_widen() -> None:
    table, cases = runs(0.8, *FOUR), study()
    widths = [half_width(shipped().calibrated(table.take(slice(n))), cases) for n in (1, 2, 3, 4)]
    for wider, narrower in pairwise(widths):
        assert (narrower <= wider * (1 + 1e-9)).all()
    assert (widths[-1] < widths[0]).any()


def test_the_order_of_runs_does_not_matter() -> None:
    table, cases = measured(runs(1.0, *FOUR), 0.7, 0.9, 1.1, 0.8), study()
    one, other = (shipped().calibrated(table.take(order)) for order in ([0, 1, 2, 3], [2, 0, 3, 1]))
    assert projected(one, cases).tokens_per_s_per_gpu == pytest.approx(
        projected(other, cases).tokens_per_s_per_gpu, rel=1e-9
    )
    assert half_width(one, cases) == pytest.approx(half_width(other, cases), rel=1e-9)


def test_a_run_told_twice_is_a_repeat_and_no_new_knowledge_of_structure() -> None:
    table, cases = runs(0.8, {}, {}, {"tp": "2", "pp": "4"}), study()
    once = shipped().calibrated(table.take([0]))
    twice = shipped().calibrated(named(table.take([0, 0]), "mine", "mine again"))
    apart = shipped().calibrated(table.take([0, 2]))
    before, repeat, new = (c.calibration.offset(cases).open_share for c in (once, twice, apart))
    far = cases.config.tp == 1
    assert (repeat[far] > 0.97 * before[far]).all()
    assert (new[far] < repeat[far] - 0.01).all()
    same = shipped().calibrated(table.take([0])).calibrated(table.take([0]))
    assert len(same.calibration) == 1


def test_runs_that_contradict_each_other_widen_the_interval() -> None:
    pair, cases = runs(1.0, {}, {"mbs": "2"}), study()
    one = shipped().calibrated(pair.take([0]))
    agreeing = shipped().calibrated(measured(pair, 0.8, 0.8))
    torn = shipped().calibrated(measured(pair, 0.6, 1.2))
    assert (half_width(torn, cases) > half_width(agreeing, cases) * 1.5).all()
    assert (half_width(torn, cases) > half_width(one, cases)).all()
    other = study("llama3-8b")
    assert half_width(torn, other) == pytest.approx(half_width(one, other), rel=0.02)


def test_a_run_that_contradicts_many_does_little_harm_and_is_told() -> None:
    table, cases = runs(0.9, *FOUR, {"pp": "4", "tp": "2"}), study()
    right = shipped().calibrated(table.take(slice(4)))
    wrong = shipped().calibrated(measured(table, 1, 1, 1, 1, 0.3))
    moved = projected(wrong, cases).tokens_per_s_per_gpu
    ratio = moved / projected(right, cases).tokens_per_s_per_gpu
    assert (ratio > 0.85).all()
    left, sd = wrong.calibration.leave_one_out()
    assert np.abs(left / sd).argmax() == 4
    assert np.abs(left / sd)[4] > 4


def test_far_from_the_runs_only_a_shrunken_offset_is_left() -> None:
    cases = study()
    offset = shipped().calibrated(runs(0.7, {})).calibration.offset(cases)
    near = (cases.config.tp == 8) & (cases.config.pp == 1)
    far = cases.config.tp == 1
    assert np.abs(offset.mean[far]).max() < 0.5 * np.abs(offset.mean[near]).min()
    assert (offset.mean < 0).all()
    assert (offset.mean > np.log(0.7)).all()
    assert (offset.open_share[far] > offset.open_share[near].max()).all()


def test_releases_of_one_year_say_more_of_each_other_than_releases_of_two() -> None:
    def moved(told: str, asked: str) -> float:
        known = shipped().calibrated(runs(0.7, {"framework_version": told}))
        cases = cases_of(runs(1.0, {"framework_version": asked}))
        return float(known.calibration.offset(cases).mean[0])

    same, next_one, later = (moved("25.04", asked) for asked in ("25.04", "25.05", "26.12"))
    assert same < next_one < later < 0
    assert moved("25.04", "abc1234") == pytest.approx(later, abs=0.02)


def test_calibrations_merge_in_any_order() -> None:
    table, cases = measured(runs(1.0, *FOUR), 0.7, 0.9, 1.1, 0.8), study()
    together = shipped().calibrated(table)
    first = shipped().calibrated(table.take([0, 1])).calibration
    second = shipped().calibrated(table.take([2, 3])).calibration
    for merged in (first.merged(second), second.merged(first)):
        learned = replace(shipped(), calibration=merged)
        assert projected(learned, cases).tokens_per_s_per_gpu == pytest.approx(
            projected(together, cases).tokens_per_s_per_gpu, rel=1e-9
        )
    assert len(first.merged(first)) == 2
    assert len(first.merged(Calibration.nothing())) == 2
    with pytest.raises(InputError, match="two versions"):
        first.merged(replace(second, projections="of another release"))


def test_one_config_and_a_table_of_runs_are_calibrated_alike() -> None:
    table = measured(runs(1.0, *FOUR), 0.7, 0.9, 1.1, 0.8)
    learned = shipped().calibrated(table)
    cases = study()
    table = runs(1.0, *({"tp": str(t)} for t in (1, 2, 4, 8)))
    of_rows = learned.predict(table).value / shipped().predict(table).value
    of_study = (
        projected(learned, cases).tokens_per_s_per_gpu
        / projected(shipped(), cases).tokens_per_s_per_gpu
    )
    for place, tp in enumerate((1, 2, 4, 8)):
        row = (cases.config.tp == tp) & (cases.config.pp == 1) & (cases.config.mbs == 1)
        assert of_study[row] == pytest.approx(of_rows[place], rel=0.01)


def test_an_unstated_setting_teaches_less() -> None:
    moe = {"model": "mixtral-8x7b", "tp": "1", "ep": "8", "moe_dispatcher": "alltoall"}
    stated = runs(0.8, moe)
    unstated = replace(stated, recompute_unknown=np.array([True]))
    cases = cases_of(stated)
    knows, guesses = (
        shipped().calibrated(table).calibration.offset(cases).open_share[0]
        for table in (stated, unstated)
    )
    assert knows < guesses < 1
