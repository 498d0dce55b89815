"""Projections: memory and throughput of configs with interval and trust, as columns and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from specs.choices import Precision
from surrogate.cases import Cases, Column
from surrogate.memory import fit_probability, memory_by_stage, memory_log_sd
from surrogate.memory_calibration import MemoryFacts
from surrogate.speed_of_light import fastest_tokens_per_s_per_gpu, flops_per_token
from surrogate.step_time import LayerTable, StepTime, shared_layers, step_time
from surrogate.time_constants import TimeConstants

CHUNK_ROWS = 1 << 16
"""Rows computed at once: enough to share what few of them differ in, few enough to take no more
than tens of MiB (measured: half as many are 5% slower, twice as many no faster)."""

DENSE_LOG_SD, MOE_LOG_SD = 0.10, 0.27
"""Spread of log(measured / projected) of the physics on Folds left out, dense and MoE models."""

_TWO_SIDED_90 = 1.645


@dataclass(frozen=True)
class Corrected:
    """What was learned beyond the physics: factor on the tokens/s, interval and trust.

    ``lo90`` and ``hi90`` are factors on the corrected tokens/s.
    """

    factor: Column
    lo90: Column
    hi90: Column
    trust: Column


class Correction(Protocol):
    """Learned correction of a projection; the factors multiply tokens/s."""

    def settled(self, cases: Cases, constants: TimeConstants) -> tuple[TimeConstants, Correction]:
        """What to project these rows with: constants that hold for all of them moved for good."""
        ...

    def peaks(self) -> MemoryFacts:
        """Measured peaks that correct the constants of memory."""
        ...

    def factor(self, cases: Cases, step: StepTime) -> Column:
        """The factor alone, where neither interval nor trust is asked for, shape (n,)."""
        ...

    def corrected(self, cases: Cases, step: StepTime) -> Corrected:
        """Factor, interval and trust of every row."""
        ...


@dataclass(frozen=True)
class Projections:
    """Projections of n configs, columns of shape (n,); ``trust`` holds words."""

    tokens_per_s_per_gpu: Column
    lo90: Column
    hi90: Column
    step_time_s: Column
    device_gib: Column
    reserved_gib: Column
    allocated_gib: Column
    fit_probability: Column
    trust: Column


class PhysicsOnly:
    """No correction: the spread of the physics on runs that it was not fitted to."""

    def settled(self, cases: Cases, constants: TimeConstants) -> tuple[TimeConstants, Correction]:
        """The constants as they are."""
        del cases
        return constants, self

    def peaks(self) -> MemoryFacts:
        """None."""
        return MemoryFacts.nothing()

    def factor(self, cases: Cases, step: StepTime) -> Column:
        """Ones."""
        del cases
        return np.ones(step.step_time_s.shape)

    def corrected(self, cases: Cases, step: StepTime) -> Corrected:
        """Ones with the spread of the physics."""
        shape = step.step_time_s.shape
        sd = np.where(cases.model.num_experts > 0, MOE_LOG_SD, DENSE_LOG_SD)
        return Corrected(
            factor=np.ones(shape),
            lo90=np.broadcast_to(np.exp(-_TWO_SIDED_90 * sd), shape),
            hi90=np.broadcast_to(np.exp(_TWO_SIDED_90 * sd), shape),
            trust=np.full(shape, "physics only", dtype=object),
        )


def project(
    cases: Cases,
    constants: TimeConstants | None = None,
    correction: Correction | None = None,
) -> Projections:
    """Memory and throughput of every row, in chunks.

    Args:
        cases: n rows.
        constants: of the time model.
        correction: residual, calibration and interval; without either, all that was learned from
            public runs; with constants alone, the physics alone.

    Raises:
        InputError: a layout is malformed, or a GPU has no such number format.
    """
    constants, correction = _beliefs(cases, constants, correction)
    shared = shared_layers(cases, constants)
    parts = []
    for start in range(0, len(cases), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        layers = shared.take(rows) if shared else None
        parts.append(_chunk(cases.take(rows), constants, correction, layers))
    return Projections(
        **{
            f.name: np.concatenate([getattr(part, f.name) for part in parts] or [np.empty(0)])
            for f in fields(Projections)
        }
    )


def throughput(
    cases: Cases,
    constants: TimeConstants | None = None,
    correction: Correction | None = None,
) -> Column:
    """The tokens/s/GPU of ``project`` alone, shape (n,), where memory is not asked for."""
    constants, correction = _beliefs(cases, constants, correction)
    shared = shared_layers(cases, constants)
    speed = np.empty(len(cases))
    for start in range(0, len(cases), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        part = cases.take(rows)
        step = step_time(part, constants, layers=shared.take(rows) if shared else None)
        tokens = part.workload.seq_len * part.workload.global_batch_size
        factor = correction.factor(part, step)
        projected = tokens / part.cluster.num_gpus / step.step_time_s * factor
        speed[rows] = np.minimum(projected, fastest_tokens_per_s_per_gpu(part))
    return speed


def _beliefs(
    cases: Cases, constants: TimeConstants | None, correction: Correction | None
) -> tuple[TimeConstants, Correction]:
    """What to project with: all that was learned, unless the caller brings something else."""
    if constants is None and correction is None:
        from surrogate.learned import shipped

        return shipped().settled(cases, shipped().constants)
    correction = correction or PhysicsOnly()
    return correction.settled(cases, constants or TimeConstants.shipped())


def _chunk(
    cases: Cases,
    constants: TimeConstants,
    correction: Correction,
    layers: LayerTable | None = None,
) -> Projections:
    """Projections of one chunk."""
    step = step_time(cases, constants, layers=layers)
    learned = correction.corrected(cases, step)
    held = correction.peaks().memory(cases)
    tokens_per_step = cases.workload.seq_len * cases.workload.global_batch_size
    tokens_per_gpu = tokens_per_step / cases.cluster.num_gpus
    # Runs that contradict each other widen an interval at both ends; light is no faster for it.
    fastest = fastest_tokens_per_s_per_gpu(cases)
    speed = np.minimum(tokens_per_gpu / step.step_time_s * learned.factor, fastest)
    return Projections(
        tokens_per_s_per_gpu=speed,
        lo90=speed * learned.lo90,
        hi90=np.minimum(speed * learned.hi90, fastest),
        step_time_s=tokens_per_gpu / speed,
        device_gib=held.device_gib,
        reserved_gib=held.reserved_gib,
        allocated_gib=held.allocated_gib,
        fit_probability=fit_probability(
            held.device_gib, cases.cluster.hbm_gib, memory_log_sd(cases)
        ),
        trust=learned.trust,
    )


def projection_json(
    cases: Cases,
    row: int = 0,
    constants: TimeConstants | None = None,
    correction: Correction | None = None,
) -> dict[str, Any]:
    """The projection of one row as the JSON of ``foretune project``."""
    one = cases.take(np.array([row]))
    constants, correction = _beliefs(one, constants, correction)
    projected = _chunk(one, constants, correction)
    return {
        "config": one.config.config(0).as_labels(),
        "memory": _memory_json(one, projected, correction.peaks()),
        "throughput": _throughput_json(one, projected, constants),
    }


def _memory_json(one: Cases, projected: Projections, peaks: MemoryFacts) -> dict[str, Any]:
    """Peak, fit and the components of every stage."""
    stack = one.stacks[int(np.ravel(one.stack_index)[0])]
    stages = memory_by_stage(one, peaks.constants(stack.framework_name))
    names = [
        f.name for f in fields(stages) if f.name not in ("allocated_gib", "reserved_gib", "valid")
    ]
    rows = [
        {"stage": stage, **{name: float(getattr(stages, name)[0, stage]) for name in names}}
        for stage in range(int(one.config.pp[0]))
    ]
    probability = float(projected.fit_probability[0])
    return {
        "peak_gib": float(projected.device_gib[0]),
        "allocated_gib": float(projected.allocated_gib[0]),
        "reserved_gib": float(projected.reserved_gib[0]),
        "capacity_gib": float(np.ravel(one.cluster.hbm_gib)[0]),
        "fits": probability >= 0.5,
        "fit_probability": probability,
        "stages": rows,
    }


def _throughput_json(
    one: Cases, projected: Projections, constants: TimeConstants
) -> dict[str, Any]:
    """Speed with interval and where the time goes; the parts sum to the step time."""
    step = step_time(one, constants, breakdown=True)
    assert step.breakdown is not None
    total = float(projected.step_time_s[0])
    # A learned correction says how much, not where: it scales every part alike.
    scale = total / float(step.step_time_s[0])
    parts = {name: float(np.ravel(part)[0]) * scale for name, part in step.breakdown.items()}
    speed = float(projected.tokens_per_s_per_gpu[0])
    achieved = float(np.ravel(flops_per_token(one))[0]) * speed
    return {
        "tokens_per_s_per_gpu": speed,
        "interval90": [float(projected.lo90[0]), float(projected.hi90[0])],
        "step_time_s": total,
        "tflops_per_gpu": achieved / 1e12,
        "mfu": achieved / peak_flops(one),
        "breakdown_s": parts,
        "trust": str(projected.trust[0]),
    }


def peak_flops(one: Cases) -> float:
    """Dense peak of the first row's GPU in the format of its GEMMs."""
    precision = list(Precision)[int(one.config.precision[0])]
    peak = getattr(one.cluster, f"peak_{precision.gemm_format}_flops")
    return float(np.ravel(peak)[0])
