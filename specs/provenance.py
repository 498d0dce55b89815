"""A number with where it comes from: no constant without provenance."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from specs.numbers import Number


class Quantity(BaseModel):
    """A value, how it is known and the source to check it against."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: Number
    kind: Literal["measured", "vendor", "assumed"]
    source: str
