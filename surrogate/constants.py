"""Constants of the physics: a value with its prior and provenance, in versioned JSON files.

A constant that differs by GPU, format or domain has one entry each, its name ending in
``/key/key`` (``gemm_utilisation/H100-SXM/fp8``). What the data cannot identify stays at its prior.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from specs.errors import InputError
from specs.files import atomic_text, input_file

SCHEMA_VERSION: Literal[1] = 1


class Constant(BaseModel):
    """One constant: its value, what was believed before the data (in log space where ``log``)."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    value: float
    unit: str = ""
    kind: Literal["measured", "vendor", "assumed", "fitted"]
    source: str
    prior: float | None = None
    prior_sd: float | None = None
    posterior_sd: float | None = None
    log: bool = True


class ConstantFile(BaseModel):
    """A versioned set of constants and the hash of the data that they were fitted to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = SCHEMA_VERSION
    fitted_on: str = ""
    data_hash: str = ""
    constants: dict[str, Constant]

    def values(self) -> dict[str, float]:
        """Name -> value."""
        return {name: constant.value for name, constant in self.constants.items()}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes JSON atomically: the file is either the old or the new one, never a part."""
    with atomic_text(path) as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")


def read_constants(path: Path) -> ConstantFile:
    """Constants of a file.

    Raises:
        InputError: the file is missing, is no JSON or does not follow the schema.
    """
    try:
        return ConstantFile.model_validate_json(input_file(path).read_bytes())
    except OSError as error:
        raise InputError(f"cannot read constants from {path}: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise InputError(f"{path} is no constants file: {where}: {first['msg']}.") from None


@lru_cache(maxsize=8)
def shipped_constants(name: str) -> ConstantFile:
    """Constants that ship with the package (``surrogate/data/<name>.json``)."""
    data = resources.files("surrogate") / "data" / f"{name}.json"
    return ConstantFile.model_validate_json(data.read_bytes())
