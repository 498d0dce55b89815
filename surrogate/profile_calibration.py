"""From a node's profile to constants: beliefs move by the measured ratios, as far as they can.

Every observation is log(measured / predicted) = sum over columns of slope x log factor + error.
Factors are log-normal around 1; the posterior is that of a linear model with Gaussian errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specs.gpu import Gpu
from specs.profile_rows import PlanItem, Profile, ProfileRow
from surrogate.cases import Cases
from surrogate.learned import Learned
from surrogate.profile_predictions import COLUMNS, NodePhysics, observations, predicted_s
from surrogate.time_rates import ALIASES, BELIEFS

KNOWLEDGE_SD: dict[str, tuple[float, float]] = {
    "gemm_utilisation": (0.05, 0.15),
    "attention_utilisation": (0.12, 0.20),
    "attention_backward": (0.10, 0.10),
    "grouped_utilisation": (0.25, 0.30),
    "grouped_padding": (0.50, 1.20),
    "memory_utilisation": (0.08, 0.08),
    "optimizer_utilisation": (0.12, 0.12),
    "link_utilisation": (0.12, 0.20),
    "nic_utilisation": (0.20, 0.20),
    "link_latency": (0.40, 0.40),
    "nic_latency": (0.50, 0.50),
    "alltoall_link_utilisation": (0.30, 0.30),
    "alltoall_nic_utilisation": (0.30, 0.30),
}
"""Log sd of a node's own factor: where kernels of its GPU were profiled, and where they were
carried from kin. Assumed: errors of the kernel laws on GPUs left out are 5 to 15% for GEMMs, and
differences of software and cabling between nodes are larger for the rest. Padding of expert GEMMs
is as open as ``BELIEFS`` says: a tile of rows on one architecture, nothing on another."""

ITEM_SD: dict[str, float] = {
    "gemm": 0.08,
    "attention": 0.12,
    "attention_backward": 0.10,
    "grouped_gemm": 0.20,
    "elementwise": 0.05,
    "optimizer": 0.08,
    "collective": 0.15,
    "all_to_all": 0.20,
}
"""Log sd of one item around the law at any constants: shapes that a law misses, and kernels of
PyTorch that are not those of the training stack. Assumed."""

TRANSFER_SD = 0.03
"""What no profile removes: a benchmark is not a training job."""
SURPRISE_SD = 3.0
_STEP = 0.02
DIVERGES = 2.0
"""A ratio of measured and expected time beyond which an item is reported."""


@dataclass(frozen=True)
class Check:
    """One observation: measured against expected, before and after (seconds, or a ratio)."""

    item: PlanItem
    what: str
    measured: float
    before: float
    after: float


@dataclass(frozen=True)
class ProfileCalibration:
    """What a profile taught: factors on columns of TimeRates with their log sd, and the checks."""

    factors: dict[str, float]
    prior_sd: dict[str, float]
    posterior_sd: dict[str, float]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    def error(self, after: bool) -> float:
        """Median of |expected / measured - 1| over the checks; NaN without any."""
        errors = [
            abs((check.after if after else check.before) / check.measured - 1)
            for check in self.checks
        ]
        return float(np.median(errors)) if errors else float("nan")

    def as_json(self) -> dict[str, Any]:
        """Factors and errors."""
        return {
            "factors": {
                name: {
                    "factor": factor,
                    "prior_sd": self.prior_sd[name],
                    "posterior_sd": self.posterior_sd[name],
                }
                for name, factor in self.factors.items()
            },
            "median_error_before": self.error(after=False),
            "median_error_after": self.error(after=True),
            "checks": [
                {
                    "key": check.item.key,
                    "observed": check.what,
                    "measured": check.measured,
                    "before": check.before,
                    "after": check.after,
                }
                for check in self.checks
            ],
            "notes": list(self.notes),
        }


def knowledge_sd(column: str, physics: NodePhysics) -> float:
    """Log sd of a node's own factor of a column before it is profiled."""
    fitted, carried = KNOWLEDGE_SD[column]
    origin = physics.kernels.origin
    operator = {"attention_utilisation": "attention", "link_utilisation": "collective"}
    known = origin.get(operator.get(column, "gemm"), {})
    return fitted if "fitted" in known.values() else carried


def calibrate(profile: Profile, gpu: Gpu, cases: Cases, learned: Learned) -> ProfileCalibration:
    """What the profile of a node says about the constants of a job on its GPU.

    Args:
        profile: rows of the node.
        gpu: of the cluster that is projected.
        cases: the job's configs; the first row is the reference.
        learned: what was known before.
    """
    physics = NodePhysics.of(gpu, cases, learned.constants)
    seen = [
        (row, what)
        for row in profile.rows
        for what in observations(row.item, row.backward_s is not None)
    ]
    columns = sorted({column for _, what in seen for column in COLUMNS[what]})
    prior_sd = np.array([knowledge_sd(column, physics) for column in columns])
    log_factors, covariance = np.zeros(len(columns)), np.diag(np.square(prior_sd))
    # Limits at the peak make the model slightly curved: two more steps from the last estimate.
    for _ in range(3 if seen else 0):
        log_factors, covariance = _posterior(seen, columns, prior_sd, log_factors, physics)
    factors = dict(zip(columns, np.exp(log_factors).tolist(), strict=True))
    checks = tuple(_check(row, what, physics, factors) for row, what in seen)
    sd = np.sqrt(np.diag(covariance) + TRANSFER_SD**2)
    return ProfileCalibration(
        factors=factors,
        prior_sd=dict(zip(columns, prior_sd.tolist(), strict=True)),
        posterior_sd=dict(zip(columns, np.minimum(sd, prior_sd).tolist(), strict=True)),
        checks=checks,
        notes=(*_notes(profile, checks), *_surprises(factors, columns, prior_sd)),
    )


def _posterior(
    seen: Sequence[tuple[ProfileRow, str]],
    columns: Sequence[str],
    prior_sd: Any,
    at: Any,
    physics: NodePhysics,
) -> tuple[Any, Any]:
    """Posterior mean and covariance of the log factors, linearised at ``at``."""
    factors = dict(zip(columns, np.exp(at).tolist(), strict=True))
    slopes = np.zeros((len(seen), len(columns)))
    residual, noise = np.zeros(len(seen)), np.zeros(len(seen))
    for place, (row, what) in enumerate(seen):
        expected = predicted_s(row.item, what, physics, factors)
        residual[place] = np.log(_measured(row, what) / expected)
        noise[place] = np.hypot(ITEM_SD[what], row.spread)
        for column in COLUMNS[what]:
            moved = factors | {column: factors[column] * float(np.exp(_STEP))}
            change = np.log(predicted_s(row.item, what, physics, moved) / expected)
            slopes[place, columns.index(column)] = change / _STEP
    # An item far from every law (another kernel, a fallback) must not drag the others: Huber.
    weight = 1.0 / np.maximum(1.0, np.abs(residual) / (2.0 * np.hypot(noise, 0.1)))
    precision = np.diag(1.0 / np.square(prior_sd))
    weighted = slopes * (weight / np.square(noise))[:, None]
    covariance = np.linalg.inv(precision + weighted.T @ slopes)
    mean = covariance @ (weighted.T @ (residual + slopes @ at))
    return mean, covariance


def _measured(row: ProfileRow, what: str) -> float:
    """Seconds of forward, or backward over forward."""
    if what == "attention_backward" and row.backward_s is not None:
        return row.backward_s / row.forward_s
    return row.forward_s


def _check(row: ProfileRow, what: str, physics: NodePhysics, factors: Mapping[str, float]) -> Check:
    return Check(
        item=row.item,
        what=what,
        measured=_measured(row, what),
        before=predicted_s(row.item, what, physics, {}),
        after=predicted_s(row.item, what, physics, factors),
    )


def _notes(profile: Profile, checks: Sequence[Check]) -> list[str]:
    """What failed, and what is far from every law."""
    notes = [*profile.notes]
    notes += [f"{key} was not measured: {reason}" for key, reason in profile.failed.items()]
    for check in checks:
        ratio = check.measured / check.after
        if not 1 / DIVERGES < ratio < DIVERGES:
            notes.append(
                f"{check.item.key} ({check.what}) took {ratio:.2f} times what the law expects: "
                "another kernel may have run"
            )
    return notes


def _surprises(factors: Mapping[str, float], columns: Sequence[str], prior_sd: Any) -> list[str]:
    """Factors that are hard to believe: the node may not be what it is said to be."""
    return [
        f"{column} moved by a factor of {factors[column]:.2f}, more than is believed possible: is "
        "this the GPU of the cluster, and is it idle?"
        for column, sd in zip(columns, prior_sd, strict=True)
        if abs(np.log(factors[column])) > SURPRISE_SD * sd
    ]


def profiled(learned: Learned, found: ProfileCalibration) -> Learned:
    """What is known after the profile: constants multiplied by the factors, never beyond their
    bound."""
    factors, sd = {}, dict(learned.posterior_sd)
    for column, factor in found.factors.items():
        name = ALIASES.get(column, column)
        value = float(np.exp(learned.constants.log_values[name]))
        factors[name] = min(factor, BELIEFS[name].most / value)
        sd[name] = found.posterior_sd[column]
    return replace(learned, constants=learned.constants.changed(factors), posterior_sd=sd)
