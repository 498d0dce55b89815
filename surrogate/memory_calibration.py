"""What measured peaks of a stack teach of the constants of the memory model, from one run on.

Each peak, in the reading of its counter, says by how much groups of constants are other in this
stack: activations, live memory as a whole, fragmentation, what lies outside of the allocator ...
How a reading depends on each is known from the model, so a peak of one layout corrects others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from surrogate.cases import Cases, Column
from surrogate.memory import Gap, Memory, counter_reading, explain_gap, memory
from surrogate.memory_constants import MemoryConstants, shipped_memory_constants
from surrogate.robust import student_noise

Floats = NDArray[np.float64]

GROUPS: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "live memory": (0.06, ("stack_offset",)),
    "activations": (0.06, ("activation_scale",)),
    "logits": (0.2, ("logits_bytes", "fused_logits_bytes")),
    "gathered parameters": (0.3, ("gathered_copies", "backward_copies", "unsharded_layers")),
    "expert buffers": (0.3, ("expert_output_copies", "dispatch_copies")),
    "fragmentation": (0.3, ("fragmentation",)),
    "outside the allocator": (0.3, ("context_gib", "communicator_gib", "allocated_base_gib")),
}
"""Constants that move together, and the sd of their logarithm between stacks of one framework:
that of the priors. Twice as wide corrects other runs of a Fold equally well, half as wide less
after one peak."""
_GROUP_SD = np.array([sd for sd, _ in GROUPS.values()])
PEAK_SD = 0.03
"""Scatter of log peaks around right constants: rounding, unstated settings."""
STEP = 1e-3
LARGEST_LOG_ERROR = 1.5
"""A peak this far from its projection is in another unit, or of another rank (assumed)."""


@dataclass(frozen=True)
class MemoryFacts:
    """Measured peaks of r runs: ``errors`` log(measured / projected reading), shape (r,), and
    ``slopes`` of the log reading by the log of each of GROUPS, shape (r, g)."""

    run_ids: tuple[str, ...]
    frameworks: tuple[str, ...]
    errors: Floats
    slopes: Floats

    def __len__(self) -> int:
        return len(self.errors)

    @classmethod
    def nothing(cls) -> MemoryFacts:
        """No peaks."""
        return cls((), (), np.empty(0), np.empty((0, len(GROUPS))))

    @classmethod
    def of(cls, cases: Cases, counters: Column, peaks_gib: Floats, run_ids: Column) -> MemoryFacts:
        """The facts of n runs; peaks that cannot be those of their run are left out.

        Args:
            cases: n runs.
            counters: what each peak was read from; see ``memory.counter_reading``.
            peaks_gib: shape (n,), positive.
            run_ids: one a run.
        """
        constants = shipped_memory_constants()
        projected = np.log(counter_reading(cases, counters, constants))
        frameworks, columns = _frameworks(cases), []
        for group in GROUPS:
            moved = moved_constants(constants, {group: float(np.exp(STEP))}, frameworks)
            reading = np.log(counter_reading(cases, counters, moved))
            columns.append((reading - projected) / STEP)
        errors = np.log(peaks_gib) - projected
        kept = np.flatnonzero(np.abs(errors) <= LARGEST_LOG_ERROR)
        return cls(
            tuple(str(run_ids[row]) for row in kept),
            tuple(frameworks[row] for row in kept),
            errors[kept],
            np.column_stack(columns)[kept],
        )

    def merged(self, other: MemoryFacts) -> MemoryFacts:
        """The peaks of both; of a run that is in both, what ``other`` says."""
        kept = [row for row, run in enumerate(self.run_ids) if run not in other.run_ids]
        return MemoryFacts(
            (*(self.run_ids[row] for row in kept), *other.run_ids),
            (*(self.frameworks[row] for row in kept), *other.frameworks),
            np.concatenate([self.errors[kept], other.errors]),
            np.concatenate([self.slopes[kept], other.slopes]),
        )

    @cached_property
    def _factors(self) -> dict[str, dict[str, float]]:
        """Factors on GROUPS by framework name."""
        found = {}
        for name in dict.fromkeys(self.frameworks):
            rows = np.array([framework == name for framework in self.frameworks])
            moved = _posterior_mean(self.slopes[rows], self.errors[rows])
            found[name] = dict(zip(GROUPS, map(float, np.exp(moved)), strict=True))
        return found

    def leave_one_out(self) -> Floats:
        """log(measured / reading projected by the other peaks of the stack), shape (r,).

        Rasmussen, Williams (2006), equation 5.12; the scatter of each is that found among all.
        """
        left = np.empty(len(self))
        for name in dict.fromkeys(self.frameworks):
            rows = np.array([framework == name for framework in self.frameworks])
            errors = self.errors[rows]
            inverse = np.linalg.inv(_covariance(self.slopes[rows], errors))
            left[rows] = inverse @ errors / np.diag(inverse)
        return left

    def factors(self, framework: str) -> dict[str, float]:
        """Factors on GROUPS in the stack of this name; empty where no peak of it is known."""
        return self._factors.get(framework, {})

    def constants(self, framework: str) -> MemoryConstants:
        """The constants of the memory model for the stack of this name."""
        return moved_constants(shipped_memory_constants(), self.factors(framework), (framework,))

    def memory(self, cases: Cases) -> Memory:
        """Peak memory of every row with the constants of its stack."""
        moved = self._moved_rows(cases)
        if len(moved) == 1 and len(moved[0][0]) == len(cases):
            return memory(cases, moved[0][1])
        held = memory(cases)
        for rows, constants in moved:
            own = memory(cases.take(rows), constants)
            for column in fields(Memory):
                getattr(held, column.name)[rows] = getattr(own, column.name)
        return held

    def reading(self, cases: Cases, counters: Column) -> Column:
        """``memory.counter_reading`` of every row with the constants of its stack, (n,)."""
        reading = counter_reading(cases, counters)
        for rows, constants in self._moved_rows(cases):
            reading[rows] = counter_reading(cases.take(rows), counters[rows], constants)
        return reading

    def gaps(self, cases: Cases, measured_gib: Column, counters: Column) -> list[Gap]:
        """``memory.explain_gap`` of every row with the constants of its stack."""
        gaps = explain_gap(cases, measured_gib, counters)
        for rows, constants in self._moved_rows(cases):
            own = explain_gap(cases.take(rows), measured_gib[rows], counters[rows], constants)
            for row, gap in zip(rows, own, strict=True):
                gaps[row] = gap
        return gaps

    def _moved_rows(self, cases: Cases) -> list[tuple[Column, MemoryConstants]]:
        """Rows of each stack of which peaks are known, and its constants."""
        if not len(self) or not len(cases):
            return []
        frameworks = np.array(_frameworks(cases), dtype=object)
        names = [name for name in dict.fromkeys(frameworks) if name in self._factors]
        return [(np.flatnonzero(frameworks == name), self.constants(name)) for name in names]

    def as_json(self) -> list[dict[str, Any]]:
        """The peaks as data."""
        return [
            {
                "run_id": self.run_ids[row],
                "framework": self.frameworks[row],
                "log_error": round(float(self.errors[row]), 5),
                "slopes": np.round(self.slopes[row], 5).tolist(),
            }
            for row in range(len(self))
        ]

    @classmethod
    def from_json(cls, peaks: Sequence[Peak]) -> MemoryFacts:
        """The peaks of a file."""
        return cls(
            tuple(peak.run_id for peak in peaks),
            tuple(peak.framework for peak in peaks),
            np.array([peak.log_error for peak in peaks], dtype=np.float64),
            np.array([peak.slopes for peak in peaks]).reshape(-1, len(GROUPS)),
        )


class Peak(BaseModel):
    """A measured peak in a calibration file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    run_id: str
    framework: str
    log_error: Annotated[float, Field(ge=-LARGEST_LOG_ERROR, le=LARGEST_LOG_ERROR)]
    slopes: Annotated[
        list[Annotated[float, Field(gt=-10, lt=10)]],
        Field(min_length=len(GROUPS), max_length=len(GROUPS)),
    ]


def moved_constants(
    constants: MemoryConstants, factors: Mapping[str, float], frameworks: Sequence[str]
) -> MemoryConstants:
    """The constants with groups of them multiplied, for rows of stacks of these names."""
    changed: dict[str, Any] = {}
    for group, factor in factors.items():
        for name in GROUPS[group][1]:
            value = getattr(constants, name)
            if name == "stack_offset":
                own = {stack: value.get(stack, 1.0) * factor for stack in frameworks}
                changed[name] = {**value, **own}
            else:
                changed[name] = value * factor
    return replace(constants, **changed)


def _frameworks(cases: Cases) -> list[str]:
    """Name of the stack of every row."""
    names = [stack.framework_name for stack in cases.stacks]
    return [names[index] for index in np.broadcast_to(cases.stack_index, (len(cases),))]


def _covariance(slopes: Floats, errors: Floats) -> Floats:
    """Covariance of r peaks of one stack, scatter included, shape (r, r)."""
    spread = slopes * _GROUP_SD
    prior: Floats = spread @ spread.T
    return prior + np.diag(student_noise(prior, errors, np.full(len(errors), PEAK_SD)))


def _posterior_mean(slopes: Floats, errors: Floats) -> Floats:
    """Logs of the factors on GROUPS that r peaks of one stack make likely, shape (g,)."""
    weights = np.linalg.solve(_covariance(slopes, errors), errors)
    mean: Floats = np.square(_GROUP_SD) * (slopes.T @ weights)
    return mean
