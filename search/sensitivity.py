"""How much the decision for a config leans on details: its neighbourhood, its rivals, its unknowns.

A best config on a sharp peak loses much when one axis is off by a step or the surrogate is a little
wrong about it; on a broad basin it does not matter. What is worth measuring next is what would
change the choice most, not what is least known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.attribution import GROUPS
from search.companions import with_companions
from search.ranking import FIT_PROBABILITY, Projected
from search.shortlist import MESH
from specs.config import AXES, ConfigTable, TrainingConfig

Column = NDArray[Any]
Floats = NDArray[np.float64]

BASIN = 0.02
"""Loss up to which a neighbour counts as being in the same basin: what noise hides."""
BROAD = 0.5
"""Share of the neighbours that run and lie in the basin from which it is called broad."""
_DECISION = {axis: group for group in GROUPS for axis in group}


@dataclass(frozen=True, slots=True)
class Step:
    """The config with one axis moved by one step, companions following.

    ``gain`` is the fraction of throughput won (usually below 0), None where illegal; ``fits`` None
    likewise.
    """

    axis: str
    before: str | int | bool
    after: str | int | bool
    config: TrainingConfig
    gain: float | None
    fits: bool | None


@dataclass(frozen=True)
class Neighbourhood:
    """All single steps from a config, worst loss first within an axis order."""

    steps: tuple[Step, ...]

    @property
    def runnable(self) -> tuple[Step, ...]:
        """Steps that are legal and fit."""
        return tuple(step for step in self.steps if step.gain is not None and step.fits)

    @property
    def basin_share(self) -> float:
        """Share of the runnable steps that lose no more than ``BASIN``; 1 where there is none."""
        steps = self.runnable
        near = [step for step in steps if (step.gain or 0.0) >= -BASIN]
        return len(near) / len(steps) if steps else 1.0

    @property
    def is_broad(self) -> bool:
        """Whether most steps stay in the basin."""
        return self.basin_share >= BROAD

    @property
    def sharpest(self) -> tuple[Step, ...]:
        """Runnable steps by what they lose, the largest loss first: one of each decision.

        Axes that make one decision (``GROUPS``) move together, so that further steps of it would
        tell the same again.
        """
        worst: dict[Sequence[str], Step] = {}
        for step in sorted(self.runnable, key=lambda step: step.gain or 0.0):
            worst.setdefault(_DECISION[step.axis], step)
        return tuple(worst.values())


def neighbourhood(
    best: TrainingConfig,
    axes: Mapping[str, Sequence[Any]],
    project: Callable[[ConfigTable], Projected],
    is_legal: Callable[[ConfigTable], Column],
) -> Neighbourhood:
    """Every axis one step up and down; an axis without order steps to each of its values.

    Args:
        best: a legal config.
        axes: values of each axis (members), the space of the study.
        project: throughput and memory of legal rows.
        is_legal: one flag a row.
    """
    moves = [(name, value) for name in axes for value in next_values(best, name, axes[name])]
    configs = [with_companions(best, {name: value}) for name, value in moves]
    table = ConfigTable.from_configs([best, *configs])
    legal = np.asarray(is_legal(table))
    rows = np.flatnonzero(legal)
    speed, fits = np.full(len(table), np.nan), np.zeros(len(table), dtype=bool)
    seen = project(table.take(rows))
    speed[rows] = seen.tokens_per_s_per_gpu
    fits[rows] = seen.fit_probability >= FIT_PROBABILITY
    steps = [
        Step(
            axis=name,
            before=AXES[name].label(getattr(best, name)),
            after=AXES[name].label(value),
            config=config,
            gain=float(speed[row] / speed[0] - 1) if legal[row] else None,
            fits=bool(fits[row]) if legal[row] else None,
        )
        for row, ((name, value), config) in enumerate(zip(moves, configs, strict=True), 1)
    ]
    return Neighbourhood(tuple(steps))


def next_values(config: TrainingConfig, name: str, values: Sequence[Any]) -> list[Any]:
    """The values of an axis one step from the config's own."""
    held = getattr(config, name)
    others = [value for value in values if value != held]
    if AXES[name].kind is not int:
        return others
    below = [value for value in others if value < held]
    above = [value for value in others if value > held]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


@dataclass(frozen=True, slots=True)
class Family:
    """Configs that share a mesh: how many there are, the row of the best and its gap."""

    mesh: dict[str, int]
    best: int
    gap: float
    members: int


def families(table: ConfigTable, expected: Floats, most: int = 5) -> list[Family]:
    """The best families of a ranked table, best first.

    Args:
        table: n configs.
        expected: throughput to expect of each, shape (n,).
        most: families at most.
    """
    meshes = np.stack([getattr(table, name) for name in MESH], axis=1)
    unique, family = np.unique(meshes, axis=0, return_inverse=True)
    order = np.argsort(-expected, kind="stable")
    _, first = np.unique(family[order], return_index=True)
    sizes = np.bincount(family.ravel(), minlength=len(unique))
    tops = order[np.sort(first)][:most]
    top = float(expected[order[0]]) if len(order) else 0.0
    return [
        Family(
            mesh={name: int(value) for name, value in zip(MESH, meshes[row], strict=True)},
            best=int(row),
            gap=float(1 - expected[row] / top),
            members=int(sizes[family.ravel()[row]]),
        )
        for row in tops
    ]


@dataclass(frozen=True)
class Decision:
    """What measuring each of n candidates would be worth.

    ``gain`` (n,) is how much faster (a fraction) the choice after the measurement is expected to be
    than the choice now; ``change`` (n,) the probability that the choice changes.
    """

    choice: int
    gain: Floats
    change: Floats

    @property
    def most_decisive(self) -> int:
        """The candidate whose measurement is worth most."""
        return int(np.argmax(self.gain))


def decisive(log_speed: Floats, fits: NDArray[np.bool_], noise_sd: float = 0.01) -> Decision:
    """Which measurement would change the decision most, from joint draws.

    For each candidate the others are regressed on what would be measured: its throughput with
    noise, or that it does not fit. The value is E[max of the updated means] - max of the means now
    (the knowledge gradient: Frazier, Powell, Dayanik, 2009), in logarithms.

    Args:
        log_speed: joint draws of log tokens/s, shape (draws, n).
        fits: whether each candidate fits in each draw, shape (draws, n).
        noise_sd: log sd of one measurement.
    """
    mean, fit = log_speed.mean(axis=0), fits.mean(axis=0)
    away = log_speed - mean
    covariance = away.T @ away / len(log_speed)
    # A run that does not fit is worth nothing: its log value falls by log P(fits) in expectation.
    now = mean + np.log(np.maximum(fit, 1e-6))
    choice = int(np.argmax(now))
    gain, change = np.zeros(len(mean)), np.zeros(len(mean))
    for k in range(len(mean)):
        slope = covariance[:, k] / (covariance[k, k] + noise_sd**2)
        shrunk = (
            np.sqrt(covariance[k, k] / (covariance[k, k] + noise_sd**2))
            if covariance[k, k]
            else 0.0
        )
        seen = away[:, k] / max(shrunk, 1e-9) if shrunk else away[:, k]
        later = now + seen[:, None] * slope[None, :]
        later[:, k] += np.where(fits[:, k], -np.log(max(fit[k], 1e-6)), -np.inf)
        gain[k] = float(later.max(axis=1).mean() - now[choice])
        change[k] = float((later.argmax(axis=1) != choice).mean())
    return Decision(choice, np.maximum(gain, 0.0), change)
