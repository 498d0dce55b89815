"""The ranking keeps exactly the best rows, whatever the chunks; the shortlist avoids trivia."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from search.axes import parsed
from search.ranking import Ranker, Ranking, rank
from search.shortlist import CHARACTER, shortlist
from search.space import Space
from specs import catalog
from specs.choices import Overlap, Recompute, RecomputeMethod, RecomputeModules, Sharding
from specs.config import ConfigTable, TrainingConfig
from specs.formats.cluster import read_cluster
from specs.formats.experiment import Experiment, StudySettings
from specs.stack import Framework, Stack
from specs.workload import Workload
from studies.job import Job

CAPACITY_GIB = 100.0


@dataclass(frozen=True)
class _Seen:
    tokens_per_s_per_gpu: NDArray[Any]
    device_gib: NDArray[Any]
    fit_probability: NDArray[Any]


def _seen(speed: NDArray[Any], gib: NDArray[Any]) -> _Seen:
    return _Seen(speed, gib, (gib <= CAPACITY_GIB).astype(float))


ROWS = st.lists(
    st.tuples(st.integers(0, 30), st.floats(50, 150, allow_nan=False), st.integers(0, 5)),
    min_size=1,
    max_size=60,
)


@given(rows=ROWS, keep=st.integers(1, 20), chunk=st.integers(1, 17), per_core=st.integers(1, 4))
def test_ranker_equals_a_full_sort(
    rows: list[tuple[int, float, int]], keep: int, chunk: int, per_core: int
) -> None:
    speed = np.array([float(s) for s, _, _ in rows])
    gib = np.array([g for _, g, _ in rows])
    cores = np.array([c for _, _, c in rows])
    table = ConfigTable.from_columns({"mbs": np.arange(1, len(rows) + 1)})
    ranker = Ranker(CAPACITY_GIB, keep, per_core)
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        ranker.add(table.take(part), _seen(speed[part], gib[part]), cores[part])
    ranking = ranker.ranking(legal=len(rows))
    fits = [i for i in range(len(rows)) if gib[i] <= CAPACITY_GIB]
    expected: list[int] = []
    for i in sorted(fits, key=lambda i: (-speed[i], i)):
        if sum(cores[j] == cores[i] for j in expected) < per_core and len(expected) < keep:
            expected.append(i)
    assert list(ranking.table.mbs - 1) == expected
    assert list(ranking.tokens_per_s_per_gpu) == [speed[i] for i in expected]
    assert (ranking.projected, ranking.refused_by_memory) == (len(rows), len(rows) - len(fits))
    assert ranking.missing_gib == pytest.approx(gib.min() - CAPACITY_GIB)
    assert ranking.leanest is not None
    assert gib[ranking.leanest.mbs - 1] == gib.min()


def test_nothing_legal_is_an_empty_ranking() -> None:
    ranking = Ranker(CAPACITY_GIB, 5).ranking(legal=0)
    assert len(ranking) == 0
    assert ranking.leanest is None


MOE_AXES = {
    "precision": ["bf16"],
    "recompute_layers": [0, 1, 4],
    "cp": [1, 2],
    "sharding": ["zero1"],
    "cp_comm": ["p2p"],
}
STUDIES = {
    "moe": ("mixtral-8x7b", "1x8xMI300X", MOE_AXES),
    "dense": ("llama3.1-8b", "1x8xA100-40GB", {"recompute_layers": [0, 1, 2, 8]}),
    "bf16 and fp8": ("qwen2.5-32b", "2x8xMI300X", {"recompute_layers": [0, 1, 16], "cp": [1, 2]}),
    "nothing fits": ("llama3.1-70b", "1x8xA100-40GB", {"recompute_layers": [0, 1, 5]}),
}


@pytest.mark.parametrize("name", STUDIES)
def test_pruned_ranking_finds_what_row_by_row_finds(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cluster, axes = STUDIES[name]
    workload = Workload(model=catalog.model(model), seq_len=4096, global_batch_size=32)
    experiment = Experiment(
        name=name,
        workload=workload,
        stack=Stack(framework=Framework.PRIMUS),
        baseline=TrainingConfig(tp=2, ep=4, sequence_parallel=True)
        if workload.model.is_moe
        else TrainingConfig(tp=2, sequence_parallel=True),
        settings=StudySettings(axes=parsed(axes)),
    )
    job = Job(experiment, read_cluster(cluster), ())
    space = Space.of(experiment, job.cluster, full=True)
    capacity = job.cluster.gpu.hbm_gib.value
    direct = rank(space, job, capacity, keep=500)
    assert direct.projected == direct.legal == len(space)
    monkeypatch.setattr("search.ranking.DIRECT_ROWS", 0)
    done: list[int] = []
    pruned = rank(space, job, capacity, keep=500, within=0.05, advance=done.append)
    assert sum(done) == len(space)
    assert pruned.legal == len(space)
    assert pruned.projected < len(space)
    assert pruned.missing_gib == pytest.approx(direct.missing_gib) or len(direct)
    near = direct.expected >= 0.95 * direct.expected.max(initial=0.0)
    assert pruned.expected[: near.sum()] == pytest.approx(direct.expected[near], rel=1e-4)
    tied = 1.0002 * direct.expected[near].min(initial=np.inf)
    surely = direct.table.take(np.flatnonzero(near & (direct.expected > tied)))
    assert set(surely.configs()) <= set(pruned.table.configs())


def _ranking(configs: list[TrainingConfig], speed: list[float]) -> Ranking:
    ones = np.ones(len(configs))
    return Ranking(
        table=ConfigTable.from_configs(configs),
        tokens_per_s_per_gpu=np.array(speed),
        device_gib=ones,
        fit_probability=ones,
        legal=len(configs),
        projected=len(configs),
        refused_by_memory=0,
        fastest=configs[0],
        leanest=configs[0],
        missing_gib=-1.0,
    )


def test_shortlist_skips_configs_that_differ_only_in_trivia() -> None:
    base = TrainingConfig(tp=2, pp=4)
    trivial = base.changed(overlap=Overlap.DP, cross_entropy_fusion=True)
    other = base.changed(mbs=2)
    rows = shortlist(_ranking([base, trivial, other], [10.0, 9.7, 9.6]), size=3)
    assert rows == [0, 2]


def test_shortlist_skips_what_a_run_could_not_tell_apart() -> None:
    base = TrainingConfig(tp=2, pp=4)
    norms = base.changed(
        recompute=Recompute.SELECTIVE, recompute_modules=RecomputeModules.LAYERNORM
    )
    full = base.changed(
        recompute=Recompute.FULL, recompute_method=RecomputeMethod.UNIFORM, recompute_layers=1
    )
    configs = [base, base.changed(mbs=2), norms, full]
    assert shortlist(_ranking(configs, [10.0, 9.95, 9.94, 9.5]), size=4) == [0, 3]
    assert shortlist(_ranking(configs, [10.0, 9.95, 9.94, 9.93]), size=4) == [0]


def test_shortlist_prefers_another_family_to_a_variant() -> None:
    base = TrainingConfig(tp=2, pp=4)
    configs = [base, base.changed(mbs=2), base.changed(sharding=Sharding.FSDP)]
    assert shortlist(_ranking(configs, [10.0, 9.8, 9.0]), size=2) == [0, 2]
    assert shortlist(_ranking(configs, [10.0, 9.8, 9.0]), size=3, per_mesh=3) == [0, 1, 2]


def test_shortlist_spreads_over_meshes_and_leaves_the_slow_out() -> None:
    base = TrainingConfig(tp=2)
    configs = [
        base,
        base.changed(mbs=2),
        base.changed(mbs=4),
        base.changed(tp=4),
        base.changed(pp=2),
    ]
    rows = shortlist(_ranking(configs, [10.0, 9.8, 9.7, 9.0, 7.9]), size=5, within=0.2, per_mesh=2)
    assert rows == [0, 1, 3]


def test_every_character_axis_is_an_axis() -> None:
    assert set(CHARACTER) <= set(TrainingConfig().as_labels())
