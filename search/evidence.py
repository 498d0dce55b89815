"""Trials of an Optuna study as evidence on a pool of candidates.

An evaluated trial that keeps every constraint gives a value. The memory constraint (measured peak
less capacity, GiB) gives a point of the memory residual; where it is violated and the value is 0 or
less, nothing but the OOM was measured: the peak is above capacity. Failed trials are never proposed
again and teach nothing else. Any other constraint is modelled by itself, as are several objectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.acquisition import BLIND_PRIOR, Evidence, projected_prior
from search.gaussian_process import Points, Prior
from search.memory_residual import MEMORY_PRIOR, with_sd
from search.pool import Belief, Pool
from search.transfer import Source, with_sources
from surrogate.memory_jobs import contradicts

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
    belief: Belief | None

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Any) -> Placed:
        """The selected ones."""
        belief = None if self.belief is None else self.belief.take(rows)
        return Placed(self.codes[rows], belief)

    def located(self, pool: Pool) -> Points:
        """As points without trends."""
        return Points(pool.located(self.codes), np.zeros((len(self), 0)))


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
    constraints: dict[str, tuple[Placed, Floats]] = field(default_factory=dict)


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
            name: (described.points(numbers), np.array(value))
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
        self.codes = np.zeros((count, len(pool.space)), dtype=np.int64)
        self.belief = None if pool.belief is None else blank(pool.belief, count)
        self.known = np.array([row is not None for row in rows], dtype=bool)
        inside = np.flatnonzero(self.known)
        index = np.array([row for row in rows if row is not None], dtype=np.int64)
        inner = None if pool.belief is None else pool.belief.take(index)
        self._set(inside, pool.codes[index], inner)
        beside = [n for n, row in enumerate(rows) if row is None]
        codes, outer, which = pool.outside([trials[n] for n in beside])
        placed = np.array([beside[w] for w in which], dtype=np.int64)
        if len(placed):
            self._set(placed, codes, outer)
            self.known[placed] = True

    def _set(self, places: Rows, codes: Rows, belief: Belief | None) -> None:
        self.codes[places] = codes
        if belief is None or self.belief is None:
            return
        for name in ("values", "memory_gib", "loadings"):
            column = getattr(self.belief, name)
            if column is not None:
                column[places] = getattr(belief, name)

    def points(self, numbers: list[int]) -> Placed:
        index = np.array(numbers, dtype=np.int64)
        belief = None if self.belief is None else self.belief.take(index)
        return Placed(self.codes[index], belief)


def blank(like: Belief, count: int) -> Belief:
    """A belief of so many rows with the columns of another, to be filled in."""

    def column(given: Floats | None) -> Floats | None:
        return None if given is None else np.zeros((count, *given.shape[1:]))

    return Belief(
        np.zeros((count, like.values.shape[1])),
        column(like.memory_gib),
        column(like.loadings),
        like.memory_log_sd,
    )


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
        units = [_standardised(seen.value[:, j]) for j in range(objectives)]
        value, prior = _combined(units, weights), BLIND_PRIOR
        points = [placed.located(pool) for placed in (seen.points, seen.running)]
        candidates = Points(pool.coordinates, np.zeros((len(pool), 0)))
        return Model(candidates, points[0], value, points[1], prior, None)
    columns = [_Unit(pool.belief.values[:, j], seen.signs[j]) for j in range(objectives)]
    usable = np.all([c.usable(seen.value[:, j]) for j, c in enumerate(columns)], axis=0)
    measured, placed = seen.value[usable], seen.points.take(usable)
    value = _combined([c.of(measured[:, j]) for j, c in enumerate(columns)], weights)
    loadings = pool.belief.loadings

    def trends(belief: Belief | None) -> Floats:
        assert belief is not None
        signed = belief.values * seen.signs
        first = _combined([c.of(signed[:, j]) for j, c in enumerate(columns)], weights)
        if belief.loadings is None:
            return first[:, None]
        return np.column_stack([first, belief.loadings])

    def points_of(placed: Placed) -> Points:
        return Points(pool.located(placed.codes), trends(placed.belief))

    log_share = None
    if pool.belief.memory_gib is not None and pool.capacity_gib:
        log_share = np.log(pool.belief.memory_gib / pool.capacity_gib)
    return Model(
        candidates=Points(pool.coordinates, trends(pool.belief)),
        observed=points_of(placed),
        value=value,
        running=points_of(seen.running),
        prior=projected_prior(0 if loadings is None else loadings.shape[1]),
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


def _refuted(needed_gib: Floats, seen: Seen, capacity_gib: float) -> NDArray[np.bool_]:
    """OOMs that say nothing of memory: a run that is projected to need no less finished."""
    failed = seen.side == 1
    finished = ~failed & (seen.measured_gib <= capacity_gib)
    most_gib = needed_gib[finished].max(initial=0.0)
    refuted: NDArray[np.bool_] = failed & contradicts(most_gib, needed_gib)
    return refuted


def evidence_of(pool: Pool, seen: Seen, model: Model, sources: Sequence[Source] = ()) -> Evidence:
    """Everything that the models are fitted to."""
    observed, value = model.observed, model.value
    if sources:
        observed, value = with_sources(pool, observed, value, sources)
    memory_points, residual, side = None, np.empty(0), np.empty(0, dtype=np.int64)
    prior = MEMORY_PRIOR
    belief = seen.memory.belief
    if model.log_share is not None and belief is not None and belief.memory_gib is not None:
        memory_points, side = seen.memory.located(pool), seen.side
        residual = np.log(seen.measured_gib / belief.memory_gib)
        kept = ~_refuted(belief.memory_gib, seen, pool.capacity_gib or np.inf)
        memory_points, residual, side = memory_points.take(kept), residual[kept], side[kept]
        if belief.memory_log_sd is not None:
            prior = with_sd(prior, belief.memory_log_sd, memory_points.coordinates.axes)
    return Evidence(
        points=observed,
        value=value,
        running=model.running,
        memory_points=memory_points,
        memory_residual=residual,
        memory_side=side,
        memory_prior=prior,
        constraints={
            name: (
                placed.located(pool),
                np.clip(values / (float(np.abs(values).mean()) or 1.0), -3.0, 3.0),
            )
            for name, (placed, values) in seen.constraints.items()
        },
    )
