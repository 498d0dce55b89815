"""The Python API: what the commands do, as typed functions; ``import foretune`` offers them.

Errors that the caller can cause are ``specs.errors.InputError``, with one sentence that says what
to do, and ``specs.errors.InfeasibleError`` where no config fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specs import catalog
from specs.choices import TrainingKind
from specs.cluster import Cluster
from specs.config import AXES, TrainingConfig
from specs.errors import InputError
from specs.files import is_file
from specs.formats.cluster import read_cluster
from specs.formats.experiment import NO_FRAMEWORK, Experiment, StudySettings, usual_framework
from specs.formats.huggingface import read_huggingface
from specs.formats.reader import read_experiment
from specs.model import Model
from specs.stack import Stack
from specs.workload import Workload
from studies.files import name_from
from studies.inputs import changed, find_input, resolve
from studies.job import Job
from studies.start import started

if TYPE_CHECKING:
    from studies.plan.run import PlanResult
    from studies.result import Result


@dataclass(frozen=True)
class Projection:
    """What is projected for one config.

    Attributes:
        config: the config.
        tokens_per_s_per_gpu: expected throughput.
        interval90: its 90% interval.
        step_time_s: seconds of a training step.
        breakdown_s: seconds of a step by part; they sum to ``step_time_s``.
        mfu: model FLOP/s over the dense peak of the GPU.
        peak_gib: device memory of the fullest stage; ``capacity_gib`` is what the GPU holds.
        fits: whether it fits as likely as not; ``fit_probability`` is how likely.
        stages: memory of each pipeline stage by component, in GiB.
        trust: physics only, extrapolated, interpolated, calibrated or measured.
        notes: what was assumed, one sentence each.
    """

    config: TrainingConfig
    tokens_per_s_per_gpu: float
    interval90: tuple[float, float]
    step_time_s: float
    breakdown_s: Mapping[str, float]
    mfu: float
    peak_gib: float
    capacity_gib: float
    fits: bool
    fit_probability: float
    stages: tuple[Mapping[str, float], ...]
    trust: str
    notes: tuple[str, ...]


def workload(
    model: str | Path | Model, seq_len: int, global_batch_size: int, **fields: Any
) -> Workload:
    """What is trained.

    Args:
        model: a name of the catalog, the path of a Hugging Face ``config.json``, or a Model.
        seq_len: tokens a sequence.
        global_batch_size: sequences a step.
        fields: other fields of ``specs.workload.Workload``; ``kind`` may be its name.

    Raises:
        InputError: the model is not known or a field is not valid.
    """
    from pydantic import ValidationError

    if not isinstance(model, Model):
        path = Path(model)
        model = read_huggingface(path) if is_file(path) else catalog.model(str(model))
    if isinstance(fields.get("kind"), str):
        fields["kind"] = TrainingKind.parse(fields["kind"])
    try:
        return Workload(model=model, seq_len=seq_len, global_batch_size=global_batch_size, **fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"the workload cannot be used: {where}: {first['msg']}.") from None


def cluster(text: str | Path) -> Cluster:
    """Where it is trained: ``"64xMI355X"`` (GPUs), ``"8x8xMI355X"`` (nodes x GPUs) or a YAML.

    Raises:
        InputError: the GPU is not in the catalog or the file cannot be used.
    """
    return read_cluster(str(text))


def project(
    what: str | Path | Workload, where: Cluster | str | None = None, /, **axes: Any
) -> Projection:
    """Memory and throughput of one config before it is run.

    Args:
        what: a Primus YAML, study YAML, ``config.json``, name of a shipped study, or a workload.
        where: the cluster; that of the file, or the fewest nodes, without it.
        axes: axes of the config that differ from the baseline of ``what``, such as ``tp=2`` or
            ``schedule="interleaved"``.

    Raises:
        InputError: a part cannot be used, or the config cannot run on the cluster.
    """
    from studies.oracles import projection

    job = _job(what, where, axes, as_stated=True)
    reasons = job.why_illegal(job.baseline)
    if reasons:
        raise InputError(f"the config cannot run on {job.cluster.name}: {' '.join(reasons)}")
    content = projection(job, job.baseline)
    speed, memory = content["throughput"], content["memory"]
    low, high = speed["interval90"]
    return Projection(
        config=job.baseline,
        tokens_per_s_per_gpu=speed["tokens_per_s_per_gpu"],
        interval90=(low, high),
        step_time_s=speed["step_time_s"],
        breakdown_s=speed["breakdown_s"],
        mfu=speed["mfu"],
        peak_gib=memory["peak_gib"],
        capacity_gib=memory["capacity_gib"],
        fits=memory["fits"],
        fit_probability=memory["fit_probability"],
        stages=tuple(memory["stages"]),
        trust=speed["trust"],
        notes=job.notes,
    )


def tune(
    what: str | Path | Workload,
    where: Cluster | str | None = None,
    /,
    *,
    out: str | Path = "results",
    storage: str | None = None,
    trials: int | None = None,
    seed: int | None = None,
    narrow: Mapping[str, Any] | None = None,
    **axes: Any,
) -> Result:
    """The main job: searches the legal space and writes the study, launch files and pictures.

    Args:
        what: as in ``project``.
        where: as in ``project``.
        out: folder of results.
        storage: where trials are kept; ``out/foretune.db`` without it.
        trials: of the study in all.
        seed: of every draw.
        narrow: axis -> its only value, or the list of its values, for a workload.
        axes: axes of the baseline.

    Returns:
        Baseline, best config, shortlist and what each change brings.

    Raises:
        InputError: a part cannot be used.
        InfeasibleError: no config is legal, or none fits.
    """
    from studies.outputs import write_files, write_result
    from studies.result import result_of
    from studies.showcase import show_study
    from studies.storage import storage_address
    from studies.training import StudyOptions, run_study

    folder = Path(out)
    job = started(_job(what, where, axes, narrow))
    options = StudyOptions(out=folder, storage=storage, trials=trials, seed=seed)
    result = result_of(run_study(job, options), seed or 0)
    result, files = write_files(result)
    address = storage_address(storage, folder / "foretune.db")
    drawn = show_study(address, folder, result.as_json(files), files)
    write_result(result, [*files, *drawn])
    return result


def plan(
    what: str | Path,
    *,
    out: str | Path = "results",
    full: bool | None = None,
    jobs: int | None = None,
    calibration: str | Path | None = None,
) -> PlanResult:
    """Weighs many workloads on many clusters, each pair once: JSON of ``foretune plan`` and more.

    Args:
        what: a plan YAML or the name of a shipped plan.
        out: folder of results, from which finished pairs are taken up again.
        full: vary every axis, or the core ones only; None: as the plan says.
        jobs: worker processes; one a core without it. More than one need a main module that can be
            imported (``if __name__ == "__main__":`` in a script).
        calibration: a file that ``calibrate`` wrote.

    Raises:
        InputError: the plan cannot be used.
        InfeasibleError: no config runs on any pair.
    """
    from studies.plan.files import find_plan, write_files
    from studies.plan.run import run_plan

    file = Path(calibration) if calibration else None
    result = run_plan(find_plan(str(what)), Path(out), full, jobs, calibration=file)
    write_files(result)
    return result


def validate(
    runs: str | Path,
    models: str | Path | None = None,
    *,
    gpus: str | Path | None = None,
    calibration: str | Path | None = None,
    calibrate: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """Errors of throughput, memory and ranking against measured runs: JSON of ``validate``.

    Args:
        runs: a CSV of measured runs.
        models: a ``models.json`` with models that the catalog does not know.
        gpus: a YAML file with GPUs that the catalog does not know.
        calibration: a file that ``calibrate`` wrote.
        calibrate: runs of each fold that are revealed first.
        seed: of the draws.

    Raises:
        InputError: a file cannot be used.
    """
    from studies.accuracy import read_table, validation_json
    from studies.calibrating import calibrated_by

    table = read_table(Path(runs), Path(models) if models else None, Path(gpus) if gpus else None)
    learned = calibrated_by(Path(calibration) if calibration else None)
    return validation_json(table, learned, calibrate, seed)


def calibrate(
    runs: str | Path,
    out: str | Path,
    models: str | Path | None = None,
    gpus: str | Path | None = None,
) -> dict[str, Any]:
    """Learns from measured runs, from a single one on, and writes a calibration.

    Args:
        runs: a CSV of measured runs.
        out: the file to write.
        models: a ``models.json`` with models that the catalog does not know.
        gpus: a YAML file with GPUs that the catalog does not know.

    Returns:
        Errors before and after, which constants moved and which runs disagree.

    Raises:
        InputError: a file cannot be used, or no run has a throughput.
    """
    from studies import calibrating
    from studies.accuracy import read_table
    from studies.files import checked_file
    from surrogate.calibration_file import write_calibration

    checked_file(Path(out), "out", [runs, models, gpus])
    table = read_table(Path(runs), Path(models) if models else None, Path(gpus) if gpus else None)
    calibration, report = calibrating.calibrate(table, Path(runs), date.today().isoformat())
    write_calibration(Path(out), calibration)
    return report


def _job(
    what: str | Path | Workload,
    where: Cluster | str | None,
    axes: Mapping[str, Any],
    narrow: Mapping[str, Any] | None = None,
    as_stated: bool = False,
) -> Job:
    settings = {name: str(value) for name, value in axes.items()}
    if not isinstance(what, Workload):
        if narrow:
            raise InputError("narrow is for workloads; write axes into the study YAML.")
        if isinstance(where, Cluster):
            placed = changed(read_experiment(find_input(str(what))), settings).on(where)
            return Job(placed, where, placed.notes)
        return resolve(str(what), where, None, settings, as_stated=as_stated)
    return job_of_workload(what, where, settings, narrow)


def job_of_workload(
    what: Workload,
    where: Cluster | str | None,
    settings: Mapping[str, str],
    narrow: Mapping[str, Any] | None = None,
) -> Job:
    """The job of a workload that no file describes: axes as text, ``narrow`` as in ``tune``."""
    if where is None:
        raise InputError("a workload needs a cluster, for example '8x8xMI355X'.")
    place = where if isinstance(where, Cluster) else read_cluster(where)
    framework, name = usual_framework(place.gpu.vendor)
    experiment = Experiment(
        name=name_from(f"{what.model.name}_{place.name}"),
        workload=what,
        stack=Stack(framework=framework, framework_name=name),
        baseline=TrainingConfig(),
        stated=frozenset(),
        cluster=place,
        settings=StudySettings(axes=_narrowed(narrow or {})),
    )
    notes = (f"{NO_FRAMEWORK}; {name} is assumed.",)
    return Job(changed(experiment, settings), place, notes)


def _narrowed(narrow: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Axis -> the values that it may take."""
    unknown = [name for name in narrow if name not in AXES]
    if unknown:
        raise InputError(f"there is no axis {unknown[0]!r}; the axes are {', '.join(AXES)}.")
    return {
        name: tuple(
            AXES[name].parse(value)
            for value in (values if isinstance(values, list | tuple) else [values])
        )
        for name, values in narrow.items()
    }
