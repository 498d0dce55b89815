"""The ledger of a toolbox study: one Optuna trial a bundle, with its verdict and evidence.

A timed bundle is a complete trial whose value is tokens/s. Wrong outputs and lack of memory are
complete trials with value 0 and a violated constraint; a bundle without effect is pruned, for it
was not timed; failures are failed trials. Illegal proposals are notes on the study.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.boards import Board, artifact_folder
from studies.ledger import describe_study, open_study
from studies.storage import StorageAddress
from studies.toolbox.bundle import OFF, Bundle
from studies.toolbox.tools import TOOLBOX
from studies.toolbox.verdicts import Outcome, Verdict

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

METRIC = "tokens_per_s"


def distributions() -> dict[str, BaseDistribution]:
    """One frozen categorical axis for every tool, the same in all studies."""
    from optuna.distributions import CategoricalDistribution

    return {
        name: CategoricalDistribution((OFF, *tool.settings))
        for name, tool in sorted(TOOLBOX.items())
    }


class BundleLedger:
    """A toolbox study opened for writing."""

    def __init__(self, study: Study, address: StorageAddress, note: str) -> None:
        self._study = study
        self.name = study.study_name
        self.storage = address.shown
        self._file = address.path
        self.note = note

    @classmethod
    def open(cls, address: StorageAddress, name: str, inputs: Mapping[str, Any]) -> BundleLedger:
        """The study of these inputs, resumed where it exists.

        Raises:
            InputError: the storage cannot be opened.
        """
        study, note = open_study(address, name, inputs, METRIC)
        return cls(study, address, note)

    def trials(self) -> list[FrozenTrial]:
        """The trials, in the order in which they were evaluated."""
        return self._study.get_trials(deepcopy=False)

    def board(self, out: Path) -> Board:
        """What optuna-dashboard shows beside the trials; ``out`` as in ``artifact_folder``."""
        return Board(self._study, artifact_folder(self._file, out))

    def outcomes(self) -> dict[Bundle, Outcome]:
        """What is known already, in the order in which it was found out."""
        found = [Outcome.from_json(trial.user_attrs["outcome"]) for trial in self.trials()]
        return {outcome.bundle: outcome for outcome in found}

    def record(self, outcome: Outcome, planner: str, reason: str) -> None:
        """Adds the trial of a bundle in one transaction."""
        from optuna.trial import TrialState, create_trial

        verdict = outcome.verdict
        attributes: dict[str, Any] = {
            "bundle": str(outcome.bundle),
            "verdict": verdict.value,
            "sentence": outcome.sentence,
            "planner": planner,
            "reason": reason,
            "outcome": outcome.as_json(),
        }
        states = {Verdict.FAILED: TrialState.FAIL, Verdict.NO_EFFECT: TrialState.PRUNED}
        state = states.get(verdict, TrialState.COMPLETE)
        complete = state is TrialState.COMPLETE
        trial = create_trial(
            state=state,
            value=(outcome.tokens_per_s or 0.0) if complete else None,
            params={tool: outcome.bundle.get(tool) for tool in TOOLBOX},
            distributions=distributions(),
            user_attrs=attributes,
            constraints={
                "correctness": outcome.correctness,
                "out_of_memory": float(verdict is Verdict.OUT_OF_MEMORY),
            }
            if complete
            else None,
        )
        assert trial.datetime_complete is not None
        trial.datetime_start = trial.datetime_complete - timedelta(seconds=outcome.cost_s)
        self._study.add_trial(trial)

    def held(self, name: str) -> Any:
        """An attribute of the study; None where it has none of that name."""
        return self._study.user_attrs.get(name)

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Writes readable attributes on the study."""
        describe_study(self._study, attributes)
