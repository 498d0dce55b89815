"""Real runs of a job: what was asked, what came back, and what follows from it.

They live in the Optuna study ``NAME/measured``. A run that was asked is RUNNING until it is told;
its trial number is how a person names it. Told runs are final, as Optuna wants it: telling the same
again changes nothing, telling something else needs ``again`` and becomes a repeat. An OOM is a
complete trial of value 0 with a violated memory constraint; a crash is a failed one; a lost run is
a failed one whose config may be asked again, and which may still be told later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from search.config_pool import ConfigPool, config_pool, described
from search.distributions import config_key, distributions, parameters
from search.evidence import LOST, MEMORY_CONSTRAINT, PEAK_KNOWN
from search.pool_sampler import Judged, PoolSampler
from search.prior import Expert
from search.space import Space
from search.transfer import Source
from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.runs import RunTable
from specs.text import one_line
from studies.calibrating import with_out_of_memory
from studies.job import Job
from studies.ledger import changed_inputs, input_hash
from studies.oracles import UNKNOWN_OVER_GIB
from studies.run_limits import check_possible
from studies.storage import StorageAddress, open_storage
from surrogate.cases import Cases
from surrogate.learned import Learned
from surrogate.memory_calibration import MemoryFacts
from surrogate.memory_jobs import refuted_by

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

ASK = "ask"
"""Proposer of runs that the acquisition chose."""
SAME = 1e-3
"""Two results that agree to this fraction are one result told twice."""
COUNTERS = ("device", "reserved", "allocated")
STANDS_FOR_BASELINE = "stands_for_baseline"
"""User attribute of a run asked in place of a baseline that does not fit."""
MEASURED = "/measured"
"""Suffix of the study that keeps real runs."""
FINISHED, OUT_OF_MEMORY, CRASHED = "measured", "out of memory", "crashed"
TOLD = (FINISHED, OUT_OF_MEMORY, CRASHED)
"""States of a run of which something came back."""


LONGEST_REASON = 300
"""Characters kept of why a run crashed: a sentence, not a log."""


@dataclass(frozen=True)
class Outcome:
    """What came back from a run; exactly one of throughput, OOM, crash and lost.

    ``peak_gib`` is the peak of the fullest GPU by ``counter``, None where nobody read it.
    """

    tokens_per_s_per_gpu: float | None = None
    peak_gib: float | None = None
    counter: str = "device"
    out_of_memory: bool = False
    crash: str = ""
    lost: bool = False
    source: str = "told by hand"

    def __post_init__(self) -> None:
        """What people and logs say is kept as one printable line."""
        object.__setattr__(self, "crash", one_line(self.crash, LONGEST_REASON))
        object.__setattr__(self, "source", one_line(self.source, LONGEST_REASON))

    def check(self) -> None:
        """Raises InputError where the outcome contradicts itself or holds no usable number."""
        kinds = [
            self.tokens_per_s_per_gpu is not None,
            self.out_of_memory,
            bool(self.crash),
            self.lost,
        ]
        if sum(kinds) != 1:
            raise InputError(
                "tell one thing of a run: its tokens/s/GPU, that it ran out of memory, that it "
                "crashed, or that it is lost."
            )
        for value, what in ((self.tokens_per_s_per_gpu, "tokens/s/GPU"), (self.peak_gib, "peak")):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"the {what} is {value:g}; tell a positive number.")
        if self.counter not in COUNTERS:
            raise InputError(f"the counter is {self.counter!r}; use one of {', '.join(COUNTERS)}.")


@dataclass(frozen=True)
class AskedRun:
    """A run of the study, asked or told; ``proposer`` is who wanted it.

    ``counter`` is what ``peak_gib`` was read from.
    """

    number: int
    config: TrainingConfig
    state: str
    reason: str
    tokens_per_s_per_gpu: float | None
    peak_gib: float | None
    expected: Mapping[str, Any]
    proposer: str = ASK
    counter: str = "device"

    def as_json(self) -> dict[str, Any]:
        """The run as JSON."""
        return {
            "run": self.number,
            "state": self.state,
            "reason": self.reason,
            "proposer": self.proposer,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "peak_gib": self.peak_gib,
            "counter": self.counter,
            "expected": dict(self.expected),
            "config": self.config.as_labels(),
        }


class RealRuns:
    """The measured study of a job, opened for writing."""

    def __init__(self, job: Job, study: Study, note: str, source: Source | None = None) -> None:
        self.job, self._study, self.note, self._source = job, study, note, source
        self.name = study.study_name

    @classmethod
    def open(
        cls,
        job: Job,
        address: StorageAddress,
        name: str,
        source: Source | None = None,
        create: bool = True,
    ) -> RealRuns:
        """The study ``name/measured``; one named after the inputs where they changed.

        ``source`` are the measured runs of another study, to learn from.

        Raises:
            InputError: the storage cannot be opened, or nothing was asked yet and not ``create``.
        """
        import optuna

        storage = open_storage(address)
        inputs = measured_inputs(job)
        digest = input_hash(inputs)
        known = {summary.study_name for summary in optuna.get_all_study_summaries(storage)}
        wanted, note = name + MEASURED, ""
        if wanted in known:
            held = optuna.load_study(study_name=wanted, storage=storage).user_attrs
            if held.get("input_hash", digest) != digest:
                what = ", ".join(changed_inputs(held.get("inputs", {}), inputs))
                note = f"{what} changed since {wanted!r} was asked: its runs say nothing here."
                wanted = f"{name}-{digest[:8]}{MEASURED}"
        if wanted not in known and not create:
            raise InputError(f"{note or 'no run was asked yet:'} begin with foretune ask.")
        study = optuna.create_study(
            study_name=wanted, storage=storage, direction="maximize", load_if_exists=True
        )
        for key, value in (("inputs", inputs), ("input_hash", digest)):
            if study.user_attrs.get(key) != value:
                study.set_user_attr(key, value)
        return cls(job, study, note, source)

    def pool(self, space: Space, seed: int = 0, extra: Sequence[TrainingConfig] = ()) -> ConfigPool:
        """The configs that may be asked, as projected before any run of this job was known.

        The baseline and ``extra`` belong to them whatever the space.

        What the runs teach is the sampler's to find: projections calibrated on the same runs would
        count them twice.
        """
        capacity = self.job.cluster.gpu.hbm_gib.value
        job, added = self.job, list(dict.fromkeys([*self._legal_baseline(), *extra]))
        return config_pool(space, job, capacity, cases=job.cases, extra=added, seed=seed)

    @property
    def study(self) -> Study:
        """The Optuna study."""
        return self._study

    def judged(self, pool: ConfigPool, seed: int = 0, expert: Expert | None = None) -> Judged:
        """What is thought of every config now; runs that are out count as run.

        ``expert`` is an opinion on configs, which counts as far as it was right before.
        """
        sources = [self._source] if self._source is not None else []
        sampler = PoolSampler(pool, sources=sources, expert=expert, seed=seed)
        return sampler.judged(self._study)

    def _legal_baseline(self) -> list[TrainingConfig]:
        baseline = self.job.baseline
        return [] if self.job.why_illegal(baseline) else [baseline]

    def needs_baseline(self) -> bool:
        """Whether the baseline is legal and neither it nor a stand-in was asked or told."""
        held = [t.user_attrs for t in self._trials() if not t.user_attrs.get(LOST)]
        keys = {attributes.get("config_key") for attributes in held}
        stood_for = any(attributes.get(STANDS_FOR_BASELINE) for attributes in held)
        asked = config_key(self.job.baseline) in keys or stood_for
        return bool(self._legal_baseline()) and not asked

    def ask(
        self,
        config: TrainingConfig,
        reason: str,
        expected: Mapping[str, Any],
        stands_for_baseline: bool = False,
        proposer: str = ASK,
    ) -> int:
        """Records that a config is to be run; gives the number of the run.

        ``stands_for_baseline``: it runs in place of a baseline that does not fit.
        """
        from optuna.trial import TrialState, create_trial

        trial = create_trial(
            state=TrialState.RUNNING,
            params=parameters(config),
            distributions=dict(distributions()),
            user_attrs={
                **described(config),
                "proposer": proposer,
                "reason": reason,
                "expected": dict(expected),
                STANDS_FOR_BASELINE: stands_for_baseline,
            },
        )
        self._study.add_trial(trial)
        return self._trials()[-1].number

    def check(self, number: int, outcome: Outcome, again: bool = False) -> FrozenTrial:
        """The trial of a run that this may be told of.

        Raises:
            InputError: there is no such run, nothing can have been measured like this, or another
                result was told and not ``again``.
        """
        outcome.check()
        trials = self._trials()
        if not 0 <= number < len(trials):
            raise InputError(f"there is no run {number}; {self.name!r} has {len(trials)} runs.")
        trial = trials[number]
        check_possible(self.job, TrainingConfig.from_labels(trial.user_attrs["config"]), outcome)
        known = trial.state.is_finished() and not trial.user_attrs.get(LOST)
        if known and not (again or outcome.lost or _same(trial, outcome)):
            raise InputError(
                f"run {number} was told {_told(trial)} before; tell it with --again to keep the "
                "new result as a repeat beside it."
            )
        return trial

    def tell(self, number: int, outcome: Outcome, again: bool = False) -> str:
        """Records what came back; gives one sentence of what that did.

        Raises:
            InputError: see ``check``.
        """
        from optuna.trial import TrialState

        trial = self.check(number, outcome, again)
        if trial.state is TrialState.RUNNING:
            self._finish(trial, outcome)
            return f"run {number}: {_words(outcome)}."
        if outcome.lost:
            return f"run {number} was told already, so it is not lost: nothing changed."
        if trial.user_attrs.get(LOST):
            repeat = self._repeat(trial, outcome, "told after it was given up")
            return f"run {number} had been given up; its result is kept as run {repeat}."
        if not again:
            return f"run {number} was told this already: nothing changed."
        repeat = self._repeat(trial, outcome, f"repeat of run {number}")
        return f"kept as run {repeat}, a repeat of run {number}: {_words(outcome)}."

    def _repeat(self, trial: FrozenTrial, outcome: Outcome, reason: str) -> int:
        config = TrainingConfig.from_labels(trial.user_attrs["config"])
        number = self.ask(config, reason, trial.user_attrs.get("expected", {}))
        self._finish(self._trials()[number], outcome)
        return number

    def _finish(self, trial: FrozenTrial, outcome: Outcome) -> None:
        """Writes attributes and constraint first: a process killed here leaves the run open."""
        from optuna.trial import Trial, TrialState

        live = Trial(self._study, trial._trial_id)
        live.set_user_attr("source", outcome.source)
        if outcome.crash or outcome.lost:
            live.set_user_attr(LOST, outcome.lost)
            live.set_user_attr("crash", outcome.crash)
            self._study.tell(trial.number, state=TrialState.FAIL)
            return
        config = TrainingConfig.from_labels(trial.user_attrs["config"])
        over = self._over_gib(config, outcome)
        live.set_user_attr(PEAK_KNOWN, outcome.peak_gib is not None)
        live.set_user_attr("peak_gib", outcome.peak_gib)
        live.set_user_attr("counter", outcome.counter)
        live.set_user_attr("out_of_memory", outcome.out_of_memory)
        if MEMORY_CONSTRAINT not in live.constraints:
            live.set_constraint(MEMORY_CONSTRAINT, over)
        self._study.tell(trial.number, outcome.tokens_per_s_per_gpu or 0.0)

    def _over_gib(self, config: TrainingConfig, outcome: Outcome) -> float:
        """Peak device memory less capacity, GiB: above 0 for an OOM only."""
        capacity = self.job.cluster.gpu.hbm_gib.value
        if outcome.out_of_memory:
            return UNKNOWN_OVER_GIB
        if outcome.peak_gib is None:
            return 0.0
        seen = self.job.project(ConfigTable.from_configs([config]))
        same_counter = float(getattr(seen, f"{outcome.counter}_gib")[0])
        device_gib = float(seen.device_gib[0]) * outcome.peak_gib / same_counter
        return min(device_gib - capacity, 0.0)  # it ran, so it fits

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def runs(self) -> list[AskedRun]:
        """Every run in the order of its number."""
        return [asked_run(trial) for trial in self._trials()]

    def table(self) -> RunTable | None:
        """Told throughputs as measured runs; None where there is none."""
        known = [run for run in self.runs() if run.tokens_per_s_per_gpu]
        return run_table(self.job, known) if known else None

    def learned(self) -> Learned:
        """What is believed of the job, calibrated on the throughputs of its runs.

        Peaks are left to ``judged``, which learns from them config by config: they must not count
        twice.
        """
        table = self.table()
        return self.job.belief if table is None else self.job.belief.calibrated(table)

    def taught(self) -> Learned:
        """``learned`` with the peaks and OOMs of its runs: what all else is projected with."""
        table = self.table()
        learned = self.learned() if table is None else self.learned().with_peaks(table)
        refuted = self.refuted()
        out = [run for run in self._out_of_memory() if run.number not in refuted]
        finished = [run for run in self.runs() if run.state == FINISHED]
        facts = MemoryFacts.of_finished(*self._named(finished))
        if out:
            facts = facts.merged(MemoryFacts.of_out_of_memory(*self._named(out)))
        return with_out_of_memory(learned, facts)

    def _named(self, runs: Sequence[AskedRun]) -> tuple[Cases, list[str]]:
        """Runs as cases, and their names."""
        table = ConfigTable.from_configs([run.config for run in runs])
        return self.job.cases(table), [run_id(self.job, run) for run in runs]

    def _out_of_memory(self) -> list[AskedRun]:
        return [run for run in self.runs() if run.state == OUT_OF_MEMORY]

    def refuted(self) -> dict[int, int]:
        """Runs out of memory that teach nothing of memory, each with the finished run that is
        projected to need no less (``refuted_by``); by number."""
        out = self._out_of_memory()
        finished = [run for run in self.runs() if run.state == FINISHED]
        both = [*out, *finished]
        if not out or not finished:
            return {}
        cases = self.job.cases(ConfigTable.from_configs([run.config for run in both]))
        rows = np.arange(len(both))
        found = refuted_by(cases, rows[: len(out)], rows[len(out) :])
        return {both[row].number: both[other].number for row, other in found.items()}

    @property
    def refutations(self) -> str:
        """``refuted`` in a sentence; empty where there is none."""
        words = [
            f"run {number} ran out of memory and run {other}, which is projected to need no less, "
            "did not"
            for number, other in self.refuted().items()
        ]
        return f"{'; '.join(words)}: memory learns nothing from that." if words else ""


def measured_inputs(job: Job) -> dict[str, Any]:
    """What a measurement depends on: another value makes it a measurement of something else."""
    experiment = job.experiment
    return {
        "workload": experiment.workload.model_dump(mode="json"),
        "stack": experiment.stack.model_dump(mode="json"),
        "cluster": job.cluster.model_dump(mode="json"),
    }


def run_id(job: Job, run: AskedRun) -> str:
    """The name of a run in tables and calibrations."""
    return f"{job.experiment.name}-{run.number}"


def run_table(job: Job, runs: list[AskedRun]) -> RunTable:
    """Told runs in the columns of measured runs."""
    count = len(runs)
    experiment, gpu = job.experiment, job.cluster.gpu

    def same(value: Any) -> Any:
        return np.array([value] * count, dtype=object)

    peaks = [run.peak_gib if run.peak_gib is not None else np.nan for run in runs]
    return RunTable(
        config=ConfigTable.from_configs([run.config for run in runs]),
        workloads=(experiment.workload,) * count,
        clusters=(job.cluster,) * count,
        stacks=(experiment.stack,) * count,
        row=np.arange(count),
        run_id=np.array([run_id(job, run) for run in runs], dtype=object),
        source=same(experiment.name),
        publisher=same(experiment.name),
        model=same(experiment.workload.model.name),
        gpu=same(gpu.name),
        vendor=same(gpu.vendor),
        framework=same(experiment.stack.framework_name),
        version=same(experiment.stack.version),
        tokens_per_s_per_gpu=np.array([run.tokens_per_s_per_gpu for run in runs], dtype=float),
        throughput_from=same("tokens"),
        peak_memory_gib=np.array(peaks, dtype=float),
        memory_counter=np.array([run.counter for run in runs], dtype=object),
        out_of_memory=np.zeros(count, dtype=bool),
        recompute_unknown=np.zeros(count, dtype=bool),
        unstated=np.full(count, "", dtype=object),
        batch_assumed=np.zeros(count, dtype=bool),
        refused=(),
        defaults={},
    )


def asked_run(trial: FrozenTrial) -> AskedRun:
    """A trial of a measured study as a run."""
    attributes = trial.user_attrs
    state = trial.state.name.lower()
    if state == "fail":
        state = "lost" if attributes.get(LOST) else "crashed"
    elif state == "complete":
        state = "out of memory" if attributes.get("out_of_memory") else "measured"
    value = trial.value if state == "measured" else None
    return AskedRun(
        number=trial.number,
        config=TrainingConfig.from_labels(attributes["config"]),
        state=state,
        reason=attributes.get("reason", ""),
        tokens_per_s_per_gpu=value,
        peak_gib=attributes.get("peak_gib"),
        expected=attributes.get("expected", {}),
        proposer=str(attributes.get("proposer", ASK)),
        counter=str(attributes.get("counter", "device")),
    )


def _same(trial: FrozenTrial, outcome: Outcome) -> bool:
    """Whether a told trial already says this."""
    run = asked_run(trial)
    if outcome.crash:
        return run.state == "crashed"
    if outcome.out_of_memory:
        return run.state == "out of memory"
    if run.tokens_per_s_per_gpu is None or outcome.tokens_per_s_per_gpu is None:
        return False
    ratio = outcome.tokens_per_s_per_gpu / run.tokens_per_s_per_gpu
    return abs(ratio - 1.0) <= SAME


def _told(trial: FrozenTrial) -> str:
    run = asked_run(trial)
    return f"{run.tokens_per_s_per_gpu:g} tokens/s/GPU" if run.tokens_per_s_per_gpu else run.state


def _words(outcome: Outcome) -> str:
    if outcome.lost:
        return "given up, it may be asked again"
    if outcome.out_of_memory:
        return "out of memory"
    if outcome.crash:
        return f"crashed ({outcome.crash}), it will not be asked again"
    peak = f", peak {outcome.peak_gib:g} GiB {outcome.counter}" if outcome.peak_gib else ""
    return f"{outcome.tokens_per_s_per_gpu:g} tokens/s/GPU{peak}"
