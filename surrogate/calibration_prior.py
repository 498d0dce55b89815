"""How the errors of two runs hang together before either is measured: the prior of a calibration.

Three things are shared, from the general to the particular: offsets of the levels GPU, Stack,
release and Model, constants of the physics that are other on a GPU and framework, and whatever
configs of one key have in common because they are alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specs.choices import MoeDispatcher, Precision, Sharding
from surrogate.cases import Cases, Column
from surrogate.pipeline.stages import stage_columns
from surrogate.step_time import step_time
from surrogate.time_constants import TimeConstants, nudged, prior_of
from surrogate.time_rates import ALIASES, BELIEFS, RATE_COLUMNS

Floats = NDArray[np.float64]

MOE_FACTOR = 1.5
"""Errors of MoE runs vary this much more than those of dense runs, on Folds left out."""
SCATTER_SD, MOE_SCATTER_FACTOR = 0.025, 2.5
"""Scatter of runs with equal stated layout, dense, and how much more it is for MoE models."""
UNSTATED_FACTOR = 2.0
"""MoE runs that state neither recomputation nor dispatcher err and scatter twice as much: 15.6%
against 7.1% in the median of the Folds left out. Dense runs do not."""

LEVELS = {
    ("gpu",): 0.015,
    ("gpu", "framework"): 0.02,
    ("gpu", "model"): 0.03,
    ("gpu", "framework", "release"): 0.015,
    ("gpu", "framework", "model"): 0.035,
}
"""Sd of the log offset that runs of one level share, dense models; measured on Folds left out."""
KEY = ("gpu", "framework", "model")
"""Labels of a CalibrationKey; the release is a matter of degree."""

CONFIG_SD = 0.12
"""Sd of the log error that runs of one key share when their configs are alike."""
CONFIG_REACH = 0.6
"""How fast likeness of configs decays within a key, of the rate of the residual."""
DIFFERENT = {"release": 1.0, "precision": 0.5, "dispatcher": 1.0, "tp": 2.0}
"""Runs of one key are exp(-this) alike when they differ in it. Tensor-parallel groups of another
size share links, NICs and host threads in another way: what one size lost says little of the next
(vTrain's multi-node runs of TP2 are 20-40% slower than projected, those of TP8 as projected)."""
RELEASE_MONTHS = 8.0
"""Releases that are named by year and month differ by 1 - exp(-months apart / this) of the full
difference; others differ in full."""

CONSTANT_SHARE = 0.4
"""How far a constant of one GPU and framework may be off, of the sd of its prior or at least of
SMALLEST_CONSTANT_SD. Anything from 0 to 1 predicts Folds left out equally well (within 0.1%)."""
SMALLEST_CONSTANT_SD = 0.1
STEP = 1e-3

LABELS = (
    "gpu", "framework", "release", "model", "precision", "dispatcher", "tp", "sharding", "kind",
)  # fmt: skip


class Labelled(NamedTuple):
    """A column of text as few names and, by row, which of them: codes of shape () or (n,)."""

    names: Column
    codes: Column

    @classmethod
    def of(cls, column: Column) -> Labelled:
        """From text, shape (r,)."""
        names, codes = np.unique(np.asarray(column).astype(str), return_inverse=True)
        return cls(names.astype(object), codes)

    def text(self, rows: int) -> Column:
        """As text, shape (rows,)."""
        return np.broadcast_to(self.names[self.codes], (rows,))

    def by_row(self, by_name: Column) -> Column:
        """What holds for each name, shape (k, r), for each row: shape (n, r), or (1, r)."""
        return np.atleast_2d(by_name[self.codes])


Labels = Mapping[str, Labelled]
Facts = Mapping[str, Column]
"""Labels of measured runs as text, shape (r,) each."""


def labels_of(cases: Cases) -> dict[str, Labelled]:
    """What the errors of every row may depend on beside its coordinates, by the names of LABELS."""
    gpus = np.array([gpu.name for gpu in cases.gpus], dtype=object)
    frameworks = np.array([stack.framework_name for stack in cases.stacks], dtype=object)
    releases = np.array([stack.version for stack in cases.stacks], dtype=object)
    models = np.array([model.name for model in cases.models], dtype=object)
    sizes, tp = np.unique(cases.config.tp, return_inverse=True)
    return {
        "gpu": Labelled(gpus, cases.cluster.gpu),
        "framework": Labelled(frameworks, cases.stack_index),
        "release": Labelled(releases, cases.stack_index),
        "model": Labelled(models, cases.model_index),
        "precision": Labelled(
            np.array(Precision.labels(), dtype=object), cases.config.precision.astype(np.int64)
        ),
        "dispatcher": Labelled(
            np.array(MoeDispatcher.labels(), dtype=object),
            cases.config.moe_dispatcher.astype(np.int64),
        ),
        "tp": Labelled(sizes.astype(str).astype(object), tp),
        "sharding": Labelled(
            np.array(Sharding.labels(), dtype=object), cases.config.sharding.astype(np.int64)
        ),
        "kind": Labelled(
            np.array(["dense", "moe"], dtype=object),
            np.asarray(cases.model.num_experts > 0).astype(np.int64),
        ),
    }


def alike(labels: Labels, facts: Facts, *names: str) -> NDArray[np.bool_]:
    """Whether rows and facts have the same labels of these names, shape (n, r) or (1, r)."""
    same = np.ones((1, len(facts["gpu"])), dtype=bool)
    for name in names:
        column = labels[name]
        same = same & column.by_row(column.names[:, None] == facts[name][None, :])
    return same


def shared_covariance(labels: Labels, distance: Floats, facts: Facts, common: float) -> Floats:
    """Covariance of rows with facts by levels and likeness of configs, shape (n, r).

    Args:
        labels: of n rows.
        distance: squared distance of their coordinates to those of the facts, shape (n, r).
        facts: labels of r facts.
        common: variance that all runs share.
    """
    total = np.full((1, len(facts["gpu"])), common)
    for level, sd in LEVELS.items():
        total = total + sd**2 * alike(labels, facts, *level)
    unlike = np.zeros((1, 1))
    for name, penalty in DIFFERENT.items():
        column = labels[name]
        unlike = unlike + penalty * column.by_row(_difference(name, column.names, facts[name]))
    likeness = np.exp(-0.5 * CONFIG_REACH * distance - unlike)
    total = total + CONFIG_SD**2 * likeness * alike(labels, facts, *KEY)
    kind = labels["kind"]
    factor = np.where(kind.names == "moe", MOE_FACTOR**2, 1.0)[:, None]
    shared: Floats = total * kind.by_row(factor * (kind.names[:, None] == facts["kind"]))
    return shared


def _difference(name: str, labels: Column, others: Column) -> Floats:
    """How different two labels are, 0 to 1, shape (k, r)."""
    different: Floats = (labels[:, None] != others[None, :]).astype(np.float64)
    if name == "release":
        months = np.abs(_months(labels)[:, None] - _months(others)[None, :])
        apart = 1.0 - np.exp(-months / RELEASE_MONTHS)
        different = np.where(np.isfinite(months), different * apart, different)
    return different


def _months(releases: Column) -> Floats:
    """Months since 2000 of releases named YY.MM or YY.MM.PATCH, NaN otherwise."""
    found = [re.fullmatch(r"([1-9]\d)\.(0?[1-9]|1[0-2])(?:\.(\d+))?", str(r)) for r in releases]
    return np.array(
        [12 * int(m[1]) + int(m[2]) + 0.3 * int(m[3] or 0) if m else np.nan for m in found]
    )


def squared_distance(points: Floats, others: Floats) -> Floats:
    """Squared distance of coordinates, shape (n, r)."""
    squared = np.square(points).sum(axis=1)[:, None] + np.square(others).sum(axis=1)
    distance: Floats = np.maximum(squared - 2.0 * points @ others.T, 0.0)
    return distance


def prior_variance(common: float) -> float:
    """Variance of the log offset of a dense run of which nothing is known."""
    return sum(sd**2 for sd in LEVELS.values()) + CONFIG_SD**2 + common


def scatter_of(cases: Cases, unstated: Column) -> Floats:
    """Sd of runs around what runs of the same stated layout have in common, shape (n,)."""
    moe = np.broadcast_to(cases.model.num_experts > 0, (len(cases),))
    doubt = MOE_SCATTER_FACTOR * np.where(unstated, UNSTATED_FACTOR, 1.0)
    scatter: Floats = SCATTER_SD * np.where(moe, doubt, 1.0)
    return scatter


def constant_sd() -> Floats:
    """How different each constant may be on a GPU and framework of its own, in log space."""
    widths = [max(prior_of(name)[1], SMALLEST_CONSTANT_SD) for name in BELIEFS]
    return CONSTANT_SHARE * np.array(widths)


def constant_slopes(cases: Cases, constants: TimeConstants) -> Floats:
    """Derivatives of log tokens/s by the log of each constant of BELIEFS, shape (n, c)."""
    rates, stages = constants.rates(cases), stage_columns(cases)
    base = np.log(step_time(cases, rates=rates, stages=stages).step_time_s)
    place = {name: index for index, name in enumerate(BELIEFS)}
    slopes = np.zeros((len(cases), len(BELIEFS)))
    for column in RATE_COLUMNS:
        moved = step_time(cases, rates=nudged(rates, column, np.exp(STEP)), stages=stages)
        change = (base - np.log(moved.step_time_s)) / STEP
        slopes[:, place[ALIASES.get(column, column)]] += change
    return slopes
