"""What real runs told to a job mean to every other command: new projections, and failed configs.

Trials of a study are kept as they were projected without runs, so that they can be compared; what
is recommended is projected with everything that was told.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from specs.config import TrainingConfig
from studies.job import Job
from studies.ledger import Trial, input_hash
from studies.oracles import Evaluation, SurrogateOracle
from studies.real_runs import FINISHED, MEASURED, TOLD, AskedRun, RealRuns, measured_inputs
from studies.storage import StorageAddress, open_storage
from surrogate.learned import Learned

_HASHED = re.compile(r"-[0-9a-f]{8}$")
"""What a study's name ends in where its inputs changed."""


@dataclass(frozen=True)
class Told:
    """Real runs of a job, at least one of them told, and what the job is believed to be with them.

    ``study`` is the name of the study that keeps them.
    """

    study: str
    runs: tuple[AskedRun, ...]
    learned: Learned

    @cached_property
    def told(self) -> tuple[AskedRun, ...]:
        """The runs of which something came back."""
        return tuple(run for run in self.runs if run.state in TOLD)

    @property
    def failed(self) -> tuple[TrainingConfig, ...]:
        """Configs that ran out of memory or crashed and never finished."""
        finished = {run.config for run in self.told if run.state == FINISHED}
        configs = dict.fromkeys(run.config for run in self.told)
        return tuple(config for config in configs if config not in finished)

    def job(self, job: Job) -> Job:
        """The job as it is projected now; ``job`` is as it was before any run."""
        return replace(job, learned=self.learned, failed=self.failed)

    @property
    def sentence(self) -> str:
        """How many runs count, in one sentence."""
        count = len(self.told)
        states = Counter(run.state for run in self.told)
        kinds = ", ".join(f"{states[state]} {state}" for state in TOLD if states[state])
        runs = "1 run was" if count == 1 else f"{count} runs were"
        out = "; a config that failed is never recommended" if self.failed else ""
        return (
            f"{runs} told to this job ({kinds}) and every number counts them: trials are "
            f"projected and ranked again with what they taught{out}."
        )

    @property
    def digest(self) -> str:
        """A hash of what was told: another one, other projections."""
        return input_hash({"runs": [_identity(run) for run in self.told]})

    def as_json(self) -> dict[str, Any]:
        """The JSON of ``tune``'s key ``told``."""
        return {
            "study": self.study,
            "runs": len(self.told),
            "failed": [config.as_labels() for config in self.failed],
            "digest": self.digest,
        }


def _identity(run: AskedRun) -> list[Any]:
    return [
        run.number,
        run.config.as_labels(),
        run.state,
        run.tokens_per_s_per_gpu,
        run.peak_gib,
        run.counter,
    ]


def told_to(job: Job, address: StorageAddress, name: str) -> Told | None:
    """What was told to a job; None where there is no such storage, or nothing was told.

    Args:
        job: without what its runs taught.
        address: of the storage.
        name: of the job or of its study.
    """
    found = _measured_study(job, address, name)
    if found is None:
        return None
    runs = RealRuns.open(job, address, found.removesuffix(MEASURED), create=False)
    asked = tuple(runs.runs())
    if not any(run.state in TOLD for run in asked):
        return None
    return Told(runs.name, asked, runs.taught())


def runs_of(job: Job, address: StorageAddress, name: str) -> tuple[AskedRun, ...]:
    """Every real run that was asked of a job, in the order of its number; see ``told_to``."""
    found = _measured_study(job, address, name)
    if found is None:
        return ()
    runs = RealRuns.open(job, address, found.removesuffix(MEASURED), create=False)
    return tuple(runs.runs())


def _measured_study(job: Job, address: StorageAddress, name: str) -> str | None:
    """The study that keeps the runs of a job; runs of another job are none of its own."""
    if address.path is not None and not address.path.exists():
        return None
    digest = input_hash(measured_inputs(job))
    held = {
        study.study_name: study.user_attrs.get("input_hash", digest)
        for study in open_storage(address).get_all_studies()
    }
    bases = dict.fromkeys((name, _HASHED.sub("", name)))
    wanted = [f"{base}{mark}{MEASURED}" for base in bases for mark in ("", f"-{digest[:8]}")]
    return next((study for study in wanted if held.get(study) == digest), None)


def projected_again(job: Job, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Trials as ``job`` projects them now; those that were never evaluated stay as they are."""
    oracle = SurrogateOracle(job)
    return tuple(
        trial
        if trial.tokens_per_s_per_gpu is None
        else _evaluated(trial, oracle.evaluate(trial.config))
        for trial in trials
    )


def _evaluated(trial: Trial, seen: Evaluation) -> Trial:
    return replace(
        trial,
        tokens_per_s_per_gpu=seen.tokens_per_s_per_gpu,
        memory_gib=seen.memory_gib,
        fit_probability=seen.fit_probability,
        details=trial.details | seen.details,
    )
