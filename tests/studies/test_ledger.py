"""The ledger: complete trials with a memory constraint, each config once, a study by its inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from specs.config import TrainingConfig
from studies.ledger import CONSTRAINT, Ledger
from studies.oracles import Crash, Evaluation
from studies.storage import StorageAddress, open_storage, storage_address

INPUTS = {"model": "m", "gpus": 64}


@pytest.fixture(params=["a.db", "a.journal"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> StorageAddress:
    return storage_address(str(tmp_path / request.param), tmp_path / "unused.db")


def _evaluation(tokens: float, excess_gib: float) -> Evaluation:
    fits = float(excess_gib <= 0)
    return Evaluation(tokens, excess_gib, fits, {"projection": {"tokens": tokens}}, cost_s=0.01)


def test_trials_are_complete_readable_and_constrained(address: StorageAddress) -> None:
    import optuna
    from optuna.trial import TrialState

    ledger = Ledger.open(address, "s", INPUTS)
    fits, refused, crashed = (TrainingConfig(tp=tp) for tp in (1, 2, 4))
    assert ledger.record(fits, _evaluation(100.0, -5.0), "seed sweep", "baseline")
    assert ledger.record(refused, _evaluation(200.0, 5.0), "seed sweep", "tp 1 -> 2")
    assert ledger.record(crashed, Crash("no node answered", 1.0), "seed sweep", "tp 1 -> 4")
    study = optuna.load_study(study_name="s", storage=open_storage(address))
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 2 + [TrialState.FAIL]
    assert [t.constraints for t in study.trials[:2]] == [{CONSTRAINT: -5.0}, {CONSTRAINT: 5.0}]
    assert study.best_trial.number == 0, "a faster trial that memory refuses is not the best"
    assert study.trials[0].user_attrs["config"]["tp"] == 1
    assert study.trials[0].user_attrs["reason"] == "baseline"
    assert [trial.fits for trial in ledger.trials()] == [True, False, False]
    assert ledger.trials()[1].config == refused


def test_a_config_is_recorded_once_also_after_reopening(address: StorageAddress) -> None:
    config = TrainingConfig(tp=2)
    for number in range(3):
        ledger = Ledger.open(address, "s", INPUTS)
        assert ledger.record(config, _evaluation(1.0, -1.0), "p", "r") == (number == 0)
        assert len(ledger) == 1
        assert config in ledger
    assert "resuming" in ledger.note


def test_other_inputs_start_another_study_and_say_what_changed(address: StorageAddress) -> None:
    Ledger.open(address, "s", INPUTS).record(TrainingConfig(), _evaluation(1.0, -1.0), "p", "r")
    changed = INPUTS | {"gpus": 128}
    other = Ledger.open(address, "s", changed)
    assert other.name.startswith("s-")
    assert len(other) == 0
    assert "gpus changed" in other.note
    assert Ledger.open(address, "s", changed).name == other.name
    assert len(Ledger.open(address, "s", INPUTS)) == 1


def test_illegal_proposals_are_notes_not_trials(address: StorageAddress) -> None:
    ledger = Ledger.open(address, "s", INPUTS)
    for _ in range(2):
        ledger.note_illegal(TrainingConfig(tp=3), "seed sweep", ["heads % tp = 0"])
    assert [note["config"]["tp"] for note in ledger.illegal()] == [3]
    assert len(ledger) == 0


def test_a_study_killed_before_it_was_described_is_taken_up(address: StorageAddress) -> None:
    import optuna

    optuna.create_study(study_name="s", storage=open_storage(address), direction="maximize")
    ledger = Ledger.open(address, "s", INPUTS)
    assert ledger.name == "s"


def test_no_password_is_kept(tmp_path: Path) -> None:
    address = storage_address(None, tmp_path / "a.db")
    ledger = Ledger.open(address, "s", INPUTS)
    assert ledger.storage == f"sqlite:///{tmp_path / 'a.db'}"
