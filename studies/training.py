"""The training study: rank the legal space, sweep the seeds, spend the trials, keep the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from search.distributions import config_key
from search.proposals import Proposal
from search.ranking import Ranking, rank
from search.seed_sweep import seed_sweep
from search.shortlist import shortlist
from search.space import Space
from specs.config import AXES, TrainingConfig
from specs.errors import InfeasibleError, InputError
from specs.legality import why_illegal
from studies.driving import Crew, Driver
from studies.files import checked_folder, name_from, study_folder
from studies.job import Job
from studies.ledger import Ledger, Trial
from studies.llm import LlmOptions, StudyAdvisor, consultant_of, notes_on
from studies.oracles import Oracle, SurrogateOracle
from studies.progress import Progress, silent
from studies.queue import Queue
from studies.spending import share, spend
from studies.storage import in_one_sentence, storage_address
from studies.taught import TAUGHT, taught_json
from studies.told import Told, projected_again, told_to
from studies.transfer import other_study, transferred
from studies.turns import JUST_KILLED_S, only_driver
from studies.wording import describe

DEFAULT_TRIALS = 64
SHORTLIST = 5
KEPT = 4096
"""Best configs of the ranking that shortlist and trials choose from."""


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How a study is run; None where the input or the default decides."""

    out: Path = Path("results")
    storage: str | None = None
    trials: int | None = None
    seed: int | None = None
    shortlist_size: int = SHORTLIST
    from_study: str | None = None
    crew: Crew = field(default_factory=Crew)
    llm: LlmOptions | None = None
    oracle_of: Callable[[Job], Oracle] = SurrogateOracle


@dataclass(frozen=True, kw_only=True)
class Study:
    """A finished study: the ranking of the space, the trials and the proposals refused as illegal.

    ``shortlist`` are configs for real runs, best first; ``llm`` is what a model cost and
    contributed, None where none was named. ``told`` are real runs of the job: ``job``, the ranking
    and the trials are then as projected with what they taught, whatever the storage keeps.
    """

    job: Job
    name: str
    storage: str
    folder: Path
    space: Space
    ranking: Ranking
    trials: tuple[Trial, ...]
    illegal: tuple[dict[str, Any], ...]
    shortlist: tuple[TrainingConfig, ...]
    notes: tuple[str, ...] = field(default=())
    llm: dict[str, Any] | None = None
    told: Told | None = None

    @property
    def fitting(self) -> list[Trial]:
        """Trials that may be recommended: they fit and did not fail when they were run."""
        failed = set(self.job.failed)
        return [trial for trial in self.trials if trial.fits and trial.config not in failed]

    @property
    def rejected_by_memory(self) -> int:
        """Trials that memory refuses."""
        return sum(trial.memory_gib is not None and trial.memory_gib > 0 for trial in self.trials)

    @property
    def best(self) -> Trial:
        """The trial of the highest expected throughput that fits and lies in the space.

        Raises:
            InfeasibleError: no trial does.
        """
        candidates = [t for t in self.fitting if self.space.allows(t.config)]
        if not candidates:
            crashes = [t.details["crash"] for t in self.trials if "crash" in t.details]
            failed = (
                f" ({len(crashes)} could not be evaluated: {crashes[0].rstrip('.')})"
                if crashes
                else ""
            )
            raise InfeasibleError(
                f"none of the {len(self.trials)} trials fits{failed}; allow more with --trials."
            )
        return max(candidates, key=lambda trial: trial.expected)

    @property
    def baseline(self) -> Trial | None:
        """The trial of the baseline; None where the baseline is illegal on this cluster."""
        key = config_key(self.job.baseline)
        return next((t for t in self.trials if config_key(t.config) == key), None)


def run_study(job: Job, options: StudyOptions, progress: Progress = silent) -> Study:
    """Runs the study of a job until it has ``trials`` trials in all, or resumes it.

    Nothing is written before it is known that some config fits.

    Raises:
        InputError: an option cannot be used or the storage cannot be opened.
        InfeasibleError: no config is legal, or none fits.
    """
    settings = job.experiment.settings
    check_baseline(job)
    trials = options.trials or settings.trials or DEFAULT_TRIALS
    seed = settings.seed if options.seed is None else options.seed
    name = name_from(job.experiment.name)
    checked_folder(options.out)
    study_folder(options.out, name)
    address = storage_address(options.storage, options.out / "foretune.db")
    space = Space.of(job.experiment, job.cluster, full=True)
    told = told_to(job, address, name)
    ranking = rank_space(told.job(job) if told else job, space, progress)
    oracle = options.oracle_of(job)
    inputs = study_inputs(job, space, oracle, seed or 0)
    if options.llm is not None:
        check_alone(options.crew)
        inputs["llm"] = options.llm.identity()
    anchor, anchor_notes = anchor_of(job, ranking)
    notes = (*job.notes, *anchor_notes)
    llm: dict[str, Any] | None = None
    turn = only_driver(address, options.out / name, name, JUST_KILLED_S)
    with turn as held, in_one_sentence(address):
        ledger = Ledger.open(address, name, inputs)
        ledger.describe({"notes": list(notes), TAUGHT: taught_json(job)})
        seeds = _legal_seeds(job, seed_sweep(anchor, space.axes), ledger)
        if options.from_study is not None:
            other = other_study(options.from_study, address)
            seeds[1:1] = transferred(job, space, ranking.table, other)
        plan = _plan(seeds, ranking, trials, options.shortlist_size)
        if options.llm is not None:
            folder = options.out / ledger.name
            with consultant_of(options.llm, inputs, trials, folder) as consultant:
                advisor = StudyAdvisor(
                    job, space, ranking.table, ledger, trials, inputs["llm"], consultant
                )
                spend(advisor.over(plan), oracle, ledger, trials, progress)
                llm = advisor.summary()
                notes = (*notes, *notes_on(llm))
                ledger.describe({"notes": list(notes)})
        elif options.crew.workers is None and not ledger.open_trials():
            spend(plan, oracle, ledger, trials, progress)
        else:
            driver = Driver(ledger, Queue(address, ledger.name), held, trials, options.crew)
            share(plan, driver, oracle, options.out / ledger.name, progress)
        if told and isinstance(oracle, SurrogateOracle):
            _keep_best(ledger, oracle, ranking)
            finished = projected_again(told.job(job), tuple(ledger.trials()))
        else:
            finished = tuple(ledger.trials())
    return Study(
        job=told.job(job) if told else job,
        name=ledger.name,
        storage=ledger.storage,
        folder=options.out / ledger.name,
        space=space,
        ranking=ranking,
        trials=finished,
        illegal=tuple(ledger.illegal()),
        shortlist=shortlisted(ranking, options.shortlist_size),
        notes=(
            *notes,
            *([told.sentence] if told else []),
            *([ledger.note] if ledger.note else []),
        ),
        llm=llm,
        told=told,
    )


def shortlisted(ranking: Ranking, size: int = SHORTLIST) -> tuple[TrainingConfig, ...]:
    """The configs of a ranking for real runs, best first."""
    return tuple(ranking.table.config(row) for row in shortlist(ranking, size))


def _keep_best(ledger: Ledger, oracle: Oracle, ranking: Ranking) -> None:
    """Adds the best of the ranking to the trials, one beyond ``--trials`` where need be: runs that
    were told since have changed which one that is."""
    best = ranking.table.config(0)
    if best not in ledger:
        reason = f"best of {ranking.legal:,} legal configs once told runs count"
        ledger.record(best, oracle.evaluate(best), "exhaustive ranking", reason)


def check_alone(crew: Crew) -> None:
    """Refuses workers beside a model.

    Raises:
        InputError: trials of many workers come in no order that a replay could repeat.
    """
    if crew.workers is not None:
        raise InputError(
            "a model proposes from the trials so far, in an order that a replay repeats; leave out "
            "--workers."
        )


def rank_space(job: Job, space: Space, progress: Progress = silent) -> Ranking:
    """The exhaustive ranking of the legal space.

    Raises:
        InfeasibleError: no config is legal, or none fits; says how many GiB are missing.
    """
    capacity = job.cluster.gpu.hbm_gib.value
    with progress("ranking the legal space", len(space)) as advance:
        ranking = rank(space, job, capacity, KEPT, advance=advance, exclude=job.failed)
    if ranking.leanest is None:
        raise InfeasibleError(f"no config of this space is legal: {space.why_empty()}")
    if not len(ranking):
        labels = describe(ranking.leanest)
        raise InfeasibleError(
            f"none of the {ranking.legal:,} legal configs fits on {job.cluster.name}: the leanest "
            f"({labels}) needs {capacity + ranking.missing_gib:,.1f} GiB a GPU, "
            f"{ranking.missing_gib:,.1f} GiB more than the {capacity:,.0f} GiB it has."
        )
    return ranking


def check_baseline(job: Job) -> None:
    """Refuses a baseline that contradicts itself, whatever the cluster and the batch.

    Raises:
        InputError: the baseline runs on no cluster; says why.
    """
    config, experiment = job.baseline, job.experiment
    if not job.why_illegal(config):
        return
    gpus = experiment.min_gpus
    nodes, rest = divmod(gpus, job.cluster.gpus_per_node)
    shape = (1, gpus) if rest else (nodes, job.cluster.gpus_per_node)
    cluster = job.cluster.model_copy(update={"num_nodes": shape[0], "gpus_per_node": shape[1]})
    batch = gpus * config.mbs * config.pp * config.vpp * 2
    workload = experiment.workload.model_copy(update={"global_batch_size": batch})
    reasons = why_illegal(config, workload, cluster, experiment.stack)
    if reasons:
        raise InputError(f"the baseline ({describe(config)}) cannot run: {' '.join(reasons)}")


def anchor_of(job: Job, ranking: Ranking) -> tuple[TrainingConfig, tuple[str, ...]]:
    """The config that the sweep is anchored at, and a note where it is not the baseline.

    A baseline that is legal elsewhere but not on this cluster gives way to the config of the
    ranking that keeps most of its axes.
    """
    reasons = job.why_illegal(job.baseline)
    if not reasons:
        return job.baseline, ()
    anchor = ranking.table.config(int(np.argmin(ranking.table.axes_changed(job.baseline))))
    return anchor, (
        f"the baseline cannot run on {job.cluster.name}: {' '.join(reasons)}",
        f"the sweep is anchored at the best config that is nearest to it: {describe(anchor)}.",
    )


def study_inputs(job: Job, space: Space, oracle: Oracle, seed: int) -> dict[str, Any]:
    """Everything that decides what a trial means: the hash of these names a study."""
    experiment = job.experiment
    return {
        "workload": experiment.workload.model_dump(mode="json"),
        "stack": experiment.stack.model_dump(mode="json"),
        "cluster": job.cluster.model_dump(mode="json"),
        "baseline": job.baseline.as_labels(),
        "axes": {
            name: [AXES[name].label(value) for value in values]
            for name, values in space.axes.items()
        },
        "oracle": oracle.name,
        "surrogate": oracle.fingerprint,
        "seed": seed,
    }


def _legal_seeds(job: Job, seeds: list[Proposal], ledger: Ledger) -> list[Proposal]:
    """The seeds that are legal; the others become notes on the study."""
    legal: list[Proposal] = []
    for proposal in seeds:
        reasons = job.why_illegal(proposal.config)
        if reasons:
            ledger.note_illegal(proposal.config, proposal.proposer, reasons)
        else:
            legal.append(proposal)
    return legal


def _plan(seeds: list[Proposal], ranking: Ranking, trials: int, reserve: int) -> Iterator[Proposal]:
    """Proposals in the order in which trials are spent.

    The sweep comes first, except for a share of the trials that is kept for the best of the
    ranking: first those of the shortlist, then more that differ, then whatever is next best.
    """
    kept = min(reserve, trials - 1)
    yield from seeds[: trials - kept]
    for size, reason in ((reserve, "shortlist"), (trials, "best of its character")):
        for row in shortlist(ranking, size, within=1.0):
            yield _ranked(ranking, row, reason)
    yield from seeds[trials - kept :]
    for row in range(len(ranking)):
        yield _ranked(ranking, row, "next best")


def _ranked(ranking: Ranking, row: int, reason: str) -> Proposal:
    text = f"{reason}: rank {row + 1} of {ranking.legal:,} legal configs"
    return Proposal(ranking.table.config(row), "exhaustive ranking", text)
