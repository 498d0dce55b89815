"""Results of real runs from files: a result file of ``measure.sh``, or a training log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.config import TrainingConfig
from specs.errors import InputError
from specs.files import input_file, is_file
from specs.model import Model
from studies.job import Job
from studies.real_runs import COUNTERS, Outcome

LARGEST_FILE_BYTES = 1 << 20


class ResultFile(BaseModel):
    """What ``measure.sh`` writes."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    schema_version: int = Field(ge=1, le=1)
    run: int = Field(ge=0)
    study: str
    exit_code: int
    out_of_memory: bool
    step_time_s: float | None = Field(gt=0)
    tokens_per_s_per_gpu: float | None = Field(gt=0)
    log: str = ""


class OtherRun(InputError):
    """A log is of another job or config than the run that it is told of."""


def read_result(
    job: Job,
    study: str,
    path: Path,
    number: int | None,
    configs: Mapping[int, TrainingConfig] | None = None,
) -> tuple[int, Outcome]:
    """(run, outcome) of a file.

    A log beside a result file is read as well: it knows the peak, and the steady steps better.

    Args:
        job: of the run.
        study: name of the measured study that the file must belong to.
        path: a result file, or a training log.
        number: the run, where the file is a log; a result file names its own.
        configs: those of the runs by number, which a log must agree with.

    Raises:
        InputError: the file cannot be read, belongs to another study or run, or says nothing.
    """
    configs = configs or {}
    found = _result_file(path)
    if found is None:
        if number is None:
            raise InputError(f"{path} does not say which run it is of; give --run N.")
        return number, log_outcome(job, path, configs.get(number))
    if found.study != study:
        raise InputError(f"{path} belongs to {found.study!r}, not to {study!r}.")
    if number is not None and number != found.run:
        raise InputError(f"{path} is of run {found.run}, not of run {number}.")
    log = path.parent / Path(found.log).name if found.log else None
    if log is not None and is_file(log):
        try:
            return found.run, log_outcome(job, log, configs.get(found.run))
        except OtherRun:
            raise
        except InputError:
            pass  # a log in a format that nobody knows: the result file speaks for itself
    return found.run, _outcome(found, path)


def _result_file(path: Path) -> ResultFile | None:
    """The file as a result file; None where it is something else."""
    try:
        with input_file(path, again=True).open("rb") as file:
            text = file.read(LARGEST_FILE_BYTES + 1)
        if len(text) > LARGEST_FILE_BYTES:
            return None
        content: Any = json.loads(text)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        return None
    try:
        return ResultFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise InputError(f"{path} is no result of a run: {where}: {first['msg']}.") from None


def _outcome(found: ResultFile, path: Path) -> Outcome:
    if found.out_of_memory:
        return Outcome(out_of_memory=True, source=path.name)
    if found.tokens_per_s_per_gpu is not None:
        return Outcome(tokens_per_s_per_gpu=found.tokens_per_s_per_gpu, source=path.name)
    if found.exit_code != 0:
        return Outcome(crash=f"exit code {found.exit_code}", source=path.name)
    raise InputError(
        f"{path} ended well but holds no time of a step; tell the number with --speed."
    )


def log_outcome(job: Job, path: Path, config: TrainingConfig | None = None) -> Outcome:
    """What a training log says: tokens/s/GPU of its steady steps and the peak, or an OOM.

    Raises:
        OtherRun: the log states another job, or another config than ``config``.
        InputError: the log is in no known format or says neither.
    """
    from collectors.ingestion import ingest

    runs = ingest(path, {}).runs
    if len(runs) != 1:
        raise InputError(f"{path} holds {len(runs)} runs; give the log of one.")
    row = runs[0].row
    _check_same(job, config, runs[0].row, runs[0].model, path)
    if runs[0].out_of_memory:
        return Outcome(out_of_memory=True, source=path.name)
    speed = _number(row, "tokens_per_s_per_gpu")
    step_s = _number(row, "step_time_s")
    if step_s:
        tokens = job.experiment.workload.tokens_per_step
        speed = tokens / job.cluster.num_gpus / step_s
    if not speed:
        raise InputError(f"{path} tells no time of a step; tell the number with --speed.")
    peak, counter = _number(row, "peak_mem_gb"), row.get("memory_counter", "")
    if counter not in COUNTERS:
        peak, counter = None, "device"
    return Outcome(tokens_per_s_per_gpu=speed, peak_gib=peak, counter=counter, source=path.name)


def _check_same(
    job: Job,
    config: TrainingConfig | None,
    row: dict[str, str],
    model: Model | None,
    path: Path,
) -> None:
    """Refuses a log that states other sizes; what it does not state is taken as right."""
    workload = job.experiment.workload
    expected = {
        "num_gpus": job.cluster.num_gpus,
        "seq_len": workload.seq_len,
        "gbs": workload.global_batch_size,
    }
    if config is not None:
        expected |= {name: getattr(config, name) for name in ("tp", "pp", "cp", "ep", "mbs")}
    stated = {name: _number(row, name) for name in expected}
    if model is not None:
        for name in ("num_layers", "hidden_size"):
            expected[name], stated[name] = getattr(workload.model, name), getattr(model, name)
    other = [
        f"{name} {value:g} instead of {expected[name]:g}"
        for name, value in stated.items()
        if value and value != expected[name]
    ]
    if other:
        raise OtherRun(
            f"{path} is the log of another run: it states {', '.join(other)}; "
            "give the log of this run, or tell the number with --speed."
        )


def _number(row: dict[str, str], name: str) -> float | None:
    text = row.get(name, "")
    return float(text) if text else None
