"""Proposed configs of a training job: judged by legality and memory, near misses repaired."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.attribution import GROUPS
from search.companions import with_companions
from search.config_pool import parameter_codes
from search.distributions import config_key, distributions, parameters
from search.encoding import Coordinates
from search.llm.advice import ACCEPTED, DUPLICATE, ILLEGAL, MEMORY, REPAIRED, Finding
from search.pool import Pool
from specs.config import AXES, ConfigTable, TrainingConfig
from specs.errors import InputError

Floats = NDArray[np.float64]

LEAST_FIT = 0.05
"""Probability of fitting below which a proposal is refused: a run of it would be an OOM."""
NEAR = 2
"""Decisions (groups of axes) of a proposal that a repair may change; more is another config."""
OTHER_WEIGHT = 0.2
"""Weight of axes that a proposal left open, over those that it named, in "nearest"."""


class ConfigCandidates:
    """Configs as opinions and repairs see them."""

    def __init__(self, table: ConfigTable, pool: Pool | None = None) -> None:
        self._table = table
        self._given = pool

    def __len__(self) -> int:
        return len(self._table)

    @cached_property
    def pool(self) -> Pool:
        """The configs as points of the search space."""
        if self._given is not None:
            return self._given
        codes, values = parameter_codes(self._table)
        return Pool(dict(distributions()), values, codes, total=len(codes))

    def having(self, axis: str, value: Any) -> NDArray[np.bool_] | None:
        """Which configs have a value on an axis."""
        if axis not in AXES:
            return None
        try:
            wanted = AXES[axis].parse(value)
        except InputError:
            return None
        column = getattr(self._table, axis)
        known = {"layout": self._table.layouts, "recompute_layer_ids": self._table.layer_id_sets}
        if axis in known:
            if wanted not in known[axis]:
                return None
            wanted = known[axis].index(wanted)
        return np.asarray(column == int(wanted))

    def closeness(self, config: Mapping[str, Any]) -> Floats | None:
        """How like a config each one is: exp(-axes that differ)."""
        try:
            wanted = parameters(TrainingConfig.from_labels(config))
        except InputError:
            return None
        return closeness(self.pool, wanted)

    def nearest(self, target: TrainingConfig, named: Iterable[str]) -> TrainingConfig | None:
        """The config most like a target, above all on the axes that were named."""
        if not len(self):
            return None
        wanted = parameters(target)
        weights = {
            name: 1.0 if any(name.startswith(axis) for axis in named) else OTHER_WEIGHT
            for name in wanted
        }
        alike = likeness(self.pool, wanted, weights)
        return self._table.config(int(np.argmax(alike)))


def likeness(pool: Pool, wanted: Mapping[str, Any], weights: Mapping[str, float]) -> Floats:
    """Weighted sum over parameters of how alike candidates are to a point, shape (n,).

    A value that no candidate has and that is no number is like none.
    """
    code = [0] * len(pool.space)
    weight = {}
    for position, name in enumerate(pool.space):
        found = pool.code_of({name: wanted[name]}, exactly=False) if name in wanted else None
        if found is not None:
            code[position] = found[position]
            weight[name] = weights.get(name, 0.0)
    point, candidates = pool.located(np.array([code])), pool.coordinates
    return candidates.alike(point, _weights(candidates, weight))[:, 0]


def _weights(candidates: Coordinates, weight: Mapping[str, float]) -> Floats:
    return np.array([weight.get(name, 0.0) for name in candidates.names])


def closeness(pool: Pool, wanted: Mapping[str, Any]) -> Floats:
    """exp(-number of axes that differ), steps of sizes counting in part; shape (n,)."""
    alike = likeness(pool, wanted, dict.fromkeys(pool.space, 1.0))
    return np.asarray(np.exp(alike - pool.coordinates.axes), dtype=np.float64)


class ConfigGround:
    """Judges proposed configs of a job.

    Args:
        anchor: what a partial config is completed from.
        axes: values of each axis that the study tries, for repairs.
        candidates: legal configs, for repairs.
        why_illegal: reasons why a config cannot run or may not be tried; empty where it may.
        fit: (probability of fitting, GiB above capacity) of a legal config.
        tried: configs that were evaluated or proposed already.
    """

    def __init__(
        self,
        *,
        anchor: TrainingConfig,
        axes: Mapping[str, Sequence[Any]],
        candidates: ConfigCandidates,
        why_illegal: Callable[[TrainingConfig], list[str]],
        fit: Callable[[TrainingConfig], tuple[float, float]],
        tried: Iterable[TrainingConfig],
    ) -> None:
        self._anchor, self._axes, self._candidates = anchor, axes, candidates
        self._why_illegal, self._fit = why_illegal, fit
        self._tried = {config_key(config) for config in tried}

    def judge(self, proposed: Mapping[str, Any]) -> Finding:
        """The verdict on a proposed config."""
        values, problems = self._parsed(proposed)
        if not values:
            return Finding(ILLEGAL, "; ".join(problems) or "it names no axis")
        config = with_companions(self._anchor, values)
        reasons = self._reasons(config)
        repairs = list(problems)
        if reasons:
            near = self._nearest(config, values)
            if near is None:
                return Finding(ILLEGAL, " ".join((*problems, *reasons)))
            repairs += [f"{' '.join(reasons)} Nearest legal: {_changes(config, near)}"]
            config = near
        key = config_key(config)
        if key in self._tried:
            return Finding(DUPLICATE, "it was tried or proposed already", config.as_labels())
        probability, over_gib = self._fit(config)
        if probability < LEAST_FIT:
            return Finding(MEMORY, f"it needs {over_gib:.1f} GiB more than a GPU has")
        self._tried.add(key)
        return Finding(REPAIRED if repairs else ACCEPTED, "; ".join(repairs), config.as_labels())

    def _parsed(self, proposed: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Axis -> value of what can be read, and a sentence for what cannot or was corrected."""
        values: dict[str, Any] = {}
        problems = []
        for axis, value in proposed.items():
            if axis not in AXES:
                problems.append(f"there is no axis {axis!r}")
                continue
            try:
                values[axis] = AXES[axis].parse(value)
            except InputError:
                near = _nearest_label(axis, value, self._axes.get(axis, ()))
                if near is None:
                    problems.append(f"{axis} cannot be {str(value)!r}")
                else:
                    values[axis] = near
                    problems.append(f"{axis} {str(value)!r} read as {AXES[axis].label(near)}")
        return values, problems

    def _reasons(self, config: TrainingConfig) -> list[str]:
        try:
            parameters(config)
        except InputError as error:
            return [str(error)]
        return self._why_illegal(config)

    def _nearest(self, config: TrainingConfig, named: Mapping[str, Any]) -> TrainingConfig | None:
        """The nearest legal config; None where it is not near."""
        near = self._listed(named)
        if near is None or self._reasons(near):
            try:
                near = self._candidates.nearest(config, named)
            except InputError:
                return None
        if near is None or self._reasons(near):
            return None
        lost = [
            group
            for group in GROUPS
            if any(a in named and getattr(near, a) != getattr(config, a) for a in group)
        ]
        moved = any(
            getattr(near, a) != getattr(self._anchor, a)
            and (getattr(near, a) == getattr(config, a) or AXES[a].kind is int)
            for a in named
        )
        return near if moved and len(lost) <= NEAR else None

    def _listed(self, named: Mapping[str, Any]) -> TrainingConfig | None:
        """The proposal with every size that the study does not list as the nearest that it does."""
        changes = dict(named)
        for axis, held in named.items():
            listed = self._axes.get(axis, ())
            if listed and held not in listed:
                if AXES[axis].kind is not int:
                    return None
                # A change was wanted: to stay where the anchor is would be no repair of it.
                others = [v for v in listed if v != getattr(self._anchor, axis)] or listed
                changes[axis] = min((abs(v - held), v) for v in others)[1]
        return with_companions(self._anchor, changes) if changes != dict(named) else None


def _nearest_label(axis: str, value: Any, listed: Sequence[Any]) -> Any:
    """The value whose label is almost what was written; None where none is."""
    labels = {str(AXES[axis].label(held)): held for held in listed}
    close = difflib.get_close_matches(str(value).strip().lower(), labels, n=1, cutoff=0.75)
    return labels[close[0]] if close else None


def _changes(before: TrainingConfig, after: TrainingConfig) -> str:
    old, new = before.as_labels(), after.as_labels()
    return ", ".join(f"{a} {old[a]} -> {new[a]}" for a in old if old[a] != new[a])
