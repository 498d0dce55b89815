"""The candidates of a study as a finite list: the pool that the sampler chooses from.

A pool is exact up to ``EXACT_ROWS`` candidates. Beyond, it keeps the best by what is believed and a
seeded random tail of the rest, and ``note`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.encoding import AxisValues, Coordinates, coordinates
from search.gaussian_process import Points
from specs.errors import InputError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Parameters = Mapping[str, Any]

EXACT_ROWS = 100_000
BEST_ROWS, TAIL_ROWS = 50_000, 10_000
SPREAD_ROWS = 8192
"""Quasi-random candidates of a space with continuous parameters."""


@dataclass(frozen=True)
class Belief:
    """What is believed of n candidates before they are evaluated.

    ``values`` (n, objectives) are projected objective values, ``memory_gib`` (n,) projected peaks.
    ``loadings`` (n, k) are what the projection itself is unsure of: the log of the value moves by
    ``loadings @ z`` with z independent standard normals that all candidates share.
    ``memory_log_sd`` is the sd of log(measured / projected) of the peak where it is known.
    """

    values: Floats
    memory_gib: Floats | None = None
    loadings: Floats | None = None
    memory_log_sd: float | None = None

    def take(self, rows: Any) -> Belief:
        """The selected candidates."""
        memory_gib = None if self.memory_gib is None else self.memory_gib[rows]
        loadings = None if self.loadings is None else self.loadings[rows]
        return Belief(self.values[rows], memory_gib, loadings, self.memory_log_sd)


Project = Callable[[Sequence[dict[str, Any]]], Belief]
"""Projects candidates given as parameters."""


@dataclass(frozen=True)
class Pool:
    """n candidates of a search space.

    ``values`` lists the values of each parameter of ``space``, in order; ``codes`` (n, parameters)
    number them. ``belief`` is None where nothing is projected; ``capacity_gib`` is what
    ``belief.memory_gib`` may reach. ``cost`` (n,) is what an evaluation takes, in any unit.
    ``total`` counts the candidates before the pool was narrowed.
    """

    space: dict[str, BaseDistribution]
    values: tuple[tuple[Any, ...], ...]
    codes: Rows
    belief: Belief | None = None
    capacity_gib: float | None = None
    cost: Floats | None = None
    total: int = 0
    note: str = ""
    project: Project | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.codes)

    def parameters(self, row: int) -> dict[str, Any]:
        """A candidate as values of the search space."""
        code = self.codes[row]
        return {
            name: values[int(code[i])]
            for i, (name, values) in enumerate(zip(self.space, self.values, strict=True))
        }

    @cached_property
    def axes(self) -> tuple[AxisValues, ...]:
        """The parameters as axes of a Gaussian process."""
        return tuple(
            _axis(name, self.space[name], values)
            for name, values in zip(self.space, self.values, strict=True)
        )

    @cached_property
    def coordinates(self) -> Coordinates:
        """All candidates as coordinates."""
        return self.located(self.codes)

    @property
    def points(self) -> Points:
        """All candidates as points of a Gaussian process without trends."""
        return Points(self.coordinates, np.zeros((len(self), 0)))

    def located(self, codes: Rows) -> Coordinates:
        """Coordinates of candidates or of other points, given by their codes."""
        return coordinates(self.axes, codes)

    def rows_of(self, trials: Sequence[FrozenTrial]) -> list[int | None]:
        """The candidate that each trial evaluates; None where it is none of the pool."""
        return [self.find(parameters_of(trial)) for trial in trials]

    def find(self, parameters: Parameters) -> int | None:
        """The candidate with all these parameters; the first where several share them."""
        if any(name not in parameters for name in self.space):
            return None
        rows = self.matching(parameters)
        return int(rows[0]) if len(rows) else None

    def matching(self, parameters: Parameters) -> Rows:
        """The candidates that agree with some parameters (of this pool) given."""
        code = self.code_of(parameters, exactly=True)
        if code is None:
            return np.empty(0, dtype=np.int64)
        if len(code) < len(self.space):
            columns = list(code)
            agrees = (self.codes[:, columns] == [code[c] for c in columns]).all(axis=1)
            return np.flatnonzero(agrees)
        wanted = np.array([[code[c] for c in range(len(self.space))]])
        key = _hashed(wanted)[0]
        order, keys = self._index
        left, right = np.searchsorted(keys, key), np.searchsorted(keys, key, side="right")
        rows = order[left:right]
        return np.sort(rows[(self.codes[rows] == wanted).all(axis=1)])

    @cached_property
    def _index(self) -> tuple[Rows, NDArray[np.uint64]]:
        keys = _hashed(self.codes)
        order = np.argsort(keys, kind="stable")
        return order, keys[order]

    @cached_property
    def _listed_places(self) -> tuple[dict[Any, int], ...]:
        """For each parameter: value -> its number."""
        return tuple({_identity(v): i for i, v in enumerate(values)} for values in self.values)

    def code_of(self, parameters: Parameters, exactly: bool) -> dict[int, int] | None:
        """Position of a parameter -> number of its value, or of the nearest where not ``exactly``.

        None where a value is not listed (``exactly``) or is no number and not listed.
        """
        code: dict[int, int] = {}
        for position, (name, values) in enumerate(zip(self.space, self.values, strict=True)):
            if name not in parameters:
                continue
            place = self._listed_places[position].get(_identity(parameters[name]))
            if place is None:
                single = len(values) == 1 and not exactly  # no coordinate tells its values apart
                place = 0 if single else _nearest(parameters[name], values, exactly)
            if place is None:
                return None
            code[position] = place
        return code

    def outside(self, trials: Sequence[FrozenTrial]) -> tuple[Rows, Belief | None, list[int]]:
        """(codes, belief, which) of trials that are not in the pool but can be compared with it."""
        codes, which = [], []
        for number, trial in enumerate(trials):
            code = self.code_of(parameters_of(trial), exactly=False)
            if code is not None and len(code) == len(self.space):
                codes.append([code[c] for c in range(len(self.space))])
                which.append(number)
        if self.belief is not None and (self.project is None or not which):
            codes, which = [], []
        belief = None
        if self.project is not None and which:
            belief = self.project([parameters_of(trials[number]) for number in which])
        return np.array(codes, dtype=np.int64).reshape(-1, len(self.space)), belief, which

    def take(self, rows: Any) -> Pool:
        """The selected candidates."""
        belief = None if self.belief is None else self.belief.take(rows)
        cost = None if self.cost is None else self.cost[rows]
        return replace(self, codes=self.codes[rows], belief=belief, cost=cost)

    def narrowed(self, desirable: Floats | None, seed: int = 0) -> Pool:
        """This pool if it is small enough; else the best ``BEST_ROWS`` and ``TAIL_ROWS`` others.

        Args:
            desirable: what to keep the highest of, shape (n,); without it the rest is all random.
            seed: of the tail.
        """
        if len(self) <= EXACT_ROWS:
            return self
        generator = np.random.default_rng(seed)
        best = np.empty(0, dtype=np.int64)
        if desirable is not None:
            best = np.argpartition(-desirable, BEST_ROWS)[:BEST_ROWS]
        rest = np.ones(len(self), dtype=bool)
        rest[best] = False
        tail = generator.choice(
            np.flatnonzero(rest), BEST_ROWS + TAIL_ROWS - len(best), replace=False
        )
        rows = np.sort(np.concatenate([best, tail]))
        kept = f"the best {len(best):,} as projected and " if len(best) else ""
        note = (
            f"{self.total or len(self):,} candidates are too many to weigh all of them: the search "
            f"chooses from {kept}{len(tail):,} drawn at random."
        )
        return replace(self.take(rows), total=self.total or len(self), note=note)


def parameters_of(trial: FrozenTrial) -> dict[str, Any]:
    """The parameters of a trial, also where it waits in the queue and has none yet."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def pool_of(
    space: Mapping[str, BaseDistribution],
    candidates: Iterable[Parameters],
    project: Project | None = None,
    capacity_gib: float | None = None,
    cost: Floats | None = None,
    maximize: bool = True,
    seed: int = 0,
) -> Pool:
    """A pool from candidates that are listed.

    Args:
        space: parameter name -> distribution; every candidate gives every parameter.
        candidates: distinct parameters.
        project: what is believed of candidates, called once for all.
        capacity_gib: what projected memory may reach.
        cost: of evaluating each candidate, positive.
        maximize: whether a high first objective is good (decides what a narrowed pool keeps).
        seed: of the tail of a narrowed pool.

    Raises:
        InputError: there is no candidate, one is repeated or one lies outside the space.
    """
    listed = [dict(candidate) for candidate in candidates]
    if not listed:
        raise InputError("the pool has no candidates; list at least one.")
    values, columns = [], []
    for name, distribution in space.items():
        try:
            column = [candidate[name] for candidate in listed]
            internal = np.array([distribution.to_internal_repr(value) for value in column])
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"a candidate has no usable {name}: {error}.") from None
        if not all(distribution._contains(value) for value in np.unique(internal)):
            raise InputError(f"a candidate has a {name} outside {distribution}.")
        unique, code = np.unique(internal, return_inverse=True)
        values.append(tuple(distribution.to_external_repr(value) for value in unique.tolist()))
        columns.append(code)
    codes = np.stack(columns, axis=1).astype(np.int64)
    if len(np.unique(codes, axis=0)) < len(codes):
        raise InputError("the pool lists a candidate twice; list each once.")
    belief = project(listed) if project is not None else None
    pool = Pool(
        dict(space), tuple(values), codes, belief, capacity_gib, cost, len(codes), "", project
    )
    return pool.narrowed(_desirable(pool, maximize), seed)


def _desirable(pool: Pool, maximize: bool) -> Floats | None:
    if pool.belief is None:
        return None
    value = pool.belief.values[:, 0] * (1.0 if maximize else -1.0)
    if pool.belief.memory_gib is None or pool.capacity_gib is None:
        return value
    fits = pool.belief.memory_gib <= pool.capacity_gib
    return np.where(fits, value, value.min() - np.ptp(value) + value - value.max())


def enumerated(
    space: Mapping[str, BaseDistribution],
    legal: Callable[[dict[str, Any]], bool] | None = None,
    project: Project | None = None,
    capacity_gib: float | None = None,
    maximize: bool = True,
    seed: int = 0,
) -> Pool:
    """All legal combinations of a space, or a spread of it where it is continuous or too large.

    Args:
        space: parameter name -> distribution.
        legal: whether a combination may be evaluated; all may where not given.
        project, capacity_gib, maximize, seed: as in ``pool_of``.

    Raises:
        InputError: no combination is legal.
    """
    lists = [_listed(distribution) for distribution in space.values()]
    size = 1
    for values in lists:
        size *= len(values) if values is not None else EXACT_ROWS + 1
    names = tuple(space)
    note = ""
    combinations: Iterable[tuple[Any, ...]]
    finite = [values for values in lists if values is not None]
    if size <= EXACT_ROWS or (len(finite) == len(lists) and legal is not None and size <= 10**6):
        combinations = product(*finite)
    else:
        combinations = _spread(space, seed)
        note = (
            f"the space is too large to weigh all of it: the search chooses from {SPREAD_ROWS:,} "
            "quasi-random candidates."
        )
    listed = [dict(zip(names, values, strict=True)) for values in combinations]
    allowed = [candidate for candidate in listed if legal is None or legal(candidate)]
    if not allowed:
        raise InputError("no combination of this space is legal; widen it or the rule.")
    pool = pool_of(space, allowed, project, capacity_gib, None, maximize, seed)
    return replace(pool, note=note) if note else pool


def _listed(distribution: BaseDistribution) -> list[Any] | None:
    """The values of a distribution; None where it is continuous."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    if isinstance(distribution, FloatDistribution):
        if distribution.single():
            return [distribution.low]
        if distribution.step is None:
            return None
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        return [
            min(distribution.low + k * distribution.step, distribution.high) for k in range(count)
        ]
    raise InputError(f"parameters of the kind {type(distribution).__name__} cannot be listed.")


def _spread(space: Mapping[str, BaseDistribution], seed: int) -> Iterable[tuple[Any, ...]]:
    """Distinct quasi-random combinations."""
    from scipy.stats import qmc

    unit = qmc.Sobol(len(space), seed=seed).random(SPREAD_ROWS)
    columns = [_scaled(d, unit[:, i]) for i, d in enumerate(space.values())]
    return dict.fromkeys(zip(*columns, strict=True))


def _scaled(distribution: BaseDistribution, unit: Floats) -> list[Any]:
    """Numbers in [0, 1) as values of a distribution."""
    values = _listed(distribution)
    log = getattr(distribution, "log", False)
    if values is not None and not log:
        return [values[int(u * len(values))] for u in unit]
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if not log:
        return [low + u * (high - low) for u in unit.tolist()]
    grown = np.exp(np.log(low) + unit * (np.log(high) - np.log(low)))
    if values is not None:
        return [round(value) for value in grown.tolist()]
    return [min(max(value, low), high) for value in grown.tolist()]


def _axis(name: str, distribution: BaseDistribution, values: tuple[Any, ...]) -> AxisValues:
    """A parameter as an axis: sizes lie a step a doubling apart, other numbers within eight."""
    from optuna.distributions import CategoricalDistribution

    numbers = not isinstance(distribution, CategoricalDistribution) or (
        len(values) > 2 and all(type(value) in (int, float) for value in values)
    )
    if not numbers:
        return AxisValues(name, len(values), None)
    places = np.array([float(value) for value in values])
    if places.min() > 0 and places.max() >= 4 * places.min():
        places = np.log2(places)
    elif places.min() == 0 and places.max() > 8:
        places = np.log2(places + 1)
    width = float(np.ptp(places))
    if width > 8:
        places = places * (8 / width)
    elif 0 < width < 2:
        places = places * (2 / width)
    return AxisValues(name, len(values), places)


def _identity(value: Any) -> Any:
    """What makes a value equal to another: 1, 1.0 and True are three values."""
    return (type(value), value)


def _nearest(value: Any, values: tuple[Any, ...], exactly: bool) -> int | None:
    """The listed number nearest to this one; None where that is not good enough."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        return None
    distances = np.abs(np.array(values, dtype=np.float64) - value)
    place = int(np.argmin(distances))
    return place if not exactly or distances[place] <= 1e-9 * max(1.0, abs(value)) else None


def _hashed(codes: Rows) -> NDArray[np.uint64]:
    """A number for each row; equal rows have equal numbers, different ones almost never."""
    multipliers = np.random.default_rng(0).integers(1, 2**63, codes.shape[1], dtype=np.uint64) | 1
    with np.errstate(over="ignore"):
        keys: NDArray[np.uint64] = (codes.astype(np.uint64) * multipliers).sum(axis=1)
    return keys
