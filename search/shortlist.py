"""The shortlist: the best configs that differ from each other in more than trivia."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
from numpy.typing import NDArray

from search.ranking import Ranking
from specs.choices import Recompute
from specs.config import ConfigTable

MESH = ("tp", "pp", "cp", "ep", "etp")
CHARACTER = (*MESH, "mbs", "schedule", "vpp", "recompute", "sharding", "precision")
"""Axes that change how a run behaves; the others fine-tune a run of the same character."""
NOTICEABLE = 0.01
"""Fraction of throughput from which on a second config of a layout is worth a run of its own: what
lies closer is lost in the noise of single runs (chosen)."""


def shortlist(ranking: Ranking, size: int, within: float = 0.2, per_mesh: int = 2) -> list[int]:
    """Rows of the ranking for real runs, best first.

    The best of each family comes first: of configs that share mesh, schedule, sharding and whether
    layers are recomputed in full; places that are left go to further members. Configs that share
    mesh, schedule and sharding differ in an axis of ``CHARACTER`` and by ``NOTICEABLE`` throughput.
    At most ``per_mesh`` share a mesh, so that one wrong belief about a mesh cannot fill the list,
    and the expected throughput of none is below the best by more than the fraction ``within``.
    """
    if not len(ranking):
        return []
    expected = ranking.expected
    near = np.flatnonzero(expected >= expected[0] * (1 - within))
    table, speed = ranking.table.take(near), ranking.tokens_per_s_per_gpu[near]
    character, mesh = _codes(characters(table)), _codes(_columns(table, MESH))
    layout = _columns(table, (*MESH, "schedule", "sharding"))
    full = np.asarray(table.recompute == Recompute.FULL, dtype=np.int64)
    _, leaders = np.unique(np.column_stack([layout, full]), axis=0, return_index=True)
    layout = _codes(layout)
    members = np.setdiff1d(np.arange(len(near)), leaders)
    meshes: Counter[int] = Counter()
    listed: dict[int, list[int]] = defaultdict(list)
    for row in (*np.sort(leaders).tolist(), *members.tolist()):
        if sum(meshes.values()) == size:
            break
        others = listed[int(layout[row])]
        apart = all(
            character[row] != character[other] and abs(speed[row] / speed[other] - 1) >= NOTICEABLE
            for other in others
        )
        if apart and meshes[int(mesh[row])] < per_mesh:
            others.append(row)
            meshes[int(mesh[row])] += 1
    return sorted(int(near[row]) for rows in listed.values() for row in rows)


def characters(table: ConfigTable) -> NDArray[np.int64]:
    """The axes of ``CHARACTER`` of every row, shape (n, axes)."""
    return _columns(table, CHARACTER)


def _columns(table: ConfigTable, names: tuple[str, ...]) -> NDArray[np.int64]:
    return np.stack([np.asarray(getattr(table, n), dtype=np.int64) for n in names], axis=1)


def _codes(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """A number for every distinct row of columns, shape (n,)."""
    _, codes = np.unique(columns, axis=0, return_inverse=True)
    return np.asarray(codes, dtype=np.int64).ravel()
