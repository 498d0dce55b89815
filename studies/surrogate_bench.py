"""How accurate the surrogate is on what it has not seen: the JSON of ``foretune bench surrogate``.

Everything is learned again without the Folds, models or publishers that are then projected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.errors import InputError
from specs.run_rows import model_flops_per_token
from specs.runs import RunTable
from specs.stack import Framework
from studies.accuracy import read_table
from studies.calibration_bench import after_runs, family_slices
from surrogate.constants import read_constants
from surrogate.features import classes, features
from surrogate.kernels.analytic import analytic_kernels
from surrogate.learned import Learned, shipped
from surrogate.learning import RunLearner, has_throughput, leave_each_out
from surrogate.memory_accuracy import memory_left_out
from surrogate.memory_fitting import CONSTANTS_FILE, MemoryRuns, read_tables, usable
from surrogate.residual import Residual
from surrogate.run_cases import cases_of
from surrogate.speed_of_light import fastest_tokens_per_s_per_gpu
from surrogate.uncertainty import GAUSSIAN_90, Intervals, conformal_width
from surrogate.validation import (
    Projected,
    batches_of,
    error_metrics,
    leave_out,
    ranking_metrics,
    worst_folds,
)

Column = NDArray[Any]
Advance = Callable[[int], None]

ABLATION_BATCHES = 12
"""Fits of an ablation, each of which leaves out several groups at once."""
VTRAIN_DRAWS, VTRAIN_RUNS = 50, 8
STEPS = 8


def surrogate_bench(data: Path, advance: Advance) -> dict[str, Any]:
    """Errors of throughput, memory and kernels on what was left out.

    Args:
        data: folder with ``measured/`` and, for the kernels, ``profiles/``; or the measured folder.
        advance: called with 1 after each of STEPS steps.

    Raises:
        InputError: the folder has no runs.csv.
    """
    measured = data / "measured" if (data / "measured").is_dir() else data
    if not (measured / "runs.csv").is_file():
        raise InputError(f"{data} has no runs.csv; give the folder of measured runs with --data.")
    table = read_table(measured / "runs.csv", measured / "models.json")
    table = table.take(has_throughput(table))
    content: dict[str, Any] = {"runs": len(table), "folds": {}}
    groups = {
        "fold": table.fold,
        "source_fold": table.source_fold,
        "model": table.model,
        "source": table.publisher,
        "gpu": table.gpu,
        "framework": table.framework,
    }
    for name, labels in groups.items():
        told = labels if name == "source_fold" else table.fold
        content["folds"][name] = left_out(table, labels, told, with_ablations=name == "fold")
        advance(1)
    content["beside"] = beside_memory(measured)
    content["vtrain"] = vtrain(table)
    content["memory"] = memory_errors(measured)
    advance(1)
    content["kernels"] = kernels(data)
    advance(1)
    return content


def left_out(table: RunTable, labels: Column, told: Column, with_ablations: bool) -> dict[str, Any]:
    """Metrics of throughput with whole groups left out, zero-shot and after runs of each Fold.

    Args:
        table: rows with measured throughput.
        labels: group of each row that is left out, shape (n,).
        told: Fold of each row, whose runs are revealed, shape (n,); each lies within one group.
        with_ablations: whether to judge the parts of the surrogate alone.
    """
    measured = table.tokens_per_s_per_gpu
    projected, predictors = leave_each_out(table, labels)
    projected = cross_conformal(table, projected, [rows for rows, _ in predictors])
    result: dict[str, Any] = {
        "zero_shot": by_family(table, measured, projected),
        "groups": ranking_metrics(table, measured, projected.value),
    }
    result |= after_runs(table, predictors, projected, told)
    if with_ablations:
        result["worst_folds"] = worst_folds(table, measured, projected.value)
        result["ablations"] = {
            "physics_alone": error_metrics(measured, without_residual(table, predictors)),
            "residual_alone": error_metrics(measured, trees_alone(table, labels)),
            "without_kernel_profiles": error_metrics(measured, without_profiles(table, labels)),
        }
    return result


def by_family(table: RunTable, measured: Column, projected: Projected) -> dict[str, Any]:
    """Metrics of all rows, and of dense, MoE, AMD and NVIDIA rows."""
    result: dict[str, Any] = error_metrics(measured, projected)
    for name, rows in family_slices(table).items():
        result[name] = error_metrics(measured[rows], projected.take(rows))
    return result


def cross_conformal(table: RunTable, projected: Projected, batches: list[Column]) -> Projected:
    """Intervals whose width is measured on the other batches, so that coverage is honest."""
    errors = np.abs(np.log(table.tokens_per_s_per_gpu / projected.value))
    spread = np.log(projected.hi90 / projected.value) / GAUSSIAN_90
    half = np.empty(len(table))
    everything = np.arange(len(table))
    for rows in batches:
        others = np.setdiff1d(everything, rows)
        for moe in (False, True):
            known = others[table.is_moe[others] == moe]
            asked = rows[table.is_moe[rows] == moe]
            width = conformal_width(errors[known], spread[known])
            half[asked] = width * spread[asked]
    value = projected.value
    return Projected(value, value * np.exp(-half), value * np.exp(half))


def without_residual(table: RunTable, predictors: list[tuple[Column, Any]]) -> Projected:
    """What the constants alone project, learned with the residual beside them."""
    projected = Projected.empty(len(table))
    for rows, predictor in predictors:
        assert isinstance(predictor, Learned)
        bare = replace(predictor, residual=Residual.nothing())
        projected.fill(rows, bare.predict(table.take(rows)))
    return projected


def without_profiles(table: RunTable, labels: Column) -> Projected:
    """Everything learned again on kernels of one utilisation for all GPUs."""
    with analytic_kernels():
        return leave_out(table, labels, RunLearner(Intervals.gaussian()), ABLATION_BATCHES)[0]


def trees_alone(table: RunTable, labels: Column) -> Projected:
    """Gradient-boosted trees on model FLOP utilisation, without any physics of time."""
    import xgboost

    cases = cases_of(table)
    flops = np.array([model_flops_per_token(w.model, w.seq_len, True) for w in table.workloads])
    utilisation = np.log(table.tokens_per_s_per_gpu * flops / cases.cluster.peak_bf16_flops)
    codes = [np.unique(c.astype(str), return_inverse=True)[1] for c in classes(cases).values()]
    inputs = np.column_stack([features(cases), cases.config.precision, *codes])
    projected = Projected.empty(len(table))
    everything = np.arange(len(table))
    for rows in batches_of(labels, ABLATION_BATCHES):
        known = np.setdiff1d(everything, rows)
        trees = xgboost.XGBRegressor(
            n_estimators=300, max_depth=4, learning_rate=0.05, subsample=0.7,
            colsample_bytree=0.5, n_jobs=1, random_state=0,
        )  # fmt: skip
        trees.fit(inputs[known], utilisation[known])
        speed = table.tokens_per_s_per_gpu[rows] * np.exp(
            trees.predict(inputs[rows]) - utilisation[rows]
        )
        projected.fill(rows, Projected(speed, speed, speed))
    return projected


def vtrain(table: RunTable) -> dict[str, Any]:
    """Multi-node runs of vTrain (MICRO-57) from everything but them, and after eight of them."""
    nodes = np.array([cluster.num_nodes for cluster in table.clusters])
    multi = np.char.find(table.publisher.astype(str), "vTrain") >= 0
    rows = np.flatnonzero(multi & (nodes > 1))
    if len(rows) <= VTRAIN_RUNS:
        return {"n": len(rows)}
    asked = table.take(rows)
    predictor = RunLearner(Intervals.gaussian()).fit(
        table.take(np.setdiff1d(np.arange(len(table)), rows))
    )
    measured = asked.tokens_per_s_per_gpu
    after = predictor.rehearse(asked)
    generator = np.random.default_rng(0)
    errors = []
    for _ in range(VTRAIN_DRAWS):
        order = generator.permutation(len(rows))
        known, rest = order[:VTRAIN_RUNS], order[VTRAIN_RUNS:]
        errors.append(float(np.abs(after(known, rest).value / measured[rest] - 1).mean()))
    return {
        "n": len(rows),
        "zero_shot": error_metrics(measured, predictor.predict(asked)),
        "after_8_runs": {"mape": float(np.mean(errors)), "sd": float(np.std(errors))},
    }


def beside_memory(measured: Path) -> dict[str, Any]:
    """Throughput of runs that were published for their memory: what shipped has not learned from.

    Such runs are seldom tuned and tell little of cluster and software. Runs that are said to be
    faster than their GPUs can multiply are left out. Of ``trainers`` (Transformers) four constants
    were set by these runs.
    """
    path = measured / "memory_runs.csv"
    if not path.is_file():
        return {"n": 0}
    table = read_table(path, measured / "models.json")
    table = table.take(has_throughput(table))
    possible = table.tokens_per_s_per_gpu <= fastest_tokens_per_s_per_gpu(cases_of(table))
    table = table.take(possible)
    projected = shipped().predict(table)
    trainers = np.array([s.framework == Framework.HUGGING_FACE for s in table.stacks])
    result: dict[str, Any] = {"n": len(table)}
    for name, rows in (("trainers", trainers), ("others", ~trainers)):
        measured_speed = table.tokens_per_s_per_gpu[rows]
        result[name] = error_metrics(measured_speed, projected.take(rows))
    return result


def memory_errors(folder: Path) -> dict[str, Any]:
    """Peak memory of runs with stated configs, Folds and publishers left out.

    Peaks of a few GiB, of tests with tiny models, teach but are not judged.
    """
    tables = read_tables(folder)
    publishers = np.concatenate([usable(table).publisher for table in tables])
    return memory_left_out(MemoryRuns.of(tables), publishers, read_constants(CONSTANTS_FILE))


def kernels(data: Path) -> dict[str, Any]:
    """Errors of the kernel laws, shapes and whole GPUs left out; empty without profiles."""
    from surrogate.kernels.validation import kernel_table

    folder = data / "profiles" if (data / "profiles").is_dir() else data.parent / "profiles"
    return kernel_table(folder) if folder.is_dir() else {}
