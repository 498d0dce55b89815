"""The shortlist: the best configs that differ from each other in more than trivia."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

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
    characters: set[tuple[int, ...]] = set()
    meshes: Counter[tuple[int, ...]] = Counter()
    rows: list[int] = []
    for row, character in enumerate(_characters(ranking.table)):
        if len(rows) == size or expected[row] < least:
            break
        mesh = character[: len(MESH)]
        if character in characters or meshes[mesh] == per_mesh:
            continue
        characters.add(character)
        meshes[mesh] += 1
        rows.append(row)
    return rows


def _characters(table: ConfigTable) -> Iterator[tuple[int, ...]]:
    return zip(*(getattr(table, name).tolist() for name in CHARACTER), strict=True)
