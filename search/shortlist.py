"""The shortlist: the best configs that differ from each other in more than trivia."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from search.ranking import Ranking
from specs.config import ConfigTable

MESH = ("tp", "pp", "cp", "ep", "etp")
CHARACTER = (*MESH, "mbs", "schedule", "vpp", "recompute", "sharding", "precision")
"""Axes that change how a run behaves; the others fine-tune a run of the same character."""


def shortlist(ranking: Ranking, size: int, within: float = 0.2, per_mesh: int = 2) -> list[int]:
    """Rows of the ranking for real runs, best first.

    No two share every axis of ``CHARACTER``, at most ``per_mesh`` share a mesh (so that one wrong
    belief about a mesh cannot fill the list), and the expected throughput of none is below the
    best by more than the fraction ``within``.
    """
    if not len(ranking):
        return []
    expected = ranking.expected
    least = expected[0] * (1 - within)
    seen: set[tuple[int, ...]] = set()
    meshes: Counter[tuple[int, ...]] = Counter()
    rows: list[int] = []
    for row, character in enumerate(characters(ranking.table).tolist()):
        if len(rows) == size or expected[row] < least:
            break
        character = tuple(character)
        mesh = character[: len(MESH)]
        if character in seen or meshes[mesh] == per_mesh:
            continue
        seen.add(character)
        meshes[mesh] += 1
        rows.append(row)
    return rows


def characters(table: ConfigTable) -> NDArray[np.int64]:
    """The axes of ``CHARACTER`` of every row, shape (n, axes)."""
    return np.stack([np.asarray(getattr(table, n), dtype=np.int64) for n in CHARACTER], axis=1)
