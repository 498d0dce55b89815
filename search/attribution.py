"""Attribution: what each change from the baseline to the best config brings, alone and together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.ranking import FIT_PROBABILITY, Projected
from specs.config import AXES, ConfigTable, TrainingConfig

Column = NDArray[Any]

GROUPS = (
    ("precision",),
    ("tp", "sequence_parallel"),
    ("pp",),
    ("vpp", "schedule", "layout", "microbatch_group"),
    ("cp", "cp_comm"),
    ("ep",),
    ("etp",),
    ("mbs",),
    (
        "recompute",
        "recompute_method",
        "recompute_layers",
        "recompute_modules",
        "recompute_layer_ids",
    ),
    ("moe_dispatcher", "sync_free_stage"),
    ("sharding", "replicate"),
    ("cross_entropy_fusion",),
    ("overlap",),
)
"""Axes that make one decision; a change is judged as a whole."""
assert {axis for group in GROUPS for axis in group} == set(AXES), "every axis needs a group"


@dataclass(frozen=True, slots=True)
class Effect:
    """What one change brings; fractions of throughput, None where the config would be illegal.

    ``alone`` is the change made to the baseline by itself, ``last`` the change added to everything
    else (the best config against the best without it). ``alone_fits`` says whether memory lets it
    stand alone, ``fits_without`` whether memory lets the best do without it.
    """

    change: str
    axes: dict[str, tuple[Any, Any]]
    alone: float | None
    alone_fits: bool | None
    last: float | None
    fits_without: bool | None

    @property
    def needed(self) -> str:
        """What the best config needs the change for: to fit, to be legal, or nothing but speed."""
        return needed_for(self.last, self.fits_without)


@dataclass(frozen=True, slots=True)
class Synergy:
    """How much more two changes bring together than the product of what each brings alone."""

    first: str
    second: str
    gain: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """Effects in axis order, the strongest synergies first, and the gain of all changes."""

    effects: tuple[Effect, ...]
    synergies: tuple[Synergy, ...]
    together: float


def attribute(
    baseline: TrainingConfig,
    best: TrainingConfig,
    project: Callable[[ConfigTable], Projected],
    is_legal: Callable[[ConfigTable], Column],
    max_synergies: int = 5,
) -> Attribution:
    """Judges every change between two legal configs by itself, left out, and in pairs.

    ``is_legal`` gives one flag a row; illegal rows are never projected.
    """
    changes = _changes(baseline, best)
    names = [_describe(baseline, best, axes) for axes in changes]
    count = len(changes)
    pairs = list(combinations(range(count), 2))
    subsets = [(), tuple(range(count)), *((i,) for i in range(count))]
    subsets += [tuple(j for j in range(count) if j != i) for i in range(count)]
    subsets += pairs
    table = ConfigTable.from_configs(
        [_mixed(baseline, best, [changes[i] for i in subset]) for subset in subsets]
    )
    speed, fits = _projected(table, project, is_legal)
    base, full = speed[0], speed[1]
    alone, without = speed[2 : 2 + count], speed[2 + count : 2 + 2 * count]
    effects = tuple(
        Effect(
            change=names[i],
            axes=_axes(baseline, best, changes[i]),
            alone=_gain(alone[i], base),
            alone_fits=None if np.isnan(alone[i]) else bool(fits[2 + i]),
            last=_gain(full, without[i]),
            fits_without=(None if np.isnan(without[i]) else bool(fits[2 + count + i])),
        )
        for i in range(count)
    )
    together = speed[2 + 2 * count :]
    synergies = [
        Synergy(names[i], names[j], float(together[k] * base / (alone[i] * alone[j]) - 1))
        for k, (i, j) in enumerate(pairs)
    ]
    found = [item for item in synergies if not np.isnan(item.gain)]
    found.sort(key=lambda item: -abs(item.gain))
    return Attribution(effects, tuple(found[:max_synergies]), _gain(full, base) or 0.0)


def needed_for(last: float | None, fits_without: bool | None) -> str:
    """In words what the best config needs a change for; empty where it is for speed alone.

    Args:
        last: gain of the change on top of all others; None where the best is illegal without it.
        fits_without: whether the best fits without it; None where that is illegal or not known.
    """
    if last is None:
        return "needed to be legal"
    return "needed to fit" if fits_without is False else ""


def _projected(
    table: ConfigTable,
    project: Callable[[ConfigTable], Projected],
    is_legal: Callable[[ConfigTable], Column],
) -> tuple[Column, Column]:
    """(tokens/s/GPU, fits) of every row; NaN and False where a row is illegal."""
    speed, fits = np.full(len(table), np.nan), np.zeros(len(table), dtype=bool)
    rows = np.flatnonzero(is_legal(table))
    if len(rows):
        seen = project(table.take(rows))
        speed[rows] = seen.tokens_per_s_per_gpu
        fits[rows] = seen.fit_probability >= FIT_PROBABILITY
    return speed, fits


def _changes(baseline: TrainingConfig, best: TrainingConfig) -> list[Sequence[str]]:
    """The groups of axes on which the two configs differ."""
    return [
        group
        for group in GROUPS
        if any(getattr(baseline, axis) != getattr(best, axis) for axis in group)
    ]


def _mixed(
    baseline: TrainingConfig, best: TrainingConfig, groups: Sequence[Sequence[str]]
) -> TrainingConfig:
    return baseline.changed(**{axis: getattr(best, axis) for group in groups for axis in group})


def _axes(
    baseline: TrainingConfig, best: TrainingConfig, group: Sequence[str]
) -> dict[str, tuple[Any, Any]]:
    """Axis -> (label before, label after) of the axes that differ."""
    pairs = {axis: (getattr(baseline, axis), getattr(best, axis)) for axis in group}
    return {
        axis: (AXES[axis].label(before), AXES[axis].label(after))
        for axis, (before, after) in pairs.items()
        if before != after
    }


def _describe(baseline: TrainingConfig, best: TrainingConfig, group: Sequence[str]) -> str:
    """The change in words: ``vpp 1 -> 7, schedule 1f1b -> interleaved``."""
    axes = _axes(baseline, best, group)
    return ", ".join(f"{axis} {before} -> {after}" for axis, (before, after) in axes.items())


def _gain(after: float, before: float) -> float | None:
    gain = after / before - 1
    return None if np.isnan(gain) else float(gain)
