"""Synthetic tasks shaped like training configs: cross-axis synergy, wrong physics, OOM cliffs.

The truth is a small step-time model times interaction tables between dispatch backend, schedule,
recompute, overlap, EP and micro-batch. The believed model has the same form, other constants and
no tables: its rank correlation with the truth is about 0.5. Every seed is another task.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.problem import Axis, Codes, Floats, Problem

GPUS, BATCH = 64, 512
NOISE = 0.015
AXES = (
    Axis("tp", 4, True),
    Axis("pp", 4, True),
    Axis("ep", 4, True),
    Axis("mbs", 4, True),
    Axis("schedule", 4, False),
    Axis("recompute", 3, True),
    Axis("backend", 3, False),
    Axis("overlap", 3, True),
    Axis("sharding", 2, True),
)
PHYSICS_SD = 0.25
"""Log sd by which the believed constants are off."""
TABLE_SD = 0.06
"""Log sd of an entry of an interaction table."""
BELIEVED_SPREAD = 0.04
"""Log sd of what the believed model gets wrong about each pair of axes, beyond its constants."""


@dataclass(frozen=True)
class Constants:
    """What the step-time model is made of; drawn for the truth, drawn again for the belief."""

    values: dict[str, float]

    @classmethod
    def drawn(cls, generator: np.random.Generator, sd: float, about: Constants | None) -> Constants:
        """Log-normal around ``about`` (or the typical values)."""
        centre = about.values if about else _TYPICAL
        return cls(
            {k: v * float(np.exp(sd * generator.standard_normal())) for k, v in centre.items()}
        )


_TYPICAL = {
    "tp_loss": 0.06,
    "mbs_loss": 0.12,
    "tp_traffic": 0.030,
    "ep_traffic": 0.035,
    "deep_gain": 0.45,
    "fused_gain": 0.70,
    "dp_traffic": 0.10,
    "bubble": 0.8,
    "zero_bubble": 0.35,
    "interleaved": 0.5,
    "vhalf": 0.65,
    "p2p": 0.012,
    "selective": 0.05,
    "full": 0.30,
    "hidden": 0.35,
    "sharding": 0.03,
}


def landscape(seed: int, relation: float | None = None) -> Problem:
    """The task of a seed.

    Args:
        seed: of everything that is drawn.
        relation: where given, a related task instead: a model of half the size whose tables and
            constants differ by this log sd.
    """
    generator = np.random.default_rng([seed, 1])
    codes = _legal_codes()
    constants = Constants.drawn(generator, 0.25, None)
    believed = Constants.drawn(generator, PHYSICS_SD, constants)
    tables = _tables(generator, TABLE_SD)
    wrong = _pair_tables(generator, BELIEVED_SPREAD)
    size = 1.0
    memory_tables = generator.normal(0.0, 0.025, (len(AXES), 4))
    if relation is not None:
        other = np.random.default_rng([seed, 2])
        constants = Constants.drawn(other, relation, constants)
        tables = [t + other.normal(0.0, relation * TABLE_SD * 4, t.shape) for t in tables]
        memory_tables = memory_tables + other.normal(0.0, relation * 0.05, memory_tables.shape)
        size = 0.5
    log_true = _physics(codes, constants, size)
    log_believed = _physics(codes, believed, size)
    log_true = log_true + sum(
        table[tuple(codes[:, _columns(n)].T)] for n, table in zip(_TABLES, tables, strict=True)
    )
    log_believed = log_believed + sum(
        table[codes[:, i], codes[:, j]] for (i, j), table in wrong.items()
    )
    held = _memory(codes, size)
    held /= np.quantile(held, 0.42)
    error = memory_tables[np.arange(len(AXES)), codes].sum(axis=1)
    legal = Problem(
        name=f"landscape-{seed}",
        axes=AXES,
        codes=codes,
        speed=np.exp(log_believed),
        memory=held,
        true_speed=np.exp(log_true),
        true_memory=held * np.exp(error),
        noise=NOISE,
        start=0,
        seed=seed,
    )
    return replace(legal, start=_start(legal))


_TABLES = (
    ("backend", "schedule", "recompute"),
    ("backend", "ep"),
    ("overlap", "backend", "schedule"),
    ("mbs", "tp"),
)
_SIZES = {axis.name: axis.size for axis in AXES}
_NAMES = [axis.name for axis in AXES]


def _columns(names: tuple[str, ...]) -> list[int]:
    return [_NAMES.index(name) for name in names]


def _tables(generator: np.random.Generator, sd: float) -> list[Floats]:
    """Interaction tables; those of three axes are twice as strong as those of two."""
    return [
        generator.normal(0.0, sd * (1.3 if len(names) > 2 else 0.9), [_SIZES[n] for n in names])
        for names in _TABLES
    ]


def _pair_tables(generator: np.random.Generator, sd: float) -> dict[tuple[int, int], Floats]:
    """What the believed model imagines about pairs of axes."""
    pairs = [("tp", "ep"), ("pp", "schedule"), ("sharding", "pp")]
    return {
        (_NAMES.index(a), _NAMES.index(b)): generator.normal(0.0, sd, (_SIZES[a], _SIZES[b]))
        for a, b in pairs
    }


def _legal_codes() -> Codes:
    """All legal combinations of values."""
    grid = np.array(list(product(*(range(axis.size) for axis in AXES))), dtype=np.int64)
    v = {name: grid[:, i] for i, name in enumerate(_NAMES)}
    tp, pp, ep, mbs = (2 ** v[name] for name in ("tp", "pp", "ep", "mbs"))
    data = GPUS // (tp * pp)
    legal = (tp * pp <= 32) & (ep <= data * tp) & (BATCH // (mbs * data) >= 2 * pp)
    legal &= (v["schedule"] == 0) | (pp > 1)
    legal &= (v["backend"] == 0) | (ep > 1)
    legal &= (v["overlap"] < 2) | (v["schedule"] != 3)
    legal &= (v["sharding"] == 0) | (data >= 4)
    codes: Codes = grid[legal]
    return codes


def _physics(codes: Codes, constants: Constants, size: float) -> Floats:
    """Log speed."""
    c = constants.values
    v = {name: codes[:, i] for i, name in enumerate(_NAMES)}
    tp, pp, ep, mbs = (2.0 ** v[name] for name in ("tp", "pp", "ep", "mbs"))
    data = GPUS / (tp * pp)
    batches = BATCH / (mbs * data)
    compute = 1 + c["tp_loss"] * np.log2(tp) / size + c["mbs_loss"] / mbs / size
    recompute = compute * np.array([0.0, c["selective"], c["full"]])[v["recompute"]]
    backend = np.array([1.0, c["fused_gain"], c["deep_gain"]])[v["backend"]]
    hidden = 1 - np.array([0.0, 0.5, 1.0])[v["overlap"]] * c["hidden"]
    tensor = c["tp_traffic"] * (tp - 1) / size
    experts = c["ep_traffic"] * (ep - 1) ** 0.8 * backend * hidden
    kind = np.array([c["bubble"], c["interleaved"], c["zero_bubble"], c["vhalf"]])[v["schedule"]]
    micro = compute + recompute + tensor + experts
    bubble = micro * kind * (pp - 1) / batches
    pipeline = c["p2p"] * (pp - 1) * (1 + (v["schedule"] > 0))
    gradients = c["dp_traffic"] * hidden * np.log2(data + 1) / 4
    gradients = gradients * (1 + c["sharding"] * 10 * v["sharding"] / 2)
    total = compute + recompute + tensor + experts + bubble + pipeline + gradients
    log_speed: Floats = -np.log(total)
    return log_speed


def _memory(codes: Codes, size: float) -> Floats:
    """Believed peak in arbitrary units: states, activations in flight, dispatch buffers."""
    v = {name: codes[:, i] for i, name in enumerate(_NAMES)}
    tp, pp, ep, mbs = (2.0 ** v[name] for name in ("tp", "pp", "ep", "mbs"))
    data = GPUS / (tp * pp)
    shard = np.array([1.0, 0.5])[v["sharding"]]
    states = 60 * size / (pp * (0.4 * tp + 0.6 * np.minimum(ep, data * tp))) * (shard + 0.2)
    kept = np.array([1.0, 0.7, 0.15])[v["recompute"]]
    flight = np.array([1.0, 1.4, 1.1, 0.6])[v["schedule"]]
    activations = 9 * size * mbs / tp * kept * flight
    buffers = 1.0 + mbs * np.array([0.3, 0.5, 0.9])[v["backend"]]
    held: Floats = states + activations + buffers + 2.0
    return held


def _start(problem: Problem) -> int:
    """The config of a careful person: it fits with room to spare, with default features."""
    plain = (problem.codes[:, 4:] == 0).sum(axis=1) + 0.5 * (problem.codes[:, 5] == 2)
    safe = (problem.memory < 0.8) & (problem.true_memory < 0.95)
    score = plain * 10.0 + problem.speed / problem.speed.max()
    return int(np.argmax(np.where(safe, score, -np.inf)))


def difficulty(problem: Problem) -> dict[str, float]:
    """How hard the task is: near-optimal candidates, OOM share, how good the belief is."""
    from scipy.stats import spearmanr

    fits: NDArray[np.bool_] = problem.fits
    share = problem.true_speed / problem.best
    passed = problem.memory <= 1.03
    optimum = int(np.argmax(np.where(fits, problem.true_speed, -np.inf)))
    return {
        "candidates": float(len(problem)),
        "oom_share": float(1 - fits.mean()),
        "within_2%": float((fits & (share > 0.98)).sum()),
        "within_5%": float((fits & (share > 0.95)).sum()),
        "within_10%": float((fits & (share > 0.90)).sum()),
        "spearman": float(spearmanr(problem.speed[fits], problem.true_speed[fits]).statistic),
        "filter_precision": float(fits[passed].mean()),
        "filter_recall": float(passed[fits].mean()),
        "optimum_filtered": float(not passed[optimum]),
        "start_regret": problem.regret(problem.start),
    }
