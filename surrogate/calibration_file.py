"""A calibration as a JSON file.

One checksum covers all that is computed with, and what the file says of its origin: a file that was
edited is refused, for what a run says of other runs hangs on its labels, and on which runs there
are.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from surrogate.memory_calibration import FailedRun, FinishedRun, MemoryFacts, Peak
from surrogate.time_rates import BELIEFS

SCHEMA_VERSION: Literal[6] = 6

ABOUT = ("fitted_on", "fit_date", "data_hash", "merged_from", "before", "after")
"""What a calibration file says of its origin; nothing is computed from it."""

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


class _File(BaseModel):
    """Schema of a calibration file; other keys say what it was fitted on."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    schema_version: Literal[6]
    projections: str
    bias: _LogError
    bias_sd: Annotated[float, Field(ge=0, le=LARGEST_LOG_ERROR)]
    features: list[str]
    constants: list[str]
    runs: list[_Run]
    peaks: list[Peak]
    out_of_memory: list[FailedRun]
    finished: list[FinishedRun]
    checksum: str


FIELDS = tuple(_File.model_fields)
"""What a file is computed with, and the checksum of it."""
_COVERED = set(FIELDS) - {"checksum"}


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
    content = {
        "schema_version": SCHEMA_VERSION,
        "projections": calibration.projections,
        "bias": float(calibration.bias),
        "bias_sd": float(calibration.bias_sd),
        "features": list(FEATURES),
        "constants": list(BELIEFS),
        "runs": list(runs),
        "peaks": peaks.as_json(),
        "out_of_memory": peaks.out_of_memory_json(),
        "finished": peaks.finished_json(),
    }
    checksum = _checksum({**_origin(calibration.about), **content})
    return {**calibration.about, **content, "checksum": checksum}


def read_calibration(path: Path) -> Calibration:
    """A calibration from its file.

    Raises:
        InputError: the file is missing, is no calibration, was made with other coordinates or
            constants than this version has, or was edited.
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
            version has, or was edited.
    """
    try:
        file = _File.model_validate_json(content)
        json.loads(content, object_pairs_hook=_keys_once)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        if where == "schema_version" and first["type"] == "literal_error":
            raise InputError(
                f"{name} was written by another version of foretune; calibrate again from the runs."
            ) from None
        raise InputError(f"{name} is no calibration file: {where}: {first['msg']}.") from None
    except ValueError as error:
        raise InputError(f"{name} is no calibration file: {error}.") from None
    if file.features != list(FEATURES) or file.constants != list(BELIEFS):
        raise InputError(f"{name} is of another version of the physics; calibrate again.")
    runs = file.runs
    sizes = (len(FEATURES), len(BELIEFS))
    if any((len(run.point), len(run.slopes)) != sizes or set(run.labels) != set(LABELS)
           for run in runs):  # fmt: skip
        raise InputError(f"{name} has a run with missing values; calibrate again.")
    in_memory = [peak.run_id for peak in file.peaks] + [run.run_id for run in file.out_of_memory]
    ended = [run.run_id for run in file.finished]
    twice = _repeated(run.run_id for run in runs) or _repeated(in_memory) or _repeated(ended)
    if twice:
        raise InputError(f"{name} has run {twice[0]!r} twice; calibrate again from the runs.")
    about = dict(file.model_extra or {})
    if file.checksum != _checksum({**_origin(about), **file.model_dump(include=_COVERED)}):
        raise InputError(
            f"{name} was edited: its runs and numbers are not those that were written together; "
            "calibrate again from the runs."
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
        peaks=MemoryFacts.from_json(file.peaks, file.out_of_memory, file.finished),
        about=about,
    )


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Writes a calibration atomically."""
    write_json(path, calibration_json(calibration))


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


def _keys_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that is stated twice readers would take either value."""
    twice = _repeated(key for key, _ in pairs)
    if twice:
        raise ValueError(f"{twice[0]!r} is stated twice")
    return dict(pairs)


def _origin(about: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the origin, without fields that calibrations do not have."""
    return {name: about[name] for name in ABOUT if name in about}


def _checksum(content: Mapping[str, Any]) -> str:
    """Of everything that it covers, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
