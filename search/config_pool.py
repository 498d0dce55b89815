"""The legal space of a training job as a pool: every config a candidate, projected once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.distributions import config_key, distributions, layout_kind, parameters
from search.pool import BEST_ROWS, EXACT_ROWS, TAIL_ROWS, Belief, Pool, Rows
from search.ranking import Projected, Surrogate, rank
from search.space import Space
from specs.choices import Choice, Overlap, RecomputeModules
from specs.config import AXES, ConfigTable, TrainingConfig
from surrogate.cases import Cases
from surrogate.features import features
from surrogate.learned import shipped
from surrogate.memory import memory_log_sd

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Column = NDArray[Any]
Objectives = Callable[[Projected], NDArray[np.float64]]
"""Objective values of projected rows, shape (n, objectives)."""
WAVES = 256
"""Columns that stand for the residual: covariances are right to about 0.06 of the variance."""
SMALLEST_LOADING = 0.003
"""Directions of the constants that move configs less than this are left out."""
AsCases = Callable[[ConfigTable], Cases]

WITHIN, ROWS_PER_CORE = 0.1, 256
"""A pool cut from a large space sees every core within 10% of the best, 256 configs of each."""
KEY = "config_key"
"""User attribute of a trial: which config it evaluates, exactly."""


def throughput_only(projected: Projected) -> NDArray[np.float64]:
    """Tokens/s/GPU as the only objective."""
    return np.asarray(projected.tokens_per_s_per_gpu, dtype=np.float64)[:, None]


@dataclass(frozen=True)
class ConfigPool(Pool):
    """A pool whose row ``i`` is config ``i`` of ``table``.

    Configs that the search distributions cannot tell apart (two explicit layouts) are told apart by
    the user attribute ``config_key`` of a trial.
    """

    table: ConfigTable = field(default_factory=lambda: ConfigTable.from_configs([]))
    surrogate: Surrogate | None = field(default=None, repr=False)
    objectives: Objectives = throughput_only
    cases: AsCases | None = field(default=None, repr=False)

    def config(self, row: int) -> TrainingConfig:
        """The config of a row."""
        return self.table.config(row)

    def row_of(self, config: TrainingConfig) -> int | None:
        """The row of a config; None where it is not in the pool."""
        rows = self.matching(parameters(config))
        return next((int(row) for row in rows if self.table.config(int(row)) == config), None)

    def rows_of(self, trials: Sequence[FrozenTrial]) -> list[int | None]:
        """The row of each trial's config."""
        return [self._row_of(trial) for trial in trials]

    def _row_of(self, trial: FrozenTrial) -> int | None:
        if "config" in trial.user_attrs:
            return self.row_of(TrainingConfig.from_labels(trial.user_attrs["config"]))
        return super().rows_of([trial])[0]

    def outside(self, trials: Sequence[FrozenTrial]) -> tuple[Rows, Belief | None, list[int]]:
        """(codes, belief, which) of trials of configs beside the pool."""
        which = [n for n, trial in enumerate(trials) if "config" in trial.user_attrs]
        configs = [TrainingConfig.from_labels(trials[n].user_attrs["config"]) for n in which]
        codes = [self.code_of(parameters(config), exactly=False) for config in configs]
        kept = [n for n, code in enumerate(codes) if code is not None]
        if not kept or self.surrogate is None:
            return np.empty((0, len(self.space)), dtype=np.int64), None, []
        table = ConfigTable.from_configs([configs[n] for n in kept])
        seen = self.surrogate.project(table)
        placed = [codes[n] or {} for n in kept]
        return (
            np.array([[code[c] for c in range(len(self.space))] for code in placed]),
            believed(table, seen, self.objectives, self.cases),
            [which[n] for n in kept],
        )


def config_pool(
    space: Space,
    surrogate: Surrogate,
    capacity_gib: float,
    objectives: Objectives = throughput_only,
    cases: AsCases | None = None,
    extra: Sequence[TrainingConfig] = (),
    seed: int = 0,
) -> ConfigPool:
    """The configs of a space with their projections.

    Args:
        space: all legal configs.
        surrogate: projects them.
        capacity_gib: memory of the GPU.
        objectives: what is to be traded off; throughput alone where not given.
        cases: configs as the surrogate's cases: what the surrogate is unsure of then helps to tell
            what a measurement says of other configs.
        extra: legal configs that belong to the pool whatever the space (the baseline).
        seed: of the random tail where the space is too large to take whole.
    """
    total = len(space)
    note = ""
    if total <= EXACT_ROWS:
        table = ConfigTable.concat([*space.chunks()]) if total else space.core
    else:
        best = rank(space, surrogate, capacity_gib, BEST_ROWS, WITHIN, per_core=ROWS_PER_CORE).table
        tail = space.sample(TAIL_ROWS, seed)
        table = ConfigTable.concat([best, tail])
        note = (
            f"{total:,} legal configs are too many to weigh all of them: the search chooses from "
            f"the best {len(best):,} as projected and {len(tail):,} drawn at random."
        )
    if extra:
        table = ConfigTable.concat([table, ConfigTable.from_configs(extra)])
    codes, values = parameter_codes(table)
    _, first = np.unique(_identities(table), axis=0, return_index=True)
    rows = np.sort(first)
    table, codes = table.take(rows), codes[rows]
    seen = surrogate.project(table)
    return ConfigPool(
        space=dict(distributions()),
        values=values,
        codes=codes,
        belief=believed(table, seen, objectives, cases),
        capacity_gib=capacity_gib,
        total=total,
        note=note,
        table=table,
        surrogate=surrogate,
        objectives=objectives,
        cases=cases,
    )


def believed(
    table: ConfigTable, seen: Projected, objectives: Objectives, cases: AsCases | None
) -> Belief:
    """Projected configs as a belief, with what is unsure where ``cases`` are given."""
    memory_gib = np.asarray(seen.device_gib, dtype=np.float64)
    if cases is None:
        return Belief(objectives(seen), memory_gib)
    rows = cases(table)
    log_sd = float(np.max(memory_log_sd(rows)))
    return Belief(objectives(seen), memory_gib, loadings(rows), log_sd)


def loadings(cases: Cases) -> NDArray[np.float64]:
    """What the shipped surrogate is unsure of, as columns of log throughput, shape (n, k).

    Constants of the physics that its runs did not pin down, reduced to the few directions in which
    they move configs, and its residual, a process over dimensionless features (random Fourier
    features: Rahimi, Recht, 2007, with a fixed seed).
    """
    learned = shipped()
    moved = learned.constant_loadings(cases)
    _, sizes, directions = np.linalg.svd(moved.T @ moved)
    kept = np.sqrt(sizes / len(moved)) > SMALLEST_LOADING
    spread = learned.residual.predict(cases).sd
    return np.column_stack([moved @ directions[kept].T, spread[:, None] * waves(features(cases))])


def waves(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Vectors of length 1 whose products are about exp(-distance^2 / 2), shape (n, WAVES)."""
    generator = np.random.default_rng(0)
    phases = points @ generator.standard_normal((points.shape[1], WAVES // 2))
    pairs = np.concatenate([np.cos(phases), np.sin(phases)], axis=1)
    return np.asarray(pairs * np.sqrt(2.0 / WAVES), dtype=np.float64)


def _identities(table: ConfigTable) -> Rows:
    """Columns that tell two configs of one table apart, shape (n, axes)."""
    return np.stack([column.astype(np.int64) for column in table.columns().values()], axis=1)


def parameter_codes(table: ConfigTable) -> tuple[Rows, tuple[tuple[Any, ...], ...]]:
    """(codes, values) of the rows of a table as parameters of ``distributions``."""
    columns: dict[str, tuple[Column, Callable[[Any], Any]]] = {}
    for name, axis in AXES.items():
        column = getattr(table, name)
        if name == "layout":
            kinds = np.array([layout_kind(text) for text in table.layouts], dtype=object)
            columns["layout_kind"] = (kinds[column].astype(str), str)
        elif name == "recompute_layer_ids":
            counts = np.array([len(ids) for ids in table.layer_id_sets], dtype=np.int64)
            columns["recompute_listed_layers"] = (counts[column], int)
        elif issubclass(axis.kind, RecomputeModules | Overlap):
            for flag in axis.kind:
                if flag.name:
                    key = f"{name.removesuffix('_modules')}_{flag.name.lower()}"
                    columns[key] = ((column & int(flag)) != 0, bool)
        elif issubclass(axis.kind, Choice):
            columns[name] = (column, axis.kind.labels().__getitem__)
        else:
            columns[name] = (column, axis.kind)
    codes, values = [], []
    for name in distributions():
        column, external = columns[name]
        unique, code = np.unique(column, return_inverse=True)
        values.append(tuple(external(value) for value in unique.tolist()))
        codes.append(code)
    return np.stack(codes, axis=1).astype(np.int64), tuple(values)


def described(config: TrainingConfig) -> dict[str, Any]:
    """User attributes from which a trial's config is read back exactly."""
    return {"config": config.as_labels(), KEY: config_key(config)}
