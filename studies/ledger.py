"""The ledger of a study: an Optuna study in which every trial is complete, readable and unique.

A trial is written in one transaction, so a process killed at any moment leaves either the whole
trial or nothing of it. A candidate refused by memory is a complete trial whose constraint
``memory_gib`` is above 0; an illegal proposal is a note on the study; a crashed oracle is a failed
trial. A trial that waits for a worker, or is with one, is in ``studies.queue``.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.distributions import config_key, distributions, parameters
from specs.config import TrainingConfig
from specs.errors import InputError
from studies.oracles import Crash, Evaluation
from studies.storage import StorageAddress, open_storage

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

SCHEMA_VERSION = 1
CONSTRAINT = "memory_gib"
_NOTE = "illegal "
WORKER, BEAT, REQUEUED = "worker", "beat", "requeued"
OF_WORKERS = (WORKER, BEAT, REQUEUED)
"""Attributes of a trial: which worker has it, its sign of life, how often it was queued again."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of the ledger as it was written; ``memory_gib`` is above 0 where it was refused."""

    number: int
    config: TrainingConfig
    proposer: str
    reason: str
    tokens_per_s_per_gpu: float | None
    memory_gib: float | None
    fit_probability: float
    details: dict[str, Any]

    @property
    def fits(self) -> bool:
        """Whether the trial was evaluated and memory accepts it."""
        return self.memory_gib is not None and self.memory_gib <= 0

    @property
    def expected(self) -> float:
        """Throughput to expect, a run out of memory counting 0; 0 where the oracle crashed."""
        return (self.tokens_per_s_per_gpu or 0.0) * self.fit_probability


def input_hash(inputs: Mapping[str, Any]) -> str:
    """A hash of everything that decides what a study's trials mean."""
    text = json.dumps(inputs, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def open_study(
    address: StorageAddress, name: str, inputs: Mapping[str, Any], metric: str
) -> tuple[Study, str]:
    """The study ``name`` of these inputs, resumed where it exists, and a note on what was done.

    Where a study of that name was made from other inputs, a new one named after the hash of the
    new inputs is used and the note says so. ``metric`` names the value of its trials.

    Raises:
        InputError: the storage cannot be opened.
    """
    import optuna
    from optuna.study import StudyDirection

    storage = open_storage(address)
    digest = input_hash(inputs)
    known = {study.study_name for study in optuna.get_all_study_summaries(storage)}
    chosen, note = name, ""
    if name in known:
        held = optuna.load_study(study_name=name, storage=storage).user_attrs
        if held.get("input_hash", digest) != digest:
            chosen = f"{name}-{digest[:8]}"
            what = ", ".join(changed_inputs(held.get("inputs", {}), inputs)) or "inputs"
            state = "goes on in" if chosen in known else "starts"
            note = f"{what} changed since the study {name!r}, so this {state} {chosen!r}."
    if chosen in known and not note:
        note = f"resuming the study {chosen!r}."
    study = optuna.create_study(
        study_name=chosen,
        storage=storage,
        direction=StudyDirection.MAXIMIZE,
        load_if_exists=True,
    )
    describe_study(study, {"inputs": dict(inputs), "schema_version": SCHEMA_VERSION})
    describe_study(study, {"input_hash": digest})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([metric])
    return study, note


def describe_study(study: Study, attributes: Mapping[str, Any]) -> None:
    """Writes readable attributes on a study, those only that are new or changed."""
    held = study.user_attrs
    for key, value in attributes.items():
        if held.get(key) != value:
            study.set_user_attr(key, value)


class Ledger:
    """A study opened for writing."""

    def __init__(self, study: Study, address: StorageAddress, note: str) -> None:
        self._study = study
        self.name = study.study_name
        self.storage = address.shown
        self.note = note
        self._seen: dict[str, int] = {}
        self._is_current = False
        self.refresh()

    @classmethod
    def open(cls, address: StorageAddress, name: str, inputs: Mapping[str, Any]) -> Ledger:
        """The study ``name`` of these inputs, resumed where it exists.

        Where a study of that name was made from other inputs, a new one named after the hash of
        the new inputs is used and ``note`` says so.

        Raises:
            InputError: the storage cannot be opened.
        """
        study, note = open_study(address, name, inputs, "tokens_per_s_per_gpu")
        return cls(study, address, note)

    @property
    def study(self) -> Study:
        """The Optuna study."""
        return self._study

    def refresh(self) -> list[FrozenTrial]:
        """Reads again what the storage holds; gives its trials."""
        trials = self._study.get_trials(deepcopy=False)
        self._seen = {
            trial.user_attrs["config_key"]: trial.number
            for trial in trials
            if "config_key" in trial.user_attrs
        }
        self._is_current = True
        return trials

    def open_trials(self) -> int:
        """How many trials wait for a worker or are with one."""
        return sum(not trial.state.is_finished() for trial in self.refresh())

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, config: TrainingConfig) -> bool:
        return config_key(config) in self._seen

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Writes readable attributes on the study, those only that are new or changed."""
        describe_study(self._study, attributes)

    def note_illegal(self, config: TrainingConfig, proposer: str, reasons: list[str]) -> None:
        """Keeps an illegal proposal and the rules that refuse it as a note on the study."""
        content = {"proposer": proposer, "config": config.as_labels(), "reasons": reasons}
        self.describe({_NOTE + config_key(config): content})

    def illegal(self) -> list[dict[str, Any]]:
        """The notes on illegal proposals."""
        attributes = self._study.user_attrs
        return [value for key, value in sorted(attributes.items()) if key.startswith(_NOTE)]

    def record(
        self, config: TrainingConfig, outcome: Evaluation | Crash, proposer: str, reason: str
    ) -> bool:
        """Adds the trial of a config, once: a config already in the ledger is left as it is.

        May be tried again where the storage did not answer.
        """
        return self._add(evaluated(config, outcome, proposer, reason))

    def enqueue(self, config: TrainingConfig, proposer: str, reason: str) -> bool:
        """Adds a config for a worker to evaluate, once; as ``record``."""
        from optuna.trial import TrialState, create_trial

        return self._add(
            create_trial(
                state=TrialState.WAITING,
                params=parameters(config),
                distributions=dict(distributions()),
                user_attrs=_proposed(config, proposer, reason),
            )
        )

    def _add(self, trial: FrozenTrial) -> bool:
        if not self._is_current:
            self.refresh()
        key = trial.user_attrs["config_key"]
        if key in self._seen:
            return False
        self._is_current = False  # until it is known whether the trial was written
        self._study.add_trial(trial)
        self._seen[key] = len(self._seen)
        self._is_current = True
        return True

    def trials(self) -> list[Trial]:
        """Every finished trial in the order of its number."""
        return _finished(self._study)


def evaluated(
    config: TrainingConfig, outcome: Evaluation | Crash, proposer: str, reason: str
) -> FrozenTrial:
    """A finished trial with everything that is kept of it."""
    from optuna.trial import TrialState, create_trial

    attributes = _proposed(config, proposer, reason) | {"cost_s": round(outcome.cost_s, 6)}
    if isinstance(outcome, Crash):
        return create_trial(
            state=TrialState.FAIL,
            params=parameters(config),
            distributions=dict(distributions()),
            user_attrs=attributes | {"crash": outcome.reason},
        )
    return create_trial(
        state=TrialState.COMPLETE,
        value=outcome.tokens_per_s_per_gpu,
        params=parameters(config),
        distributions=dict(distributions()),
        user_attrs=attributes | {"fit_probability": outcome.fit_probability} | outcome.details,
        constraints={CONSTRAINT: outcome.memory_gib},
    )


def _proposed(config: TrainingConfig, proposer: str, reason: str) -> dict[str, Any]:
    return {
        "config": config.as_labels(),
        "config_key": config_key(config),
        "proposer": proposer,
        "reason": reason,
    }


def read_trials(address: StorageAddress, name: str) -> list[Trial]:
    """The finished trials of a study, which must exist.

    Raises:
        InputError: the storage or the study does not exist.
    """
    import optuna

    if address.path is not None and not address.path.exists():
        raise InputError(f"there is no storage {address.shown}; run foretune tune first.")
    storage = open_storage(address)
    names = sorted(study.study_name for study in storage.get_all_studies())
    if name not in names:
        known = f"it holds {', '.join(names)}" if names else "it holds none"
        raise InputError(f"there is no study {name!r} in {address.shown}; {known}.")
    return _finished(optuna.load_study(study_name=name, storage=storage))


def _finished(study: Study) -> list[Trial]:
    trials = study.get_trials(deepcopy=False)
    return [_trial(frozen) for frozen in trials if frozen.state.is_finished()]


_FIXED = (
    *("config", "config_key", "proposer", "reason", "cost_s", "fit_probability"),
    *OF_WORKERS,
)


def _trial(frozen: FrozenTrial) -> Trial:
    attributes = frozen.user_attrs
    return Trial(
        number=frozen.number,
        config=TrainingConfig.from_labels(attributes["config"]),
        proposer=attributes["proposer"],
        reason=attributes["reason"],
        tokens_per_s_per_gpu=frozen.value,
        memory_gib=frozen.constraints.get(CONSTRAINT),
        fit_probability=attributes.get("fit_probability", 0.0),
        details={key: value for key, value in attributes.items() if key not in _FIXED},
    )


def changed_inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names of the inputs that differ, sorted."""
    names = sorted(set(before) | set(after))
    return [name for name in names if before.get(name) != after.get(name)]
