"""Stages hold every layer once, and the candidates are never beaten by a stage left out."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cases import DEEPSEEK_V3, LLAMA_8B, MIXTRAL_8X22B, study

from specs.choices import Recompute, RecomputeMethod, Schedule
from specs.config import ConfigTable, TrainingConfig
from specs.model import Model
from surrogate.pipeline.stages import StageColumns, distinct_rows, stage_columns

LAYOUT = "Et*1|t*1|" + "t*2|" * 29 + "t*1,L"
HELD = ("dense_layers", "moe_layers", "mtp_layers", "has_embedding", "has_output")


def _stages(model: Model, configs: Iterable[TrainingConfig], every: bool = False) -> StageColumns:
    return stage_columns(study(model, ConfigTable.from_configs(configs)), every)


def test_deepseek_v3_ranks() -> None:
    config = TrainingConfig(pp=16, vpp=2, layout=LAYOUT, schedule=Schedule.INTERLEAVED)
    model = DEEPSEEK_V3.model_copy(update={"mtp_layers": 0})
    stages = _stages(model, [config], every=True)
    assert stages.dense_layers[0].tolist() == [1, 1, 1] + [0] * 13
    assert stages.moe_layers[0].tolist() == [2, 2, 3] + [4] * 12 + [3]
    few = _stages(model, [config])
    assert few.rank[0].tolist() == [0, 2, 3, 15]


def test_even_dense_model_needs_two_stages_at_any_size() -> None:
    for pp in (2, 4, 8, 16, 32):
        stages = _stages(LLAMA_8B, [TrainingConfig(pp=pp)])
        assert stages.rank.tolist() == [[0, pp - 1]]


def test_v_shaped_embedding_and_output_share_the_first_rank() -> None:
    config = TrainingConfig(pp=4, vpp=2, schedule=Schedule.ZBV)
    stages = _stages(LLAMA_8B, [config], every=True)
    assert stages.has_embedding[0].tolist() == [True, False, False, False]
    assert stages.has_output[0].tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"recompute_method": RecomputeMethod.BLOCK, "recompute_layers": 3}, [6, 6, 6, 6]),
        ({"recompute_method": RecomputeMethod.BLOCK, "recompute_layers": 99}, [14] * 4),
        ({"recompute_method": RecomputeMethod.BLOCK, "recompute_layers": 0}, [0] * 4),
        ({"recompute_method": RecomputeMethod.UNIFORM, "recompute_layers": 1}, [14] * 4),
        ({"recompute_layer_ids": (0, 7, 55)}, [1, 1, 0, 1]),
        ({}, [14] * 4),
    ],
)
def test_recomputed_layers(changes: dict[str, object], expected: list[int]) -> None:
    base = TrainingConfig(pp=4, vpp=2, recompute=Recompute.FULL, schedule=Schedule.INTERLEAVED)
    stages = _stages(MIXTRAL_8X22B, [base.changed(**changes)], every=True)
    assert stages.recomputed[0].tolist() == expected


configs = st.builds(
    TrainingConfig,
    pp=st.sampled_from([1, 2, 4, 8]),
    vpp=st.sampled_from([1, 2, 3]),
    layout=st.sampled_from(["", "account=loss", "account=embedding+loss"]),
    recompute=st.sampled_from(list(Recompute)),
    recompute_method=st.sampled_from(list(RecomputeMethod)),
    recompute_layers=st.integers(0, 5),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(configs, min_size=1, max_size=8))
def test_layers_are_conserved_and_candidates_suffice(rows: list[TrainingConfig]) -> None:
    for model in (DEEPSEEK_V3, LLAMA_8B):
        every = _stages(model, rows, every=True)
        few = _stages(model, rows)
        assert ((every.layers * every.valid).sum(axis=1) == model.num_layers).all()
        assert ((every.mtp_layers * every.valid).sum(axis=1) == model.mtp_layers).all()
        for name in HELD:
            assert (getattr(few, name).max(axis=1) == getattr(every, name).max(axis=1)).all()
        assert (few.recomputed <= few.layers).all()
        stored = few.layers - few.recomputed
        all_stored = every.layers - every.recomputed
        assert (stored.max(axis=1) == all_stored.max(axis=1)).all()


def test_many_rows_share_their_partitions() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    table = ConfigTable.from_columns(
        {
            "pp": rng.choice([1, 2, 4, 8], n),
            "vpp": rng.choice([1, 2, 4], n),
            "mbs": rng.choice([1, 2], n),
        }
    )
    many = stage_columns(study(MIXTRAL_8X22B, table))
    for row in rng.integers(0, n, 20):
        one = stage_columns(study(MIXTRAL_8X22B, table.take([row])))
        k = one.rank.shape[1]
        assert (many.rank[row, :k] == one.rank[0]).all()
        assert (many.moe_layers[row, :k] == one.moe_layers[0]).all()


@pytest.mark.parametrize("spread", [2, 40, 1 << 20, 1 << 40])
def test_distinct_rows_are_those_of_sorting(spread: int) -> None:
    """Few values are numbered by a table, many by sorting, more than fit an integer in steps."""
    keys = np.random.default_rng(0).integers(-3, spread, (500, 3))
    keys[250:] = keys[:250]
    first, index = distinct_rows(tuple(keys.T))
    _, expected, number = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    assert first.tolist() == expected.tolist()
    assert index.tolist() == number.ravel().tolist()
    assert [len(found) for found in distinct_rows(tuple(keys[:0].T))] == [0, 0]
