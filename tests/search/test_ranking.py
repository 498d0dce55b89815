"""The ranking keeps exactly the best rows, whatever the chunks; the shortlist avoids trivia."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from search.ranking import Ranking, rank
from search.shortlist import CHARACTER, shortlist
from specs.choices import Overlap
from specs.config import ConfigTable, TrainingConfig

CAPACITY_GIB = 100.0


@dataclass(frozen=True)
class _Seen:
    tokens_per_s_per_gpu: NDArray[Any]
    device_gib: NDArray[Any]
    fit_probability: NDArray[Any]


def _projector(speed: NDArray[Any], gib: NDArray[Any]) -> Any:
    """A projection that looks its numbers up by the row's number, kept in ``mbs``."""

    def project(table: ConfigTable) -> _Seen:
        device = gib[table.mbs - 1]
        return _Seen(speed[table.mbs - 1], device, (device <= CAPACITY_GIB).astype(float))

    return project


def _numbered(n: int) -> ConfigTable:
    return ConfigTable.from_columns({"mbs": np.arange(1, n + 1)})


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 30), st.floats(50, 150, allow_nan=False)), min_size=1, max_size=60
    ),
    keep=st.integers(1, 20),
    chunk=st.integers(1, 17),
)
def test_ranking_equals_a_full_sort(rows: list[tuple[int, float]], keep: int, chunk: int) -> None:
    speed = np.array([float(s) for s, _ in rows])
    gib = np.array([g for _, g in rows])
    done: list[int] = []
    ranking = rank(
        _numbered(len(rows)).chunks(chunk), _projector(speed, gib), CAPACITY_GIB, keep, done.append
    )
    fits = [i for i in range(len(rows)) if gib[i] <= CAPACITY_GIB]
    expected = sorted(fits, key=lambda i: (-speed[i], i))[:keep]
    assert list(ranking.table.mbs - 1) == expected
    assert list(ranking.tokens_per_s_per_gpu) == [speed[i] for i in expected]
    assert (ranking.legal, ranking.refused_by_memory) == (len(rows), len(rows) - len(fits))
    assert sum(done) == len(rows)
    assert ranking.missing_gib == pytest.approx(gib.min() - CAPACITY_GIB)
    assert ranking.leanest is not None
    assert gib[ranking.leanest.mbs - 1] == gib.min()


def test_nothing_legal_is_an_empty_ranking() -> None:
    ranking = rank([], _projector(np.zeros(0), np.zeros(0)), CAPACITY_GIB, 5)
    assert len(ranking) == 0
    assert ranking.legal == 0
    assert ranking.leanest is None


def _ranking(configs: list[TrainingConfig], speed: list[float]) -> Ranking:
    ones = np.ones(len(configs))
    return Ranking(
        table=ConfigTable.from_configs(configs),
        tokens_per_s_per_gpu=np.array(speed),
        device_gib=ones,
        fit_probability=ones,
        legal=len(configs),
        refused_by_memory=0,
        leanest=configs[0],
        missing_gib=-1.0,
    )


def test_shortlist_skips_configs_that_differ_only_in_trivia() -> None:
    base = TrainingConfig(tp=2, pp=4)
    trivial = base.changed(overlap=Overlap.DP, cross_entropy_fusion=True)
    other = base.changed(mbs=2)
    rows = shortlist(_ranking([base, trivial, other], [10.0, 9.9, 9.8]), size=3)
    assert rows == [0, 2]


def test_shortlist_spreads_over_meshes_and_leaves_the_slow_out() -> None:
    base = TrainingConfig(tp=2)
    configs = [
        base,
        base.changed(mbs=2),
        base.changed(mbs=4),
        base.changed(tp=4),
        base.changed(pp=2),
    ]
    rows = shortlist(_ranking(configs, [10.0, 9.9, 9.8, 9.0, 7.9]), size=5, within=0.2, per_mesh=2)
    assert rows == [0, 1, 3]


def test_every_character_axis_is_an_axis() -> None:
    assert set(CHARACTER) <= set(TrainingConfig().as_labels())
