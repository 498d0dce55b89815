"""A calibration as a JSON file.

Every run carries a checksum of its labels and numbers: a run may be taken out of a file, but one
that was edited is refused, for what it says of other runs hangs on its labels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs.errors import InputError
from specs.files import input_file
from surrogate.calibration import LARGEST_LOG_ERROR, Calibration
from surrogate.calibration_prior import LABELS
from surrogate.constants import write_json
from surrogate.features import FEATURES
from surrogate.memory_calibration import FailedRun, MemoryFacts, Peak
from surrogate.time_rates import BELIEFS

SCHEMA_VERSION: Literal[3] = 3

_LogError = Annotated[float, Field(ge=-LARGEST_LOG_ERROR, le=LARGEST_LOG_ERROR)]
_Coordinate = Annotated[float, Field(gt=-1e6, lt=1e6)]


class _Run(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run_id: str
    log_error: _LogError
    scatter: Annotated[float, Field(gt=0, le=LARGEST_LOG_ERROR)]
    labels: dict[str, str]
    point: list[_Coordinate]
    slopes: list[_Coordinate]
    checksum: str


class _Peak(Peak):
    checksum: str


class _FailedRun(FailedRun):
    checksum: str


class _File(BaseModel):
    """Schema of a calibration file; other keys say what it was fitted on."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    schema_version: Literal[3]
    projections: str
    bias: _LogError
    bias_sd: Annotated[float, Field(ge=0, le=LARGEST_LOG_ERROR)]
    features: list[str]
    constants: list[str]
    runs: list[_Run]
    peaks: list[_Peak]
    out_of_memory: list[_FailedRun] = []


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """A calibration as data."""
    runs: Iterator[dict[str, Any]] = (
        {
            "run_id": calibration.run_ids[i],
            "log_error": round(float(calibration.errors[i]), 5),
            "scatter": round(float(calibration.scatter[i]), 5),
            "labels": {name: str(calibration.labels[name][i]) for name in LABELS},
            "point": np.round(calibration.points[i], 4).tolist(),
            "slopes": np.round(calibration.slopes[i], 5).tolist(),
        }
        for i in range(len(calibration))
    )
    peaks = calibration.peaks
    return {
        "schema_version": SCHEMA_VERSION,
        **calibration.about,
        "projections": calibration.projections,
        "bias": calibration.bias,
        "bias_sd": calibration.bias_sd,
        "features": list(FEATURES),
        "constants": list(BELIEFS),
        "runs": [_with_checksum(run) for run in runs],
        "peaks": [_with_checksum(peak) for peak in peaks.as_json()],
        "out_of_memory": [_with_checksum(run) for run in peaks.out_of_memory_json()],
    }


def read_calibration(path: Path) -> Calibration:
    """A calibration from its file.

    Raises:
        InputError: the file is missing, is no calibration, was made with other coordinates or
            constants than this version has, or a run in it was edited.
    """
    try:
        content = input_file(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the calibration {path}: {error.strerror}.") from None
    return calibration_of(content, str(path))


def calibration_of(content: bytes, name: str) -> Calibration:
    """A calibration from its JSON; ``name`` is what sentences call it.

    Raises:
        InputError: it is no calibration, was made with other coordinates or constants than this
            version has, or a run in it was edited.
    """
    try:
        file = _File.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise InputError(f"{name} is no calibration file: {where}: {first['msg']}.") from None
    if file.features != list(FEATURES) or file.constants != list(BELIEFS):
        raise InputError(f"{name} is of another version of the physics; calibrate again.")
    runs = file.runs
    sizes = (len(FEATURES), len(BELIEFS))
    if any((len(run.point), len(run.slopes)) != sizes or set(run.labels) != set(LABELS)
           for run in runs):  # fmt: skip
        raise InputError(f"{name} has a run with missing values; calibrate again.")
    told: tuple[_Run | _Peak | _FailedRun, ...] = (*runs, *file.peaks, *file.out_of_memory)
    for run in told:
        if run.checksum != _checksum(run.model_dump(exclude={"checksum"})):
            raise InputError(
                f"run {run.run_id!r} of {name} was edited: its labels and numbers are not those "
                "that were written together; calibrate again from the runs, or take it out."
            )
    return Calibration(
        points=np.array([run.point for run in runs]).reshape(-1, sizes[0]),
        labels={n: np.array([run.labels[n] for run in runs], dtype=object) for n in LABELS},
        slopes=np.array([run.slopes for run in runs]).reshape(-1, sizes[1]),
        errors=np.array([run.log_error for run in runs], dtype=np.float64),
        scatter=np.array([run.scatter for run in runs], dtype=np.float64),
        run_ids=tuple(run.run_id for run in runs),
        bias=file.bias,
        bias_sd=file.bias_sd,
        projections=file.projections,
        peaks=MemoryFacts.from_json(file.peaks, file.out_of_memory),
        about=dict(file.model_extra or {}),
    )


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Writes a calibration atomically."""
    write_json(path, calibration_json(calibration))


def _with_checksum(run: Mapping[str, Any]) -> dict[str, Any]:
    return {**run, "checksum": _checksum(run)}


def _checksum(run: Mapping[str, Any]) -> str:
    """Of everything that is said of a run, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]
