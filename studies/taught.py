"""What a node's profile or measured runs taught a job, as JSON that its study keeps.

A report or a worker that reads the study back then projects with the same constants.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from specs.errors import InputError
from studies.job import Job
from surrogate.calibration_file import calibration_json, calibration_of
from surrogate.learned import Learned, shipped
from surrogate.time_constants import TimeConstants

TAUGHT = "taught"
"""Attribute of a study that holds it."""


class _Taught(BaseModel):
    """Schema: constants in log space and their posterior sd where they differ from what ships."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    log_constants: dict[str, float]
    posterior_sd: dict[str, float]
    calibration: dict[str, Any] | None


def taught_json(job: Job) -> dict[str, Any]:
    """What the job knows beyond the package; empty where nothing was taught."""
    if job.learned is None:
        return {}
    base, learned = shipped(), job.learned
    learned_more = len(learned.calibration) or not learned.peaks().is_empty
    before, sd = base.constants.log_values, base.posterior_sd
    return _Taught(
        log_constants={n: v for n, v in learned.constants.log_values.items() if before.get(n) != v},
        posterior_sd={n: v for n, v in learned.posterior_sd.items() if sd.get(n) != v},
        calibration=calibration_json(learned.calibration) if learned_more else None,
    ).model_dump()


def taught_from(content: dict[str, Any] | None) -> Learned | None:
    """What a job is projected with, from the JSON that its study keeps; None: what ships.

    Raises:
        InputError: it was written by another version of foretune.
    """
    if not content:
        return None
    try:
        found = _Taught.model_validate(content)
    except ValidationError:
        raise InputError(
            "the study keeps constants of another version of foretune; run foretune tune again."
        ) from None
    base = shipped()
    learned = replace(
        base,
        constants=TimeConstants({**base.constants.log_values, **found.log_constants}),
        posterior_sd={**base.posterior_sd, **found.posterior_sd},
    )
    if found.calibration is None:
        return learned
    text = json.dumps(found.calibration).encode()
    return replace(learned, calibration=calibration_of(text, "the study's calibration"))
