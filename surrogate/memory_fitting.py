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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import catalog
from specs.choices import Sharding
from specs.config import ConfigTable
from specs.models_json import models_json
from specs.runs import RunTable, read_runs
from specs.stack import Framework
from surrogate.cases import Cases
from surrogate.constants import Constant, ConstantFile, read_constants, write_json
from surrogate.memory import counter_reading
from surrogate.memory_constants import FRAMEWORKS, MemoryConstants

Column = NDArray[Any]

CONSTANTS_FILE = Path(__file__).parent / "data" / "memory_constants.json"

TABLES = ("runs.csv", "memory_runs.csv", "small_runs_memory.csv")

ROW_SD = 0.03
"""Log error of a projection whose constants are right: rounding of sources, unstated settings."""
ROW_SD_GIB = 0.3
"""Error that does not shrink with the job: rounding to GB, workspaces, small tensors."""
ROBUST_AT = 3.0
"""Standard deviations from which a row loses weight (Cauchy)."""
STACK_PRIOR_SD = 0.06
"""How far one stack differs from its framework family, in log of live memory."""
FOLD_POWER = 0.5
"""A Fold of n rows counts as n to this power: its rows share what they do not state."""
ITERATIONS = 12
STEP = 1e-3
SPREAD_GROUPS = 8
SPREAD_ITERATIONS = 3
SMALL_GIB = 4.0
"""Smaller peaks are those of tests, whose error is that of fixed buffers."""


@dataclass(frozen=True)
class MemoryRuns:
    """n measured peaks, columns of shape (n,).

    ``measured_gib`` is what ``counters`` showed. ``bound`` is 0 there; it is 1 for rows that ran
    out of memory and -1 for rows that ran and state no peak: their need is above, or below, the
    capacity of the GPU, which ``measured_gib`` then holds. ``fold`` numbers the Folds.
    """

    cases: Cases
    counters: Column
    measured_gib: Column
    bound: Column
    weight: Column
    fold: Column
    stack_names: Column

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
            weight=size[fold] ** (FOLD_POWER - 1.0),
            fold=fold,
            stack_names=np.array([stack.framework_name for stack in stacks], dtype=object),
        )

    def take(self, rows: Any) -> MemoryRuns:
        """The selected rows."""
        columns = ("counters", "measured_gib", "bound", "weight", "fold", "stack_names")
        picked = {name: getattr(self, name)[rows] for name in columns}
        return MemoryRuns(cases=self.cases.take(rows), **picked)


def usable(table: RunTable) -> RunTable:
    """The rows that state their recomputation and a peak, OOM or throughput.

    A row that only ran bounds its memory where its sharding is stated: "none" is also what a table
    that says nothing reads as.
    """
    ran = np.isfinite(table.tokens_per_s_per_gpu) & (table.config.sharding > int(Sharding.NONE))
    told = np.isfinite(table.peak_memory_gib) | table.out_of_memory | ran
    return table.take(told & ~table.recompute_unknown)


def fit_memory(
    runs: MemoryRuns, prior: ConstantFile, from_prior: bool = True, iterations: int = ITERATIONS
) -> ConstantFile:
    """Constants that explain the runs, starting from and held near their priors."""
    constants = _with_stacks(prior, runs.stack_names.tolist())
    names = _free(constants, runs)
    constants = _forgotten(constants, names)
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


def _with_stacks(prior: ConstantFile, names: Sequence[str]) -> ConstantFile:
    """The file without old stack offsets, with one at 1 for each stack of the runs."""
    kept = {k: v for k, v in prior.constants.items() if not k.startswith("stack_offset/")}
    for name in sorted(set(names)):
        kept[f"stack_offset/{name}"] = Constant(
            value=1.0,
            kind="assumed",
            source="live memory of a stack over that of its family",
            prior=1.0,
            prior_sd=STACK_PRIOR_SD,
        )
    return prior.model_copy(update={"constants": kept})


def _free(constants: ConstantFile, runs: MemoryRuns) -> list[str]:
    """Constants with a prior width that rows of these runs can depend on."""
    present = {Framework(int(code)).name.lower() for code in np.ravel(runs.cases.stack.framework)}
    absent = set(FRAMEWORKS) - present
    return [
        name
        for name, constant in sorted(constants.constants.items())
        if constant.prior_sd and name.rpartition("/")[2] not in absent
    ]


def _forgotten(constants: ConstantFile, names: Sequence[str]) -> ConstantFile:
    """The file with what these runs say nothing about back at its prior."""
    kept = dict(constants.constants)
    for name, constant in kept.items():
        if constant.prior_sd and constant.prior is not None and name not in names:
            kept[name] = constant.model_copy(
                update={"value": constant.prior, "kind": "assumed", "posterior_sd": None}
            )
    return constants.model_copy(update={"constants": kept})


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
    # Runs that only ran, and readings of one rank, which are tests of a framework's own, teach the
    # physics; what a stack does differently only peaks and failures of its jobs can tell.
    tells_stack = (runs.bound >= 0) & (runs.counters != "allocated-last-rank")
    of_stack = np.array([name.startswith("stack_offset/") for name in names])
    point = start.copy()
    hessian = np.diag(sd**-2)
    for _ in range(iterations):
        base = _log_reading(runs, held, names, point)
        residual = target - base
        residual = np.where(runs.bound > 0, np.maximum(residual, 0.0), residual)
        residual = np.where(runs.bound < 0, np.minimum(residual, 0.0), residual)
        weight = runs.weight / (row_sd**2 + (residual / ROBUST_AT) ** 2)
        jacobian = np.empty((len(base), len(names)))
        for place in range(len(names)):
            moved = point.copy()
            moved[place] += STEP
            jacobian[:, place] = (_log_reading(runs, held, names, moved) - base) / STEP
        jacobian[(runs.bound != 0) & (residual == 0.0)] = 0.0
        jacobian[np.ix_(~tells_stack, of_stack)] = 0.0
        hessian = jacobian.T @ (weight[:, None] * jacobian) + np.diag(sd**-2)
        gradient = jacobian.T @ (weight * residual) - (point - centre) / sd**2
        step = np.linalg.solve(hessian, gradient)
        # No constant moves by more than half its prior width at once.
        step /= max(1.0, 2.0 * np.max(np.abs(step / sd)))
        point = point + step
        if np.max(np.abs(step / sd)) < 1e-3:
            break
    return point, np.sqrt(np.diag(np.linalg.inv(hessian)))


def with_spread(runs: MemoryRuns, learned: ConstantFile) -> ConstantFile:
    """The constants with ``log_sd`` of each vendor: the error on Folds that the fit did not see.

    Folds are left out in groups, the constants learned again without them. The error that two
    thirds of the rows stay within stands for the standard deviation, which outliers would swamp.
    """
    error = np.full(len(runs.measured_gib), np.nan)
    for group in range(SPREAD_GROUPS):
        out = runs.fold % SPREAD_GROUPS == group
        without = fit_memory(
            runs.take(~out), learned, from_prior=False, iterations=SPREAD_ITERATIONS
        )
        unseen = runs.take(out)
        constants = MemoryConstants.from_values(without.values())
        reading = counter_reading(unseen.cases, unseen.counters, constants)
        error[out] = np.abs(np.log(unseen.measured_gib / reading))
    measured = (runs.bound == 0) & (runs.measured_gib > SMALL_GIB)
    is_amd = np.broadcast_to(runs.cases.cluster.is_amd, measured.shape)
    spreads = dict(learned.constants)
    for vendor, rows in (("nvidia", measured & ~is_amd), ("amd", measured & is_amd)):
        known = spreads[f"log_sd/{vendor}"]
        value = float(np.quantile(error[rows], 0.683)) if rows.any() else known.value
        spreads[f"log_sd/{vendor}"] = known.model_copy(
            update={"value": float(f"{value:.3g}"), "kind": "fitted"}
        )
    return learned.model_copy(update={"constants": spreads})


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
