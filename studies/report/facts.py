"""Facts: a finished study read back from its storage, with the job that it was run for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
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
from studies.oracles import SurrogateOracle, data_fingerprint
from studies.pictures.style import Attempt
from studies.real_runs import MEASURED, AskedRun
from studies.storage import StorageAddress, open_storage
from studies.taught import TAUGHT, taught_from
from studies.told import Told, projected_again, runs_of, told_to
from studies.wording import describe

if TYPE_CHECKING:
    from optuna import Study

    from search.ranking import Ranking

RESULT = "result"
"""Attribute of a study that holds the JSON of ``foretune tune``."""
ILLEGAL = "illegal "
"""Prefix of the attributes of a study that keep its illegal proposals."""


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


class NoteKind(Enum):
    """Where a note on a study comes from."""

    STUDY = "what was assumed or happened when the study ran"
    TOLD = "real runs that were told and count"
    CAUTION = "what the best config changes beyond speed, or no run knows of it"


@dataclass(frozen=True, slots=True)
class Note:
    """What a reader of a study must know, in one sentence."""

    kind: NoteKind
    sentence: str


@dataclass(frozen=True)
class StudyFacts:
    """A study and what it found.

    ``before`` is rebuilt from what the study keeps of its inputs; ``job`` is the same with what
    real runs taught since. ``runs`` are all that were asked of it. Where runs were told, ``trials``
    and ``result`` are those of now, not those of when ``tune`` ran. ``current`` is False where the
    constants have changed since: trials are then not what ``before`` would project today.
    """

    name: str
    storage: str
    job: Job
    trials: tuple[Trial, ...]
    before: Job
    runs: tuple[AskedRun, ...]
    result: Mapping[str, Any]
    inputs: Mapping[str, Any]
    illegal: tuple[Mapping[str, Any], ...]
    notes: tuple[Note, ...]
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
    before = job_of(name, inputs, attributes.get(TAUGHT))
    trials, result = tuple(read_trials(address, name)), attributes[RESULT]
    notes = [Note(NoteKind.STUDY, sentence) for sentence in attributes.get("notes", ())]
    cautions = result.get("cautions", ())
    job, told = before, told_to(before, address, name)
    if told is not None:
        job = told.job(before)
        notes.append(Note(NoteKind.TOLD, told.sentence))
        if inputs.get("oracle") == SurrogateOracle.name:
            trials = projected_again(job, trials)
            if result.get("told", {}).get("digest") != told.digest:
                again = ranked_again(job, inputs, trials, told)
                cautions = cautions_now(result, again)
                result = {**result, **again}
    return StudyFacts(
        name=name,
        storage=address.shown,
        job=job,
        before=before,
        trials=trials,
        runs=runs_of(before, address, name),
        result=result,
        inputs=inputs,
        illegal=tuple(v for k, v in sorted(attributes.items()) if k.startswith(ILLEGAL)),
        notes=(*notes, *(Note(NoteKind.CAUTION, sentence) for sentence in cautions)),
        current=inputs.get("surrogate") == data_fingerprint(),
    )


def ranked_again(
    job: Job, inputs: Mapping[str, Any], trials: tuple[Trial, ...], told: Told
) -> dict[str, Any]:
    """The result of a study as ``tune`` would give it now: its space ranked with what was told.

    Args:
        job: with what was told.
        inputs: of the study.
        trials: as they are projected now.
        told: real runs.

    Raises:
        InfeasibleError: nothing fits any more.
    """
    # Imported here: what makes a result draws its pictures with these facts.
    from search.space import build_space
    from studies.result import result_of
    from studies.training import Study, rank_space, shortlisted

    experiment = job.experiment
    space = build_space(
        experiment.workload, job.cluster, experiment.stack, job.baseline, inputs["axes"], True
    )
    ranking = rank_space(job, space)
    study = Study(
        job=job,
        name=experiment.name,
        storage="",
        folder=Path(),
        space=space,
        ranking=ranking,
        trials=_with_best(job, ranking, trials),
        illegal=(),
        shortlist=shortlisted(ranking),
        told=told,
    )
    content = result_of(study, int(inputs.get("seed") or 0)).as_json([])
    kept = (
        "study_name",
        "storage",
        "files",
        "notes",
        "illegal_proposals",
    )
    return {key: value for key, value in content.items() if key not in kept}


def cautions_now(before: Mapping[str, Any], again: Mapping[str, Any]) -> tuple[str, ...]:
    """Cautions of a result that was ranked again.

    Those of ``tune`` know whether the number format was asked for, which a study does not keep, and
    stand as long as the best has that format.

    Args:
        before: the JSON of ``tune`` as the study keeps it.
        again: the same, of now.
    """
    formats = [held["best"]["config"]["precision"] for held in (before, again)]
    stands = formats[0] == formats[1]
    return tuple((before if stands else again).get("cautions", ()))


def _with_best(job: Job, ranking: Ranking, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """The trials and the best of the ranking, which ``tune`` would add to them."""
    best = ranking.table.config(0)
    if any(trial.config == best for trial in trials):
        return trials
    seen = SurrogateOracle(job).evaluate(best)
    added = Trial(
        number=len(trials),
        config=best,
        proposer="exhaustive ranking",
        reason="best once told runs count",
        tokens_per_s_per_gpu=seen.tokens_per_s_per_gpu,
        memory_gib=seen.memory_gib,
        fit_probability=seen.fit_probability,
        details=seen.details,
    )
    return (*trials, added)


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
