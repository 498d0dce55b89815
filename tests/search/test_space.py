"""The legal space: published counts, agreement with brute force, pins, samples and chunks."""

from __future__ import annotations

from itertools import product
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from search.axes import balanced_layout
from search.space import Space, build_space
from specs import catalog
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.cluster import Cluster
from specs.config import AXES, ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.layout import layout_problem
from specs.legality import legal_mask
from specs.stack import Framework, Stack
from specs.workload import Workload

PRIMUS = Stack(framework=Framework.PRIMUS, framework_name="Primus")
BASELINE = TrainingConfig(pp=4, ep=8, mbs=2, overlap=Overlap.DP)


def _space(
    model: str = "mixtral-8x22b",
    nodes: int = 8,
    batch: int = 512,
    baseline: TrainingConfig = BASELINE,
    full: bool = False,
    gpu: str = "MI355X",
    **narrowing: Any,
) -> Space:
    workload = Workload(model=catalog.model(model), seq_len=8192, global_batch_size=batch)
    chips = catalog.gpu(gpu)
    cluster = Cluster(name="", gpu=chips, num_nodes=nodes, gpus_per_node=chips.gpus_per_node)
    return build_space(workload, cluster, PRIMUS, baseline, narrowing, full)


def _all(space: Space) -> ConfigTable:
    return ConfigTable.concat([space.rows(np.arange(0)), *space.chunks()])


def _distinct(table: ConfigTable, *names: str) -> int:
    return len(set(zip(*(getattr(table, name).tolist() for name in names), strict=True)))


PUBLISHED = {
    "layout": ["even"],
    "etp": [1],
    "tp": [1, 2, 4, 8],
    "mbs": [1, 2, 4, 8, 16],
    "schedule": ["1f1b", "interleaved"],
    "recompute": ["none"],
}
"""Even splits, ETP 1, TP up to 8, MBS 1 to 16, any VPP that divides, m % PP = 0 for VPP > 1."""


@pytest.mark.parametrize(
    ("nodes", "batch", "meshes", "with_mbs", "with_vpp"),
    [
        (4, 128, 186, 910, 2860),
        (4, 512, 186, 930, 3020),
        (8, 128, 256, 1220, 3700),
        (8, 512, 256, 1276, 4080),
    ],
)
def test_published_counts(
    nodes: int, batch: int, meshes: int, with_mbs: int, with_vpp: int
) -> None:
    space = _space(nodes=nodes, batch=batch, **PUBLISHED)
    table = _all(space)
    assert _distinct(table, "tp", "pp", "cp", "ep") == meshes
    assert _distinct(table, "tp", "pp", "cp", "ep", "mbs") == with_mbs
    assert len(space) == len(table) == with_vpp


def _rows(table: ConfigTable) -> set[TrainingConfig]:
    return set(table.configs())


SMALL: dict[str, list[Any]] = {
    "tp": [1, 2],
    "pp": [1, 2, 4],
    "vpp": [1, 2, 7],
    "cp": [1, 2],
    "ep": [1, 4],
    "etp": [1, 2],
    "mbs": [1, 4],
    "schedule": ["1f1b", "interleaved", "v-half"],
    "layout": ["even"],
    "recompute": ["none", "full", "selective"],
    "recompute_method": ["none", "block"],
    "recompute_layers": [0, 3],
    "recompute_modules": ["none", "moe_act"],
    "moe_dispatcher": ["alltoall", "deepep"],
    "sync_free_stage": [0, 2],
    "precision": ["bf16", "fp8"],
    "sharding": ["zero1", "fsdp", "hsdp"],
    "replicate": [1, 2],
    "cross_entropy_fusion": [False],
    "overlap": ["none", "dp", "ep"],
    "sequence_parallel": [True],
    "cp_comm": ["p2p", "a2a"],
}


def _brute_force(space: Space) -> set[TrainingConfig]:
    """Every combination of the axes, judged one by one, less those that differ in nothing."""
    names = list(AXES)
    combos = list(product(*(space.axes[name] for name in names)))
    setting = space.setting
    wanted: set[TrainingConfig] = set()
    for start in range(0, len(combos), 1 << 16):
        part = combos[start : start + (1 << 16)]
        columns = {
            name: [int(combo[i]) for combo in part]
            for i, name in enumerate(names)
            if name not in ("layout", "recompute_layer_ids")
        }
        table = ConfigTable.from_columns(columns)
        table = table.take(
            legal_mask(table, setting.workload, setting.cluster, setting.stack)
            & ((table.cp > 1) | (table.cp_comm == int(space.axes["cp_comm"][0])))
        )
        wanted |= _rows(table)
    return _each_once(space, wanted)


def _each_once(space: Space, configs: set[TrainingConfig]) -> set[TrainingConfig]:
    """Of configs that are one run, because one rank holds a whole replica, the first."""
    kept: dict[TrainingConfig, TrainingConfig] = {}
    world, moe = space.setting.cluster.num_gpus, space.setting.workload.model.is_moe
    places = {name: space.axes[name].index for name in ("sharding", "overlap")}
    for config in sorted(configs, key=lambda c: [places[n](getattr(c, n)) for n in places]):
        run = config
        experts = config.etp * config.ep if moe else world // config.pp
        if config.tp * config.pp == world and experts * config.pp == world:
            whole = config.sharding in (Sharding.NONE, Sharding.ZERO1, Sharding.ZERO2)
            sharding = Sharding.NONE if whole else config.sharding
            run = config.changed(sharding=sharding, overlap=config.overlap & ~Overlap.DP)
        kept.setdefault(run, config)
    return set(kept.values())


def _narrowings() -> st.SearchStrategy[dict[str, list[Any]]]:
    """One or two values of each axis of SMALL, the mesh left wide."""
    wide = ("tp", "pp", "ep")
    return st.fixed_dictionaries(
        {
            name: st.just(values)
            if name in wide
            else st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)
            for name, values in SMALL.items()
        }
    )


@settings(max_examples=25, deadline=None)
@given(_narrowings(), st.sampled_from(["mixtral-8x22b", "llama3.1-8b"]), st.booleans())
def test_enumeration_equals_brute_force(
    narrowing: dict[str, list[Any]], model: str, turbo: bool
) -> None:
    if model == "llama3.1-8b":
        narrowing = narrowing | {"ep": [1], "etp": [1]}  # llama has no experts
    workload = Workload(model=catalog.model(model), seq_len=8192, global_batch_size=64)
    cluster = Cluster(name="", gpu=catalog.gpu("MI355X"), num_nodes=2, gpus_per_node=8)
    stack = PRIMUS.model_copy(update={"turbo": turbo})
    space = build_space(workload, cluster, stack, BASELINE, narrowing, full=True)
    table = _all(space)
    rows = _rows(table)
    assert len(rows) == len(table) == len(space)
    assert rows == _brute_force(space)


def test_the_full_space_of_a_small_job_is_legal_and_distinct() -> None:
    space = _space("llama3.1-8b", nodes=1, batch=16, baseline=TrainingConfig(), full=True)
    assert len(space) > 10_000
    seen = 0
    for chunk in space.chunks():
        setting = space.setting
        assert legal_mask(chunk, setting.workload, setting.cluster, setting.stack).all()
        seen += len(chunk)
    assert seen == len(space)
    sample = space.sample(2000, seed=1)
    assert len(_rows(sample)) == 2000


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "baseline",
    [
        BASELINE,
        BASELINE.changed(
            vpp=2,
            schedule=Schedule.INTERLEAVED,
            moe_dispatcher=MoeDispatcher.DEEPEP,
            sync_free_stage=2,
            recompute=Recompute.FULL,
            recompute_method=RecomputeMethod.BLOCK,
            recompute_layers=3,
            precision=Precision.FP8,
        ),
        BASELINE.changed(layout="first=13,last=13", etp=2),
        BASELINE.changed(
            recompute=Recompute.SELECTIVE,
            recompute_modules=RecomputeModules.MOE_ACT | RecomputeModules.MLP,
            sharding=Sharding.NONE,
            mbs=4,
        ),
    ],
)
def test_a_legal_baseline_is_in_its_space(baseline: TrainingConfig, full: bool) -> None:
    mesh = {name: [getattr(baseline, name)] for name in ("tp", "pp", "cp", "ep", "mbs", "etp")}
    space = _space(baseline=baseline, full=full, **mesh)
    assert space.allows(baseline)
    chunks = space.chunks()
    assert any(baseline in _rows(_like(chunk, baseline)) for chunk in chunks)


def _like(table: ConfigTable, config: TrainingConfig) -> ConfigTable:
    """Rows that agree with the config in the axes of numbers: the others are compared exactly."""
    same = np.ones(len(table), dtype=bool)
    for name in AXES:
        if name not in ("layout", "recompute_layer_ids"):
            same &= getattr(table, name) == int(getattr(config, name))
    return table.take(same)


def test_a_dense_baseline_is_in_its_space() -> None:
    baseline = TrainingConfig(tp=8, pp=2, sequence_parallel=True)
    space = _space("llama3.1-70b", baseline=baseline)
    assert baseline in _rows(_all(space))
    table = _all(space)
    assert (table.etp == 1).all(), "there are no experts to split"
    assert np.array_equal(table.sequence_parallel, table.tp > 1)


def test_what_is_sharded_over_one_rank_is_one_config() -> None:
    """A node of 8 at tp 8 has no data parallelism: none and zero1 are the same run."""
    sharded = {"sharding": ["zero1", "none", "fsdp"], "overlap": ["dp", "none"]}
    baseline = TrainingConfig(tp=8, sequence_parallel=True, overlap=Overlap.DP)
    mesh = {"pp": [1], "cp": [1], "mbs": [1], "recompute": ["none"], "precision": ["bf16"]}
    space = _space("llama3.1-8b", 1, 64, baseline, True, tp=[4, 8], **mesh, **sharded)
    table = _all(space).take(slice(None))
    alone = table.take(table.tp == 8)
    pairs = set(zip(alone.sharding.tolist(), alone.overlap.tolist(), strict=True))
    assert pairs == {(Sharding.ZERO1, Overlap.DP), (Sharding.FSDP, Overlap.DP)}
    assert baseline in _rows(table)
    assert set(table.take(table.tp == 4).sharding.tolist()) == {0, 1, 4}
    assert len(space) == len(table)


def test_held_axes_give_way_only_where_they_must() -> None:
    baseline = BASELINE.changed(moe_dispatcher=MoeDispatcher.DEEPEP, sync_free_stage=3)
    space = _space(baseline=baseline)
    setting = space.setting
    table = _all(space)
    split = np.isin(table.schedule, [s for s in Schedule if s.splits_weight_gradient])
    assert np.array_equal(table.overlap == 0, split)
    alone = table.tp * table.ep == 1
    assert np.array_equal(table.moe_dispatcher == MoeDispatcher.ALLTOALL, alone)
    assert np.array_equal(table.sync_free_stage != 3, alone)
    assert (table.sharding == baseline.sharding).all()
    assert legal_mask(table, setting.workload, setting.cluster, setting.stack).all()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tp", 2),
        ("pp", 8),
        ("vpp", 7),
        ("schedule", "zbv"),
        ("mbs", 3),
        ("precision", "mxfp8"),
        ("recompute", "full"),
        ("recompute_layers", 5),
        ("recompute_method", "block"),
        ("layout", "first=13,last=13"),
        ("moe_dispatcher", "deepep"),
        ("overlap", "none"),
        ("sequence_parallel", True),
        ("etp", 4),
    ],
)
def test_pins_are_respected(name: str, value: Any, full: bool) -> None:
    batch = 384 if name == "mbs" else 512
    space = _space(batch=batch, full=full, **{name: [value]})
    member = AXES[name].parse(value)
    assert space.axes[name] == (member,)
    assert len(space) > 0
    sample = space.sample(500, seed=0)
    assert all(getattr(config, name) == member for config in sample.configs())
    assert list(space.counts()[name]) == [AXES[name].label(member)]


def test_counts_equal_what_is_enumerated() -> None:
    space = _space(nodes=2, batch=64, full=True, tp=[1, 2], cp=[1], precision=["bf16", "fp8"])
    seen: dict[str, dict[Any, int]] = {name: {} for name in AXES}
    for chunk in space.chunks(5000):
        for name, column in chunk.columns().items():
            values, counts = np.unique(column, return_counts=True)
            for value, count in zip(values, counts, strict=True):
                held: Any = int(value)
                if name == "layout":
                    held = chunk.layouts[held]
                elif name == "recompute_layer_ids":
                    held = chunk.layer_id_sets[held]
                label = AXES[name].label(held)
                seen[name][label] = seen[name].get(label, 0) + int(count)
    assert space.counts() == seen
    assert all(sum(counts.values()) == len(space) for counts in seen.values())


def test_samples_are_seeded_and_positions_stable() -> None:
    space = _space(full=True)
    first, second = space.sample(300, seed=3), space.sample(300, seed=3)
    assert list(first.configs()) == list(second.configs())
    assert list(first.configs()) != list(space.sample(300, seed=4).configs())
    chunk = next(space.chunks(1000))
    assert list(space.rows(np.array([5, 999])).configs()) == [chunk.config(5), chunk.config(999)]
    assert len(_space(**PUBLISHED, pp=[1]).sample(10**9, seed=0)) < 2000


def test_cores_and_their_spans() -> None:
    space = _space(nodes=1, batch=64, full=True, precision=["bf16"])
    positions = np.sort(np.random.default_rng(0).integers(0, len(space), 500))
    cores = space.core_of(positions)
    first, length = space.span(cores)
    assert ((first <= positions) & (positions < first + length)).all()
    table = space.rows(positions)
    for name in ("tp", "mbs", "schedule", "vpp"):
        assert np.array_equal(getattr(table, name), getattr(space.core, name)[cores])
    assert space.span(np.arange(len(space.core)))[1].sum() == len(space)
    plain = {"recompute": (Recompute.NONE,), "recompute_method": (RecomputeMethod.NONE,)}
    plain |= {"recompute_layers": (0,), "recompute_modules": (RecomputeModules.NONE,)}
    part = space.narrowed_to(plain)
    assert len(part) == space.counts()["recompute"]["none"]


@pytest.mark.parametrize("full", [True, False])
def test_counterparts_differ_in_recomputation_alone(full: bool) -> None:
    narrowing = {"recompute_layers": [0, 1, 7], "pp": [1, 4], "cp": [1, 2], "precision": ["bf16"]}
    space = _space("mixtral-8x7b", full=full, **narrowing)
    plain = space.narrowed_to(
        {
            "recompute": (Recompute.NONE,),
            "recompute_method": (RecomputeMethod.NONE,),
            "recompute_layers": (0,),
            "recompute_modules": (RecomputeModules.NONE,),
            "recompute_layer_ids": ((),),
        }
    )
    positions = np.random.default_rng(0).choice(len(space), 2000)
    mine, theirs = space.rows(np.sort(positions)), plain.rows(np.arange(len(plain)))
    found = theirs.take(space.counterparts(np.sort(positions), plain))
    for name, column in mine.columns().items():
        if not name.startswith("recompute"):
            assert np.array_equal(column, found.columns()[name]), name
    assert not found.recompute.any()
    own = np.arange(0, len(plain), 17)
    assert np.array_equal(plain.counterparts(own, plain), own)


def test_layers_that_do_not_divide_get_a_balanced_layout() -> None:
    layout = balanced_layout(61, 1, 16, 2)
    assert layout == "Et*1|(t*2|)*29t*1|t*1,m,L"
    assert layout_problem(layout, 61, 1, 16, 2) == ""
    space = _space("deepseek-v3", nodes=32, batch=4096, baseline=TrainingConfig(ep=8))
    table = _all(space)
    assert {1, 2, 4, 8, 16, 32} <= set(table.pp.tolist())
    uneven = _space("llama3.1-405b", nodes=64, baseline=TrainingConfig(tp=8))
    assert "account=embedding+loss" in uneven.axes["layout"]
    assert 16 in _all(uneven).pp


def test_nothing_legal_says_what_is_in_the_way() -> None:
    space = _space(nodes=3, batch=7, pp=[3], layout=["even"])
    assert len(space) == 0
    assert list(space.chunks()) == []
    assert space.why_empty().startswith("the nearest is not because")
    odd = _space(batch=64, mbs=[3])
    assert "global batch size 64 is not a multiple of mbs*dp = 3*" in odd.why_empty()
    barred = _space(precision=["nvfp4"])
    assert "MI355X does not run nvfp4" in barred.why_empty()
    apart = _space(recompute=["none"], recompute_layers=[3])
    assert len(apart) == 0
    assert "contradict" in apart.why_empty()


def test_unknown_axes_and_values_are_refused() -> None:
    with pytest.raises(InputError, match="no axis 'tensor'"):
        _space(tensor=[1])
    with pytest.raises(InputError, match="Schedule has no value"):
        _space(schedule=["fast"])
    with pytest.raises(InputError, match="narrowed to nothing"):
        _space(tp=[])
