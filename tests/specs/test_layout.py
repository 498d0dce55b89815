"""Layouts place every layer once, as Megatron does, and refuse what Megatron refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import InputError
from specs.layout import explicit_stages, layout_problem, layout_vpp, rank_of, virtual_stages

DEEPSEEK_V3 = "Et*1|t*1|" + "t*2|" * 29 + "t*1,L"


def test_shipped_deepseek_v3_layout() -> None:
    stages = virtual_stages(DEEPSEEK_V3, 61, 0, 16, 2)
    assert layout_vpp(DEEPSEEK_V3, 16) == 2
    assert [s.layers for s in stages] == [1, 1] + [2] * 29 + [1]
    assert stages[0].embedding
    assert stages[-1].output
    assert layout_problem(DEEPSEEK_V3, 61, 0, 16, 2) == ""
    assert "MTP" in layout_problem(DEEPSEEK_V3, 61, 1, 16, 2)


def test_groups_and_commas() -> None:
    assert explicit_stages("Et|(tt|)*2m,L") == ("Et", "tt", "tt", "mL")


@pytest.mark.parametrize(
    "layout",
    ["t|t", "E|t|x|L", "Ett|L|t", "E|E|L", "first=", "last=x", "account=head", "E(t|*2,L", "Et*"],
)
def test_malformed_layouts_are_refused(layout: str) -> None:
    with pytest.raises(InputError):
        virtual_stages(layout, 4, 0, 2, 1)


def test_repeats_cannot_exhaust_memory() -> None:
    with pytest.raises(InputError):
        explicit_stages("E" + "t" * 10 + "*999999999,L")
    with pytest.raises(InputError):
        explicit_stages("E((((t*999)*999)*999)*999),L")


@pytest.mark.parametrize(
    ("layout", "layers", "pp", "counts"),
    [
        ("", 30, 8, [3, 4, 4, 4, 4, 4, 4, 3]),
        ("", 15, 4, [4, 4, 4, 3]),
        ("first=3", 11, 3, [3, 4, 4]),
        ("first=2,last=1", 11, 4, [2, 4, 4, 1]),
        ("account=embedding", 15, 4, [3, 4, 4, 4]),
        ("account=embedding+loss", 30, 8, [3, 4, 4, 4, 4, 4, 4, 3]),
    ],
)
def test_uneven_splits(layout: str, layers: int, pp: int, counts: list[int]) -> None:
    assert [s.layers for s in virtual_stages(layout, layers, 0, pp, 1)] == counts


def test_mtp_rules_of_explicit_layouts() -> None:
    assert layout_problem("Et|t|t|tm,L", 4, 1, 4, 1) == ""
    assert "spreads" in layout_problem("Et|t|tm|tm,L", 4, 2, 4, 1)
    assert "last chunk" in layout_problem("Et|tm|t|t,L", 4, 1, 2, 2)


@given(
    layers=st.integers(1, 130),
    pp=st.integers(1, 16),
    vpp=st.integers(1, 4),
    v_shaped=st.booleans(),
    mtp=st.integers(0, 2),
)
def test_every_layer_is_placed_once(
    layers: int, pp: int, vpp: int, v_shaped: bool, mtp: int
) -> None:
    vpp = 2 if v_shaped else vpp
    stages = virtual_stages("", layers, mtp, pp, vpp, v_shaped)
    assert len(stages) == pp * vpp
    ids = [s.first_layer + i for s in stages for i in range(s.layers)]
    assert ids == list(range(layers))
    assert max(s.layers for s in stages) - min(s.layers for s in stages) <= 1
    assert sum(s.mtp_layers for s in stages) == mtp
    ranks = [rank_of(i, pp, v_shaped) for i in range(pp * vpp)]
    assert all(ranks.count(rank) == vpp for rank in range(pp))
    if v_shaped:
        assert ranks[0] == ranks[-1] == 0


def test_more_stages_than_anyone_has_are_refused_before_they_are_listed() -> None:
    assert "virtual stages; use at most" in layout_problem("", 32, 0, 2**31, 1)
