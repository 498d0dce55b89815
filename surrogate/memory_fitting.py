"""Learns the constants of the memory model from measured peaks, held near their priors.

``python -m surrogate.memory_fitting --measured DIR`` rewrites ``data/memory_constants.json``; the
same input gives the same file. The posterior mode of the
logarithms of the constants is found by damped Gauss-Newton steps, with residuals that lose weight
where a row contradicts the others. Runs that ran out of memory count where they are projected to
fit.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import catalog
from specs.choices import Sharding
from specs.config import ConfigTable
from specs.models_json import models_json
from specs.runs import RunTable, read_runs
from surrogate.cases import Cases
from surrogate.constants import Constant, ConstantFile, read_constants, write_json
from surrogate.memory import counter_reading, memory_log_sd
from surrogate.memory_constants import FRAMEWORKS, OFFSETS, MemoryConstants, release_of
from surrogate.validation import batches_of

Column = NDArray[Any]

CONSTANTS_FILE = Path(__file__).parent / "data" / "memory_constants.json"

TABLES = ("runs.csv", "memory_runs.csv", "small_runs_memory.csv")

ROW_SD = 0.08
"""Log error of a projection whose constants are right: rounding of sources, unstated settings. Two
thirds of the rows of Folds left out are within 0.05 to 0.1 (``log_sd``)."""
ROW_SD_GIB = 0.3
"""Error that does not shrink with the job: rounding to GB, workspaces, small tensors."""
ROBUST_AT = 3.0
"""Standard deviations from which a row loses weight (Cauchy)."""
STACK_PRIOR_SD = 0.06
"""How far one stack differs from its framework family, and a release from its stack, in log of live
memory."""
FOLD_POWER = 0.5
"""A Fold of n rows counts as n to this power: its rows share what they do not state."""
SHARED = 0.5
"""Share of a constant's prior variance that is common to all frameworks or vendors."""
RAN_WEIGHT = 0.2
"""Weight of a run that states no peak: it bounds one only if nothing that saves is left unsaid."""
ITERATIONS = 12
STEP = 1e-3
BATCHES = 24
"""Fits with which every group is left out once. With fewer, a group misses others that a user would
have: 24 instead of 5 took 0.2 points off the error on Folds."""
REFIT_ITERATIONS = 6
"""Enough for a fit that starts where another, of most of the same rows, ended."""
TWO_THIRDS_OF_ROWS = 0.683
"""Within one standard deviation of a Gaussian."""
SPREAD_FOLDS = 4.0
"""Folds of a framework from which its own spread weighs more than that of all (assumed)."""
SMALLEST_SPREAD = 1e-4
"""Peaks are not stated more exactly."""
SMALL_GIB = 4.0
"""Smaller peaks are those of tests, whose error is that of fixed buffers."""


@dataclass(frozen=True)
class MemoryRuns:
    """n measured peaks, columns of shape (n,).

    ``measured_gib`` is what ``counters`` showed. ``bound`` is 0 there; it is 1 for rows that ran
    out of memory and -1 for rows that ran and state no peak: their need is above, or below, the
    capacity of the GPU, which ``measured_gib`` then holds. ``fold`` numbers the Folds. ``stated``
    is whether a row says all that decides its memory.
    """

    cases: Cases
    counters: Column
    measured_gib: Column
    bound: Column
    weight: Column
    fold: Column
    stated: Column
    stack_names: Column
    releases: Column

    @classmethod
    def of(cls, tables: Sequence[RunTable]) -> MemoryRuns:
        """The usable rows of all tables."""
        tables = [usable(table) for table in tables]
        workloads = [workload for table in tables for workload in table.workloads]
        clusters = [cluster for table in tables for cluster in table.clusters]
        stacks = [stack for table in tables for stack in table.stacks]
        config = ConfigTable.concat([table.config for table in tables])
        oom = np.concatenate([table.out_of_memory for table in tables])
        peak = np.concatenate([table.peak_memory_gib for table in tables])
        counters = np.concatenate([table.memory_counter.astype(str) for table in tables])
        stated = np.isfinite(peak)
        capacity = np.array([cluster.gpu.hbm_gib.value for cluster in clusters])
        folds = np.concatenate([table.fold.astype(str) for table in tables])
        _, fold, size = np.unique(folds, return_inverse=True, return_counts=True)
        return cls(
            cases=Cases.of_runs(config, workloads, clusters, stacks),
            counters=np.where(stated & ~oom, counters, "device"),
            measured_gib=np.where(stated & ~oom, peak, capacity),
            bound=np.where(oom, 1, np.where(stated, 0, -1)),
            weight=size[fold] ** (FOLD_POWER - 1.0) * np.where(stated | oom, 1.0, RAN_WEIGHT),
            fold=fold,
            stated=np.concatenate([table.unstated == "" for table in tables]),
            stack_names=np.array([stack.framework_name for stack in stacks], dtype=object),
            releases=np.array([release_of(stack) for stack in stacks], dtype=object),
        )

    def take(self, rows: Any) -> MemoryRuns:
        """The selected rows."""
        names = [field.name for field in fields(self) if field.name != "cases"]
        picked = {name: getattr(self, name)[rows] for name in names}
        return MemoryRuns(cases=self.cases.take(rows), **picked)


def usable(table: RunTable) -> RunTable:
    """The rows that state their recomputation and a peak, OOM or throughput.

    A row that only ran bounds its memory where its sharding is stated, "none" is also what a table
    that says nothing reads as, and where no share of it that is not told lay in host memory.
    """
    ran = np.isfinite(table.tokens_per_s_per_gpu) & (table.config.sharding > int(Sharding.NONE))
    ran &= np.char.find(table.unstated.astype(str), "offload") < 0
    told = np.isfinite(table.peak_memory_gib) | table.out_of_memory | ran
    return table.take(told & ~table.recompute_unknown)


def fit_memory(
    runs: MemoryRuns, prior: ConstantFile, from_prior: bool = True, iterations: int = ITERATIONS
) -> ConstantFile:
    """Constants that explain the runs, starting from and held near their priors."""
    constants = _with_stacks(prior, runs)
    names = _free(constants)
    held = constants.values()
    centre = np.log([constants.constants[name].prior or 1.0 for name in names])
    sd = np.array([constants.constants[name].prior_sd or 1.0 for name in names])
    start = centre.copy() if from_prior else np.log([held[name] for name in names])
    mode, posterior_sd = _posterior_mode(runs, held, names, start, centre, sd, iterations)
    learned = dict(constants.constants)
    for name, value, spread in zip(names, np.exp(mode), posterior_sd, strict=True):
        known = learned[name]
        learned[name] = known.model_copy(
            update={
                "value": float(f"{value:.5g}"),
                "kind": "fitted",
                "posterior_sd": float(f"{spread:.3g}"),
            }
        )
    return constants.model_copy(update={"constants": learned})


def _with_stacks(prior: ConstantFile, runs: MemoryRuns) -> ConstantFile:
    """The file without old offsets, with one at 1 for each stack and release of telling rows."""
    kept = {k: v for k, v in prior.constants.items() if k.partition("/")[0] not in OFFSETS}
    tells = _tells_stack(runs)
    for offset, labels in (("stack_offset", runs.stack_names), ("release_offset", runs.releases)):
        for label in sorted(set(labels[tells].tolist()) - {""}):
            kept[f"{offset}/{label}"] = Constant(
                value=1.0,
                kind="assumed",
                source="live memory of a stack over its family's, of a release over its stack's",
                prior=1.0,
                prior_sd=STACK_PRIOR_SD,
            )
    return prior.model_copy(update={"constants": kept})


def _tells_stack(runs: MemoryRuns) -> Column:
    """Whether a row may teach what a stack does differently.

    Runs that only ran, and readings of one rank, which are tests of a framework's own, teach the
    physics; what a stack does differently only peaks and failures of its jobs can tell.
    """
    return np.asarray((runs.bound >= 0) & (runs.counters != "allocated-last-rank"))


def _free(constants: ConstantFile) -> list[str]:
    """Constants with a prior width: those without rows follow their like in other frameworks."""
    return [name for name, constant in sorted(constants.constants.items()) if constant.prior_sd]


def _independent(runs: MemoryRuns, names: Sequence[str]) -> list[tuple[Column, Column]]:
    """Constants that no two of a group touch one row, to be moved at once.

    Returns:
        (places in ``names``, whether each constant is that of each row, (n, places)) of each group:
        a constant of its own, or one constant of all frameworks, vendors or stacks.
    """
    framework = np.array([FRAMEWORKS[code] for code in np.ravel(runs.cases.stack.framework)])
    vendor = np.where(np.ravel(runs.cases.cluster.is_amd), "amd", "nvidia")
    members: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        members.setdefault(name.partition("/")[0], []).append(place)
    groups = []
    rows = len(runs.measured_gib)
    for base, places in members.items():
        keys = [names[place].partition("/")[2] for place in places]
        if base in OFFSETS:
            labels = runs.stack_names if base == "stack_offset" else runs.releases
        else:
            labels = framework if keys[0] in FRAMEWORKS else vendor
        touched = [np.broadcast_to((labels == key) | (key == ""), rows) for key in keys]
        groups.append((np.array(places), np.stack(touched, axis=1)))
    return groups


def _prior_precision(names: Sequence[str], sd: Column) -> Column:
    """Inverse covariance of the logs of the constants before the data.

    What one constant is in different frameworks is alike: ``SHARED`` of its variance is common to
    all, so that a framework without runs follows the others.
    """
    base = np.array([name.partition("/")[0] for name in names])
    alike = (base[:, None] == base[None, :]) & ~np.isin(base, OFFSETS)[:, None]
    correlation = np.where(alike, SHARED, 0.0)
    np.fill_diagonal(correlation, 1.0)
    return np.asarray(np.linalg.inv(correlation * np.outer(sd, sd)))


def _log_reading(
    runs: MemoryRuns, held: dict[str, float], names: Sequence[str], log_values: Column
) -> Column:
    """Log of what the counter of each row shows under these constants."""
    values = held | dict(zip(names, np.exp(log_values), strict=True))
    reading = counter_reading(runs.cases, runs.counters, MemoryConstants.from_values(values))
    return np.asarray(np.log(reading))


def _posterior_mode(
    runs: MemoryRuns,
    held: dict[str, float],
    names: Sequence[str],
    start: Column,
    centre: Column,
    sd: Column,
    iterations: int,
) -> tuple[Column, Column]:
    """Logs of the constants at the posterior mode, and their posterior standard deviations."""
    target = np.log(runs.measured_gib)
    row_sd = np.hypot(ROW_SD, ROW_SD_GIB / runs.measured_gib)
    tells_stack = _tells_stack(runs)
    of_stack = np.array([name.partition("/")[0] in OFFSETS for name in names])
    groups = _independent(runs, names)
    precision = _prior_precision(names, sd)
    point = start.copy()
    hessian = precision
    for _ in range(iterations):
        base = _log_reading(runs, held, names, point)
        residual = target - base
        residual = np.where(runs.bound > 0, np.maximum(residual, 0.0), residual)
        residual = np.where(runs.bound < 0, np.minimum(residual, 0.0), residual)
        weight = runs.weight / (row_sd**2 + (residual / ROBUST_AT) ** 2)
        jacobian = np.zeros((len(base), len(names)))
        for places, of_row in groups:
            moved = point.copy()
            moved[places] += STEP
            slope = (_log_reading(runs, held, names, moved) - base) / STEP
            jacobian[:, places] = np.where(of_row, slope[:, None], 0.0)
        jacobian[(runs.bound != 0) & (residual == 0.0)] = 0.0
        jacobian[np.ix_(~tells_stack, of_stack)] = 0.0
        hessian = jacobian.T @ (weight[:, None] * jacobian) + precision
        gradient = jacobian.T @ (weight * residual) - precision @ (point - centre)
        step = np.linalg.solve(hessian, gradient)
        # No constant moves by more than half its prior width at once.
        step /= max(1.0, 2.0 * np.max(np.abs(step / sd)))
        point = point + step
        if np.max(np.abs(step / sd)) < 1e-3:
            break
    return point, np.sqrt(np.diag(np.linalg.inv(hessian)))


def left_out_readings(runs: MemoryRuns, labels: Column, learned: ConstantFile) -> Column:
    """What each row's counter shows under constants that were fitted without its group, (n,).

    Args:
        runs: n rows.
        labels: group of each row, (n,); groups are dealt into ``BATCHES`` batches.
        learned: where the fits start; they end where their own rows and the priors put them.
    """
    reading = np.full(len(runs.measured_gib), np.nan)
    everything = np.arange(len(reading))
    for out in batches_of(labels, BATCHES):
        rest = runs.take(np.setdiff1d(everything, out))
        without = fit_memory(rest, learned, from_prior=False, iterations=REFIT_ITERATIONS)
        unseen = runs.take(out)
        constants = MemoryConstants.from_values(without.values())
        reading[out] = counter_reading(unseen.cases, unseen.counters, constants)
    return reading


def left_out_spreads(
    runs: MemoryRuns, labels: Column, reading: Column, learned: ConstantFile
) -> Column:
    """``memory_log_sd`` of each row, learned from the errors of other groups alone, (n,).

    Args:
        runs: n rows.
        labels: group of each row, (n,).
        reading: ``left_out_readings`` of the rows.
        learned: constants whose spread is replaced.
    """
    errors = np.log(runs.measured_gib / reading)
    spread = np.full(len(errors), np.nan)
    everything = np.arange(len(errors))
    for out in batches_of(labels, BATCHES):
        rest = np.setdiff1d(everything, out)
        values = spread_of(runs.take(rest), errors[rest], learned).values()
        constants = MemoryConstants.from_values(values)
        spread[out] = memory_log_sd(runs.take(out).cases, constants)
    return spread


def with_spread(runs: MemoryRuns, learned: ConstantFile) -> ConstantFile:
    """The constants with ``log_sd``: the error on Folds that the fit did not see."""
    reading = left_out_readings(runs, runs.fold.astype(str), learned)
    return spread_of(runs, np.log(runs.measured_gib / reading), learned)


def spread_of(runs: MemoryRuns, errors: Column, learned: ConstantFile) -> ConstantFile:
    """The constants with the spread of these errors, (n,), by framework and on AMD GPUs.

    The error that two thirds of the rows stay within stands for the standard deviation, which
    outliers would swamp. Folds count alike: a new run is of a new Fold. Frameworks of few Folds are
    drawn towards what holds for all, AMD GPUs of few towards what was believed of them.
    """
    rows, size = judged(runs), np.abs(errors)
    framework = np.broadcast_to(runs.cases.stack.framework, rows.shape)
    spreads = dict(learned.constants)

    def write(name: str, value: float) -> None:
        spreads[name] = spreads[name].model_copy(
            update={"value": float(f"{value:.3g}"), "kind": "fitted"}
        )

    def two_thirds(some: Column) -> float:
        _, fold, count = np.unique(runs.fold[some], return_inverse=True, return_counts=True)
        order = np.argsort(size[some], kind="stable")
        share = np.cumsum(1.0 / count[fold][order]) / len(count)
        return max(float(np.interp(TWO_THIRDS_OF_ROWS, share, size[some][order])), SMALLEST_SPREAD)

    def drawn(some: Column, towards: float) -> float:
        folds = len(np.unique(runs.fold[some]))
        share = folds / (folds + SPREAD_FOLDS)
        return float(two_thirds(some) ** share * towards ** (1.0 - share)) if folds else towards

    if not rows.any():
        return learned
    overall = two_thirds(rows)
    for code, name in enumerate(FRAMEWORKS):
        write(f"log_sd/{name}", drawn(rows & (framework == code), overall))
    amd = rows & np.broadcast_to(runs.cases.cluster.is_amd, rows.shape)
    write("log_sd_amd", drawn(amd, spreads["log_sd_amd"].prior or overall))
    return learned.model_copy(update={"constants": spreads})


def judged(runs: MemoryRuns) -> Column:
    """Rows by which accuracy is judged: stated peaks that are not those of tests, (n,)."""
    return np.asarray((runs.bound == 0) & (runs.measured_gib > SMALL_GIB))


def read_tables(folder: Path) -> list[RunTable]:
    """The tables of a folder of measured runs that state memory."""
    find_model = models_json(folder / "models.json").find
    return [read_runs(folder / name, find_model, catalog.gpu) for name in TABLES]


def main() -> None:
    """Fits the constants that ship with the package."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--measured", type=Path, required=True, help="folder of the run tables")
    parser.add_argument("--out", type=Path, default=CONSTANTS_FILE)
    chosen = parser.parse_args()
    runs = MemoryRuns.of(read_tables(chosen.measured))
    learned = with_spread(runs, fit_memory(runs, read_constants(CONSTANTS_FILE)))
    digest = hashlib.sha256()
    for name in TABLES:
        digest.update((chosen.measured / name).read_bytes())
    labelled = learned.model_copy(
        update={"fitted_on": ", ".join(TABLES), "data_hash": digest.hexdigest()[:16]}
    )
    write_json(chosen.out, labelled.model_dump())


if __name__ == "__main__":
    main()
