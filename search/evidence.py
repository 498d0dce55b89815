"""Trials of an Optuna study as evidence on a pool of candidates.

An evaluated trial that keeps every constraint gives a value. The memory constraint (measured peak
less capacity, GiB) gives a point of the memory residual; where it is violated and the value is 0 or
less, nothing but the OOM was measured: the peak is above capacity. Failed trials are never proposed
again and teach nothing else. Any other constraint is modelled by itself, as are several objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.acquisition import BLIND_PRIOR, PROJECTED_PRIOR, Evidence
from search.gaussian_process import Points, Prior
from search.pool import Pool
from search.transfer import Source, with_sources

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

ROW = "pool_row"
"""System attribute of a trial: which candidate it evaluates, written before its parameters."""
MEMORY_CONSTRAINT = "memory_gib"
PEAK_KNOWN = "peak_known"
"""User attribute, false where a run fitted but nobody read its peak: the constraint is then 0."""
LOST = "lost"
"""User attribute of a run of which nothing will ever be heard: its config may be proposed again."""
AUGMENTED = 0.05
"""Share of the sum in an augmented Chebyshev scalarisation (Knowles, ParEGO, 2006)."""


@dataclass(frozen=True)
class Placed:
    """Rows of the pool, or trials beside it, as codes with what was believed of them."""

    codes: Rows
    believed: Floats
    memory_gib: Floats


@dataclass(frozen=True)
class Seen:
    """What the trials say, before it is put into the units of the model.

    ``taken`` are rows that must not be proposed again. The k evaluated trials that keep every
    constraint have ``row`` (-1 beside the pool) and ``value`` (k, objectives), higher is better.
    """

    signs: Floats
    taken: Rows
    row: Rows
    points: Placed
    value: Floats
    running: Placed
    memory: Placed
    measured_gib: Floats
    side: Rows
    constraints: dict[str, tuple[Rows, Floats]] = field(default_factory=dict)


def seen_of(
    pool: Pool, trials: Sequence[FrozenTrial], signs: Sequence[float], memory: str, numbered: bool
) -> Seen:
    """Reads trials.

    Args:
        pool: the candidates.
        trials: of the study, without the one that is being sampled.
        signs: 1 for an objective to maximise, -1 to minimise.
        memory: name of the memory constraint.
        numbered: whether the row noted on a trial is a row of this very pool.
    """
    from optuna.trial import TrialState

    trials = [trial for trial in trials if not trial.user_attrs.get(LOST)]
    rows = pool.rows_of(trials)
    if numbered:
        rows = [_noted(t, row, len(pool)) for t, row in zip(trials, rows, strict=True)]
    described = _Described(pool, trials, rows)
    taken = sorted({row for row in rows if row is not None})
    good, running, peaks = [], [], []
    values, gib, side = [], [], []
    constraints: dict[str, tuple[list[int], list[float]]] = {}
    for number, trial in enumerate(trials):
        if not described.known[number]:
            continue
        if trial.state in (TrialState.RUNNING, TrialState.WAITING):
            running.append(number)
        if trial.state is not TrialState.COMPLETE:
            continue
        held = dict(sorted(trial.constraints.items()))
        if pool.capacity_gib is not None and memory in held:
            over = held.pop(memory)
            only_oom = over > 0 and max(trial.values) <= 0
            unread = not trial.user_attrs.get(PEAK_KNOWN, True)
            peaks.append(number)
            gib.append(pool.capacity_gib + (0.0 if only_oom or unread else over))
            side.append(1 if only_oom else -1 if unread else 0)
            if over > 0:
                continue
        for name, value in held.items():
            kept = constraints.setdefault(name, ([], []))
            kept[0].append(number)
            kept[1].append(value)
        if all(value <= 0 for value in held.values()) and np.isfinite(trial.values).all():
            good.append(number)
            values.append(trial.values)
    sign = np.array(signs)
    return Seen(
        signs=sign,
        taken=np.array(taken, dtype=np.int64),
        row=np.array([-1 if rows[g] is None else rows[g] for g in good], dtype=np.int64),
        points=described.points(good),
        value=np.array(values, dtype=np.float64).reshape(-1, len(sign)) * sign,
        running=described.points(running),
        memory=described.points(peaks),
        measured_gib=np.array(gib),
        side=np.array(side, dtype=np.int64),
        constraints={
            name: (described.points(numbers).codes, np.array(value))
            for name, (numbers, value) in constraints.items()
        },
    )


def _noted(trial: FrozenTrial, row: int | None, rows: int) -> int | None:
    """The row noted on a trial where its parameters are not complete, or tell rows not apart."""
    noted = trial.system_attrs.get(ROW)
    if not isinstance(noted, int) or not 0 <= noted < rows:
        return row
    return noted


class _Described:
    """Codes and beliefs of all trials that can be placed."""

    def __init__(
        self, pool: Pool, trials: Sequence[FrozenTrial], rows: Sequence[int | None]
    ) -> None:
        count = len(trials)
        objectives = pool.belief.values.shape[1] if pool.belief is not None else 0
        self.codes = np.zeros((count, len(pool.space)), dtype=np.int64)
        self.believed = np.zeros((count, objectives))
        self.memory_gib = np.full(count, np.nan)
        self.known = np.array([row is not None for row in rows], dtype=bool)
        inside = np.flatnonzero(self.known)
        index = np.array([row for row in rows if row is not None], dtype=np.int64)
        self._set(inside, pool.codes[index], pool.belief, index)
        beside = [n for n, row in enumerate(rows) if row is None]
        codes, belief, which = pool.outside([trials[n] for n in beside])
        placed = np.array([beside[w] for w in which], dtype=np.int64)
        if len(placed):
            self._set(placed, codes, belief, np.arange(len(placed)))
            self.known[placed] = True

    def _set(self, places: Rows, codes: Rows, belief: Any, rows: Rows) -> None:
        self.codes[places] = codes
        if belief is not None:
            self.believed[places] = belief.values[rows]
            if belief.memory_gib is not None:
                self.memory_gib[places] = belief.memory_gib[rows]

    def points(self, numbers: list[int]) -> Placed:
        index = np.array(numbers, dtype=np.int64)
        return Placed(self.codes[index], self.believed[index], self.memory_gib[index])


@dataclass(frozen=True)
class Model:
    """Candidates and evaluated points in the units of the model; ``log_share`` of memory."""

    candidates: Points
    observed: Points
    value: Floats
    running: Points
    prior: Prior
    log_share: Floats | None


def modelled(pool: Pool, seen: Seen, generator: np.random.Generator) -> Model:
    """Puts values and beliefs into the units of the model.

    Where values are projected the unit is the log (of positive values), else the spread of what was
    measured. Several objectives become one by random weights, drawn for each proposal.
    """
    objectives = len(seen.signs)
    weights = generator.dirichlet(np.ones(objectives)) if objectives > 1 else np.ones(1)
    if pool.belief is None:
        trends = [np.zeros((len(codes), 0)) for codes in (pool.codes, seen.row, seen.running.codes)]
        units = [_standardised(seen.value[:, j]) for j in range(objectives)]
        value = _combined(units, weights)
        prior = BLIND_PRIOR
    else:
        columns = [_Unit(pool.belief.values[:, j], seen.signs[j]) for j in range(objectives)]
        usable = np.all([c.usable(seen.value[:, j]) for j, c in enumerate(columns)], axis=0)
        seen = replace(
            seen,
            row=seen.row[usable],
            value=seen.value[usable],
            points=Placed(
                seen.points.codes[usable],
                seen.points.believed[usable],
                seen.points.memory_gib[usable],
            ),
        )
        value = _combined([c.of(seen.value[:, j]) for j, c in enumerate(columns)], weights)
        trends = [
            _combined([c.of(b[:, j] * seen.signs[j]) for j, c in enumerate(columns)], weights)[
                :, None
            ]
            for b in (pool.belief.values, seen.points.believed, seen.running.believed)
        ]
        prior = PROJECTED_PRIOR
    log_share = None
    if pool.belief is not None and pool.belief.memory_gib is not None and pool.capacity_gib:
        log_share = np.log(pool.belief.memory_gib / pool.capacity_gib)
    return Model(
        candidates=Points(pool.coordinates, trends[0]),
        observed=Points(pool.located(seen.points.codes), trends[1]),
        value=value,
        running=Points(pool.located(seen.running.codes), trends[2]),
        prior=prior,
        log_share=log_share,
    )


@dataclass(frozen=True)
class _Unit:
    """One objective: its believed values, and how a (signed) value is put into a common unit."""

    believed: Floats
    sign: float

    @property
    def is_log(self) -> bool:
        return bool((self.believed > 0).all())

    def usable(self, signed: Floats) -> NDArray[np.bool_]:
        return signed * self.sign > 0 if self.is_log else np.ones(len(signed), dtype=bool)

    def of(self, signed: Floats) -> Floats:
        """Signed values as logs below the best believed, or in spreads of what is believed."""
        if self.is_log:
            best = self.sign * np.log(self.believed)
            values: Floats = self.sign * np.log(signed * self.sign) - best.max()
            return values
        spread = float(self.believed.std()) or 1.0
        scaled: Floats = (signed - (self.sign * self.believed).max()) / spread
        return scaled


def _standardised(values: Floats) -> Floats:
    if not len(values):
        return values
    spread = float(values.std())
    clipped: Floats = np.clip((values - values.mean()) / (spread or 1.0), -3.0, 3.0)
    return clipped


def _combined(units: list[Floats], weights: Floats) -> Floats:
    """One number from several objectives: the worst weighted one, plus a share of the sum."""
    if len(units) == 1:
        return units[0]
    weighted = np.stack(units) * weights[:, None] * len(units)
    combined: Floats = weighted.min(axis=0) + AUGMENTED * weighted.sum(axis=0)
    return combined


def evidence_of(pool: Pool, seen: Seen, model: Model, sources: Sequence[Source] = ()) -> Evidence:
    """Everything that the models are fitted to."""
    observed, value = model.observed, model.value
    if sources:
        observed, value = with_sources(pool, observed, value, sources)
    memory_points, residual, side = None, np.empty(0), np.empty(0, dtype=np.int64)
    if model.log_share is not None:
        known = np.isfinite(seen.memory.memory_gib)
        codes = seen.memory.codes[known]
        memory_points = Points(pool.located(codes), np.zeros((len(codes), 0)))
        residual = np.log(seen.measured_gib[known] / seen.memory.memory_gib[known])
        side = seen.side[known]
    return Evidence(
        points=observed,
        value=value,
        running=model.running,
        memory_points=memory_points,
        memory_residual=residual,
        memory_side=side,
        constraints={
            name: (
                Points(pool.located(codes), np.zeros((len(codes), 0))),
                np.clip(values / (float(np.abs(values).mean()) or 1.0), -3.0, 3.0),
            )
            for name, (codes, values) in seen.constraints.items()
        },
    )
