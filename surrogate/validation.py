"""How accurate projections are: error metrics against measured runs, and honest leave-out folds.

Ratios are fractions (0.05 is 5%); ``bias`` is mean(projected / measured - 1). Runs are never split
at random: whole groups (Folds, models, publishers) are left out, and everything that is learned is
learned again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specs.runs import RunTable, comparison_sets

Column = NDArray[Any]

TIED_DECIMALS = 6
"""Decimals of projections over the largest beyond which they differ by rounding alone."""

UNSAFE_BELOW = 0.9
"""A memory projection under this share of the measured peak counts as unsafe."""


@dataclass(frozen=True)
class Projected:
    """Projected values with their 90% interval, shape (n,)."""

    value: Column
    lo90: Column
    hi90: Column

    def take(self, rows: Any) -> Projected:
        """The selected rows."""
        return Projected(self.value[rows], self.lo90[rows], self.hi90[rows])

    @classmethod
    def empty(cls, size: int) -> Projected:
        """Columns of NaN to be filled."""
        return cls(*(np.full(size, np.nan) for _ in range(3)))

    def fill(self, rows: Column, part: Projected) -> None:
        """Writes the values of ``part`` into ``rows``."""
        self.value[rows], self.lo90[rows], self.hi90[rows] = part.value, part.lo90, part.hi90


class Predictor(Protocol):
    """What has been learned from some runs."""

    def predict(self, table: RunTable) -> Projected:
        """Projections of the rows."""
        ...

    def rehearse(self, table: RunTable) -> Callable[[Column, Column], Projected]:
        """(rows that are known, other rows) -> projections of the others after calibration."""
        ...


class Learner(Protocol):
    """Learns a Predictor from measured runs; deterministic."""

    def fit(self, train: RunTable) -> Predictor:
        """A Predictor that has seen only ``train``."""
        ...


def error_metrics(
    measured: Column, projected: Projected, weights: Column | None = None
) -> dict[str, float | int | None]:
    """n, mape, median_ape, p90_ape, bias, coverage90 and half_width90; None without rows.

    Args:
        measured: shape (n,), positive.
        projected: shape (n,).
        weights: shape (n,); equal where not given.
    """
    names = ("mape", "median_ape", "p90_ape", "bias", "coverage90", "half_width90")
    if not len(measured):
        return {"n": 0, **dict.fromkeys(names, None)}
    weight = np.ones(len(measured)) if weights is None else weights
    ratio = projected.value / measured - 1
    inside = (projected.lo90 <= measured) & (measured <= projected.hi90)
    half_width = (projected.hi90 - projected.lo90) / 2 / projected.value
    values = (
        _mean(np.abs(ratio), weight),
        _quantile(np.abs(ratio), weight, 0.5),
        _quantile(np.abs(ratio), weight, 0.9),
        _mean(ratio, weight),
        _mean(inside.astype(float), weight),
        _mean(half_width, weight),
    )
    return {"n": len(measured), **dict(zip(names, values, strict=True))}


def unsafe_share(measured: Column, projected: Column) -> float | None:
    """Share of rows whose projected memory is more than 10% under the measured peak."""
    if not len(measured):
        return None
    return float((projected < UNSAFE_BELOW * measured).mean())


def slice_labels(table: RunTable) -> dict[str, Column]:
    """Slice name -> label of each row; the family is dense or moe."""
    family = np.where(table.is_moe, "moe", "dense").astype(object)
    return {
        "gpu": table.gpu,
        "source": table.publisher,
        "model": table.model,
        "vendor": table.vendor,
        "family": family,
        "framework": table.framework,
    }


def sliced_metrics(
    table: RunTable, measured: Column, projected: Projected, memory: bool = False
) -> dict[str, Any]:
    """``error_metrics`` of all rows and ``by`` slice; with ``unsafe`` for memory."""

    def metrics(rows: Column) -> dict[str, Any]:
        values: dict[str, Any] = error_metrics(measured[rows], projected.take(rows))
        if memory:
            values["unsafe"] = unsafe_share(measured[rows], projected.value[rows])
        return values

    result = metrics(np.arange(len(table)))
    result["by"] = {
        name: {
            str(label): metrics(np.flatnonzero(labels == label))
            for label in sorted(set(labels.tolist()))
        }
        for name, labels in slice_labels(table).items()
    }
    return result


def ranking_metrics(
    table: RunTable, measured: Column, projected: Column, smallest: int = 4
) -> dict[str, float | int | None]:
    """Ranking within ComparisonSets: mean Kendall tau and mean regret of the projected best.

    Projections of configs that only differ in what no axis says are equal up to rounding: they are
    ties, and of equal best projections any may be chosen. Sets in which every measurement or every
    projection is the same have no ranking to find and are left out.
    """
    from scipy.stats import kendalltau

    taus, regrets = [], []
    for rows in comparison_sets(table, smallest).values():
        truth, guess = measured[rows], projected[rows]
        guess = np.round(guess / np.abs(guess).max(), TIED_DECIMALS)
        if np.ptp(truth) == 0 or np.ptp(guess) == 0:
            continue
        taus.append(float(kendalltau(guess, truth).statistic))
        regrets.append(1.0 - float(truth[guess == guess.max()].mean() / truth.max()))
    if not taus:
        return {"n": 0, "kendall_tau": None, "top1_regret": None}
    return {
        "n": len(taus),
        "kendall_tau": float(np.mean(taus)),
        "top1_regret": float(np.mean(regrets)),
    }


def batches_of(labels: Column, count: int, seed: int = 0) -> list[Column]:
    """Whole groups dealt into at most ``count`` batches of about equal rows.

    Leaving out several groups at once needs fewer fits than one at a time and is, if anything,
    harder. Large groups are dealt first; ties are broken by a seeded shuffle.
    """
    names, inverse, sizes = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    order = order[np.argsort(-sizes[order], kind="stable")]
    load = np.zeros(min(count, len(names)), dtype=np.int64)
    batch_of = np.empty(len(names), dtype=np.int64)
    for name in order:
        batch_of[name] = np.argmin(load)
        load[batch_of[name]] += sizes[name]
    return [np.flatnonzero(batch_of[inverse] == batch) for batch in range(len(load))]


def leave_out(
    table: RunTable, labels: Column, learner: Learner, batches: int = 10, seed: int = 0
) -> tuple[Projected, list[tuple[Column, Predictor]]]:
    """Each row projected by what was learned without its group.

    Args:
        table: rows with a measured value.
        labels: group of each row, shape (n,).
        learner: fitted once a batch.
        batches: at most this many fits.
        seed: of the dealing of groups to batches.

    Returns:
        Projections in row order, and the (rows left out, predictor) of each batch.
    """
    projected = Projected.empty(len(table))
    predictors: list[tuple[Column, Predictor]] = []
    everything = np.arange(len(table))
    for rows in batches_of(labels, batches, seed):
        predictor = learner.fit(table.take(np.setdiff1d(everything, rows)))
        projected.fill(rows, predictor.predict(table.take(rows)))
        predictors.append((rows, predictor))
    return projected, predictors


@dataclass(frozen=True)
class CalibrationDraws:
    """What is projected after some runs of each Fold were revealed, over seeded draws.

    Columns have one entry a projected row and draw: ``rows`` its place in the table, ``draw`` the
    number of the draw, ``weight`` one over the rows left in its Fold, so that Folds count equally.
    """

    rows: Column
    draw: Column
    weight: Column
    projected: Projected
    folds: int
    smaller_folds: tuple[str, ...]


def calibration_draws(
    table: RunTable,
    predictors: Sequence[tuple[Column, Predictor]],
    runs: int,
    draws: int = 20,
    seed: int = 0,
    folds: Column | None = None,
) -> CalibrationDraws:
    """Reveals ``runs`` runs of each Fold, calibrates with them and projects the rest.

    Args:
        table: measured rows.
        predictors: (rows, predictor that has not seen them); a Fold must lie within one of them.
        runs: runs of the Fold that are revealed in each draw.
        draws: how often they are drawn.
        seed: of the draws.
        folds: Fold of each row, shape (n,); those of the table where not given.
    """
    folds = table.fold if folds is None else folds
    rows_of, draw_of, weight, parts = [], [], [], []
    smaller: list[str] = []
    count = 0
    for rows, predictor in predictors:
        after = predictor.rehearse(table.take(rows))
        fold_of = folds[rows]
        for name in dict.fromkeys(fold_of.tolist()):
            members = np.flatnonzero(fold_of == name)
            if len(members) <= runs:
                smaller.append(name)
                continue
            count += 1
            generator = np.random.default_rng([seed, count])
            for draw in range(draws):
                known = generator.permutation(len(members))[:runs]
                rest = np.delete(members, known)
                parts.append(after(members[known], rest))
                rows_of.append(rows[rest])
                weight.append(np.full(len(rest), 1.0 / len(rest)))
                draw_of.append(np.full(len(rest), draw))
    names = ("value", "lo90", "hi90")
    empty = [np.empty(0)]
    joined = Projected(*(np.concatenate([getattr(p, n) for p in parts] or empty) for n in names))
    return CalibrationDraws(
        rows=np.concatenate(rows_of or empty).astype(np.int64),
        draw=np.concatenate(draw_of or empty).astype(np.int64),
        weight=np.concatenate(weight or empty),
        projected=joined,
        folds=count,
        smaller_folds=tuple(smaller),
    )


def calibration_metrics(measured: Column, drawn: CalibrationDraws) -> dict[str, Any]:
    """``error_metrics`` after calibration, Folds weighted equally.

    Returns:
        The metrics with ``mape_sd`` over the draws, the number of ``folds`` and ``draws``, and
        ``smaller_folds``, those with no row left after the draw.
    """
    truth = measured[drawn.rows]
    result: dict[str, Any] = error_metrics(truth, drawn.projected, drawn.weight)
    ape = np.abs(drawn.projected.value / truth - 1)
    by_draw = [
        _mean(ape[drawn.draw == d], drawn.weight[drawn.draw == d]) for d in np.unique(drawn.draw)
    ]
    result.update(
        mape_sd=float(np.std(by_draw)) if by_draw else None,
        folds=drawn.folds,
        draws=len(by_draw),
        smaller_folds=list(drawn.smaller_folds),
    )
    return result


def worst_folds(
    table: RunTable, measured: Column, projected: Column, count: int = 10
) -> list[dict[str, Any]]:
    """Folds with the largest mean absolute error: fold, n, mape, bias."""
    rows_of: dict[str, list[int]] = {}
    for index, name in enumerate(table.fold):
        rows_of.setdefault(name, []).append(index)
    found: list[dict[str, Any]] = []
    for name, rows in rows_of.items():
        ratio = projected[rows] / measured[rows] - 1
        found.append(
            {
                "fold": name,
                "n": len(rows),
                "mape": float(np.abs(ratio).mean()),
                "bias": float(ratio.mean()),
            }
        )
    return sorted(found, key=lambda entry: -entry["mape"])[:count]


def _mean(values: Column, weights: Column) -> float:
    return float(np.average(values, weights=weights))


def _quantile(values: Column, weights: Column, share: float) -> float:
    """Weighted quantile: the smallest value with at least this share of the weight at or below."""
    if np.ptp(weights) == 0:
        return float(np.quantile(values, share))
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    place = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(values[order[min(place, len(values) - 1)]])
