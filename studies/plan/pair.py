"""A pair of workload and cluster: the best config there, or why there is none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from search.ranking import rank
from search.space import Space
from specs.choices import Precision
from specs.config import AXES, ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.formats.plan import PlanCluster, PlanWorkload
from studies.calibrating import calibrated_by, taught_job
from studies.job import Job
from studies.oracles import data_fingerprint, learned_fingerprint
from studies.wording import describe
from surrogate.learned import Learned
from surrogate.uncertainty import TRUST

SCHEMA_VERSION = 2
State = Literal["best", "does not fit", "illegal", "bad input"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The config of the highest expected throughput of a pair, as projected."""

    config: Mapping[str, Any]
    precision: str
    words: str
    tokens_per_s_per_gpu: float
    interval90: tuple[float, float]
    fit_probability: float
    peak_gib: float
    trust: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """What is known of a pair; ``best`` is None where ``why`` says what stands in the way.

    ``in_bf16`` is the best in bf16 where the best is in another format and the axes allow it.
    ``missing_gib`` is what the leanest config needs beyond the GPU's memory where none fits.
    ``notes`` are weak points and what was assumed, one sentence each.
    """

    workload: str
    cluster: str
    num_gpus: int
    num_nodes: int
    gpu: str
    inputs_hash: str
    state: State
    best: Best | None = None
    in_bf16: Best | None = None
    why: str = ""
    missing_gib: float | None = None
    legal: int = 0
    target_tokens: float | None = None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The result as it is kept on disk."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PairResult:
        """A result that was kept.

        Raises:
            KeyError, TypeError, ValueError: it is of another version or incomplete.
        """
        fields = dict(content)
        if fields.pop("schema_version") != SCHEMA_VERSION:
            raise ValueError("another version")
        fields["notes"] = tuple(fields["notes"])
        for name in ("best", "in_bf16"):
            if fields[name] is not None:
                low, high = fields[name]["interval90"]
                fields[name] = Best(**{**fields[name], "interval90": (low, high)})
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class Pair:
    """What is to be projected; plain data that a worker process receives.

    ``calibration`` is a file that ``foretune calibrate`` wrote, None where there is none.
    """

    workload: PlanWorkload
    cluster: PlanCluster
    full: bool
    calibration: Path | None = None

    @property
    def label(self) -> str:
        """The pair in words."""
        place = self.cluster.cluster
        return f"{self.workload.name} on {self.cluster.name} ({place.num_gpus:,} GPUs)"

    def job(self) -> Job:
        """The pair as a job.

        Raises:
            InputError: the workload cannot be used, here or at all.
        """
        experiment = self.workload.on(self.cluster.cluster)
        job = Job(experiment, self.cluster.cluster, experiment.notes)
        if self.calibration is None:
            return job
        return taught_job(job, _learned(self.calibration, self.calibration.stat().st_mtime_ns))

    def inputs_hash(self) -> str:
        """A hash of everything that the outcome depends on; prices and tokens are no part of it."""
        place = self.cluster.cluster
        inputs: dict[str, Any] = {
            "cluster": place.model_dump(mode="json", exclude={"name", "price_usd_per_gpu_hour"}),
            "hypothetical": self.cluster.hypothetical,
            "full": self.full,
            "surrogate": _fingerprint(),
            "schema": SCHEMA_VERSION,
        }
        try:
            job = self.job()
            e = job.experiment
        except InputError as error:
            inputs["refused"] = str(error)
        else:
            axes = e.settings.axes.items()
            inputs |= {
                "workload": e.workload.model_dump(mode="json"),
                "stack": e.stack.model_dump(mode="json"),
                "baseline": e.baseline.as_labels(),
                "axes": {name: [AXES[name].label(v) for v in values] for name, values in axes},
                "learned": learned_fingerprint(job),
            }
        text = json.dumps(inputs, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def evaluate(pair: Pair, inputs_hash: str) -> PairResult:
    """The best config of a pair; what the pair itself makes impossible is said, not raised.

    ``inputs_hash`` is that of the pair, which whoever looked for a known result has computed.
    """
    place = pair.cluster.cluster
    about: dict[str, Any] = {
        "workload": pair.workload.name,
        "cluster": pair.cluster.name,
        "num_gpus": place.num_gpus,
        "num_nodes": place.num_nodes,
        "gpu": place.gpu.name,
        "inputs_hash": inputs_hash,
    }
    try:
        job = pair.job()
        space = Space.of(job.experiment, job.cluster, full=pair.full)
    except InputError as error:
        return PairResult(**about, state="bad input", why=str(error))
    about |= {
        "legal": len(space),
        "target_tokens": job.experiment.workload.target_tokens,
    }
    if not len(space):
        why = f"no config is legal: {space.why_empty().rstrip('.')}."
        return PairResult(**about, state="illegal", why=why)
    capacity = place.gpu.hbm_gib.value
    ranking = rank(space, job, capacity, keep=1, within=0.0)
    if not len(ranking):
        assert ranking.leanest is not None
        why = (
            f"none of {len(space):,} legal configs fits: the leanest "
            f"({describe(ranking.leanest)}) needs {ranking.missing_gib:,.1f} GiB more than the "
            f"{capacity:,.0f} GiB of a GPU."
        )
        missing = ranking.missing_gib
        return PairResult(**about, state="does not fit", why=why, missing_gib=missing)
    config = ranking.table.config(0)
    hypothetical = bool(pair.cluster.hypothetical)
    best = _best(job, config, hypothetical)
    plain = _in_bf16(job, space, config)
    return PairResult(
        **about,
        state="best",
        best=best,
        in_bf16=_best(job, plain, hypothetical) if plain else None,
        notes=_notes(job, config, pair),
    )


def _in_bf16(job: Job, space: Space, best: TrainingConfig) -> TrainingConfig | None:
    """The best config in bf16, where the best is in another format and one in bf16 fits."""
    if best.precision is Precision.BF16 or Precision.BF16 not in space.axes["precision"]:
        return None
    plain = space.narrowed_to({"precision": (Precision.BF16,)})
    ranking = rank(plain, job, job.cluster.gpu.hbm_gib.value, keep=1, within=0.0)
    return ranking.table.config(0) if len(ranking) else None


def _best(job: Job, config: TrainingConfig, hypothetical: bool) -> Best:
    seen = job.project(ConfigTable.from_configs([config]))
    trust = str(seen.trust[0])
    if hypothetical:  # No run has seen this hardware, whatever is known of the GPU it derives from.
        trust = min(trust, "extrapolated", key=TRUST.index)
    return Best(
        config=config.as_labels(),
        precision=config.precision.label,
        words=describe(config),
        tokens_per_s_per_gpu=float(seen.tokens_per_s_per_gpu[0]),
        interval90=(float(seen.lo90[0]), float(seen.hi90[0])),
        fit_probability=float(seen.fit_probability[0]),
        peak_gib=float(seen.device_gib[0]),
        trust=trust,
    )


def _notes(job: Job, config: TrainingConfig, pair: Pair) -> tuple[str, ...]:
    """Weak points of the pair, then what was assumed."""
    notes: list[str] = []
    batch, gpus = job.experiment.workload.global_batch_size, job.cluster.num_gpus
    width = fewest_gpus_a_replica(batch, gpus)
    if width > 1:
        notes.append(
            f"the global batch of {batch:,} does not divide over {gpus:,} GPUs: TP x PP x CP is "
            f"at least {width}."
        )
    microbatches = batch // (gpus // (config.tp * config.pp * config.cp) * config.mbs)
    if config.pp > 1 and microbatches < 4 * config.pp:
        notes.append(
            f"{microbatches} microbatches for {config.pp} pipeline stages: the batch is small for "
            "so many GPUs."
        )
    if pair.cluster.hypothetical:
        notes.append(f"hardware of the plan, not of the catalog: {pair.cluster.hypothetical}.")
    return (*notes, *job.notes)


def fewest_gpus_a_replica(batch: int, gpus: int) -> int:
    """The smallest TP x PP x CP with which a global batch divides over the data-parallel ranks."""
    return next(
        width for width in range(1, gpus + 1) if gpus % width == 0 and batch % (gpus // width) == 0
    )


@lru_cache(maxsize=1)
def _learned(calibration: Path, _time_ns: int) -> Learned:
    """What a calibration taught, read once by each process as long as the file stays as it is."""
    return calibrated_by(calibration)


@cache
def _fingerprint() -> str:
    return data_fingerprint()
