"""Facts: a finished study read back from its storage, with the job that it was run for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from specs.cluster import Cluster
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.experiment import Experiment
from specs.stack import Stack
from specs.workload import Workload
from studies.job import Job
from studies.ledger import Trial, read_trials
from studies.oracles import data_fingerprint
from studies.pictures.style import Attempt
from studies.storage import StorageAddress, open_storage
from studies.taught import TAUGHT, taught_from
from studies.wording import describe

if TYPE_CHECKING:
    from optuna import Study

RESULT = "result"
"""Attribute of a study that holds the JSON of ``foretune tune``."""
ILLEGAL = "illegal "
"""Prefix of the attributes of a study that keep its illegal proposals."""
MEASURED = "/measured"
"""Suffix of the study that keeps real runs."""


@dataclass(frozen=True, slots=True)
class MeasuredConfig:
    """A real run that finished: its config and its measured tokens/s/GPU."""

    config: TrainingConfig
    tokens_per_s_per_gpu: float


@dataclass(frozen=True)
class Answer:
    """A config of the result with its projection, as ``foretune tune`` told it."""

    config: TrainingConfig
    projection: Mapping[str, Any]
    probability_best: float

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Answer:
        """The answer that JSON of ``tune`` holds."""
        config = TrainingConfig.from_labels(content["config"])
        return cls(config, content["projection"], content["probability_best"])

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Projected throughput."""
        return float(self.projection["throughput"]["tokens_per_s_per_gpu"])

    @property
    def interval90(self) -> tuple[float, float]:
        """Its 90% interval."""
        low, high = self.projection["throughput"]["interval90"]
        return float(low), float(high)

    @property
    def memory(self) -> Mapping[str, Any]:
        """Peak, capacity, fit probability and stages."""
        found: Mapping[str, Any] = self.projection["memory"]
        return found


@dataclass(frozen=True)
class StudyFacts:
    """A study and what it found.

    ``job`` is rebuilt from what the study keeps of its inputs. ``measured`` are real runs told back
    to it. ``current`` is False where the constants have changed since: trials are then not what
    ``job`` would project today.
    """

    name: str
    storage: str
    job: Job
    trials: tuple[Trial, ...]
    measured: tuple[MeasuredConfig, ...]
    result: Mapping[str, Any]
    inputs: Mapping[str, Any]
    illegal: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    current: bool

    @cached_property
    def best(self) -> Answer:
        """The config to run."""
        return Answer.of(self.result["best"])

    @cached_property
    def baseline(self) -> Answer | None:
        """The config of the input; None where it is illegal on the cluster."""
        content = self.result["baseline"]
        return Answer.of(content) if content else None

    @cached_property
    def shortlist(self) -> tuple[Answer, ...]:
        """Configs to run for real, best first."""
        return tuple(Answer.of(content) for content in self.result["shortlist"])

    @property
    def capacity_gib(self) -> float:
        """Memory of a GPU."""
        return self.job.cluster.gpu.hbm_gib.value

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """The evaluated trials as pictures show them."""
        return tuple(
            Attempt(
                number=trial.number,
                tokens_per_s_per_gpu=trial.tokens_per_s_per_gpu,
                peak_gib=trial.memory_gib + self.capacity_gib,
                fits=trial.fits,
                text=describe(trial.config),
            )
            for trial in self.trials
            if trial.tokens_per_s_per_gpu is not None and trial.memory_gib is not None
        )


def study_names(address: StorageAddress) -> list[str]:
    """The studies of a storage that exists, in order of name.

    Raises:
        InputError: there is no storage at the address.
    """
    if address.path is not None and not address.path.exists():
        raise InputError(f"there is no storage {address.shown}; run foretune tune first.")
    return sorted(study.study_name for study in open_storage(address).get_all_studies())


def chosen_study(address: StorageAddress, name: str | None) -> str:
    """``name``, or the only study of a storage where no name is given.

    Raises:
        InputError: there is no such study, or there are several to choose from.
    """
    names = study_names(address)
    if name is not None:
        if name not in names:
            known = ", ".join(names) or "none"
            raise InputError(f"there is no study {name!r} in {address.shown}; it holds {known}.")
        return name
    finished = [known for known in names if not known.endswith(MEASURED)]
    if len(finished) == 1:
        return finished[0]
    known = ", ".join(finished) or "none"
    raise InputError(f"name the study: {address.shown} holds {known}.")


def load(address: StorageAddress, name: str) -> Study:
    """The Optuna study, which must exist."""
    import optuna

    return optuna.load_study(study_name=name, storage=open_storage(address))


def read_facts(address: StorageAddress, name: str) -> StudyFacts:
    """Everything that a study says.

    Raises:
        InputError: there is no such study, it was not made by foretune or has no result yet.
    """
    name = chosen_study(address, name)
    attributes = load(address, name).user_attrs
    if RESULT not in attributes or "inputs" not in attributes:
        raise InputError(
            f"the study {name!r} has no result yet; run foretune tune with its input to the end."
        )
    inputs = attributes["inputs"]
    return StudyFacts(
        name=name,
        storage=address.shown,
        job=job_of(name, inputs, attributes.get(TAUGHT)),
        trials=tuple(read_trials(address, name)),
        measured=measured_configs(address, name + MEASURED),
        result=attributes[RESULT],
        inputs=inputs,
        illegal=tuple(v for k, v in sorted(attributes.items()) if k.startswith(ILLEGAL)),
        notes=tuple(attributes.get("notes", ())),
        current=inputs.get("surrogate") == data_fingerprint(),
    )


def measured_configs(address: StorageAddress, name: str) -> tuple[MeasuredConfig, ...]:
    """The finished real runs of the study ``name``; none where there is no such study."""
    if name not in study_names(address):
        return ()
    return tuple(
        MeasuredConfig(TrainingConfig.from_labels(trial.user_attrs["config"]), trial.value)
        for trial in load(address, name).get_trials(deepcopy=False)
        if trial.state.is_finished() and trial.value
    )


def job_of(name: str, inputs: Mapping[str, Any], taught: dict[str, Any] | None = None) -> Job:
    """The job that a study was run for, projected with what it was ``taught``.

    Raises:
        InputError: the study keeps inputs of another version of foretune.
    """
    try:
        cluster = Cluster.model_validate(inputs["cluster"])
        experiment = Experiment(
            name=name,
            workload=Workload.model_validate(inputs["workload"]),
            stack=Stack.model_validate(inputs["stack"]),
            baseline=TrainingConfig.from_labels(inputs["baseline"]),
            cluster=cluster,
        )
    except (KeyError, ValidationError) as error:
        raise InputError(
            f"the study {name!r} keeps inputs of another version of foretune "
            f"({type(error).__name__}); run foretune tune again."
        ) from None
    return Job(experiment, cluster, (), taught_from(taught))
