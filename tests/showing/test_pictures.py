"""Every picture is a valid Plotly figure that shows what it is given."""

from __future__ import annotations

from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.pictures.axis_effects import Neighbour, axis_effects
from studies.pictures.changes import Change, changes, wrapped
from studies.pictures.gantt import IN_TURN, MOST_A_RANK, Slot, gantt
from studies.pictures.incumbent import incumbent
from studies.pictures.interactions import interactions
from studies.pictures.measured import Comparison, measured
from studies.pictures.memory import PARTS, memory_by_stage
from studies.pictures.pareto import front, pareto
from studies.pictures.sensitivity import Lever, sensitivity
from studies.pictures.shortlist import Candidate, shortlist
from studies.pictures.step import step_parts
from studies.pictures.style import BOARD_HEIGHT, Attempt, Picture, titled
from studies.pictures.svg import WIDTH, svg

STAGES = [{"stage": float(s), **{f"{part}_gib": 1.0 + s for part in PARTS}} for s in range(2)]
ATTEMPTS = [
    Attempt(0, 100.0, 50.0, True, "a"),
    Attempt(1, 300.0, 400.0, False, "b"),
    Attempt(2, 200.0, 60.0, True, "c"),
]
PICTURES = {
    "incumbent": incumbent(ATTEMPTS),
    "pareto": pareto(ATTEMPTS, 64.0),
    "memory": memory_by_stage({"best": STAGES}, 64.0),
    "step": step_parts({"best": {"gemm": 1.0, "dp": 0.001}}, {"gemm": "GEMMs"}),
    "gantt": gantt([Slot(0, "forward", 0, 0, 0.0, 1.0), Slot(1, "backward", 0, 1, 1.0, 2.0)], 2.0),
    "changes": changes([Change("tp 1 -> 2", 0.1, None)]),
    "interactions": interactions(["a", "b"], [("a", "b", -0.1)]),
    "axes": axis_effects([Neighbour("tp", "2", -0.1, True), Neighbour("pp", "4", 0.0, False)]),
    "sensitivity": sensitivity([Lever("NIC", -0.1, 0.05)], 0.2),
    "shortlist": shortlist([Candidate("1", 100.0, 80.0, 120.0, 0.5)]),
    "measured": measured([Comparison(100.0, 110.0, 90.0, 130.0, "a")]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_plotly_accepts_it_and_something_is_drawn(name: str) -> None:
    figure = go.Figure(PICTURES[name])
    assert any(len(trace.y if trace.y is not None else ()) for trace in figure.data)


@pytest.mark.parametrize("name", PICTURES)
def test_a_board_has_room_for_it(name: str) -> None:
    shown: Picture = titled(PICTURES[name], "a title")
    assert go.Figure(shown).layout.height == BOARD_HEIGHT


def test_incumbent_never_counts_what_memory_refused() -> None:
    line = PICTURES["incumbent"]["data"][-1]
    assert line["y"] == [100.0, 100.0, 200.0]


@given(
    st.lists(
        st.builds(
            Attempt,
            st.integers(0, 99),
            st.floats(1, 1e4),
            st.floats(1, 500),
            st.booleans(),
            st.just(""),
        )
    )
)
def test_nothing_dominates_the_front(attempts: list[Attempt]) -> None:
    best = front(attempts)
    fitting = [attempt for attempt in attempts if attempt.fits]
    assert bool(best) == bool(fitting)
    for kept in best:
        assert not any(
            other.tokens_per_s_per_gpu > kept.tokens_per_s_per_gpu
            and other.peak_gib <= kept.peak_gib
            for other in fitting
        )


def test_small_parts_of_a_step_become_one() -> None:
    picture = step_parts({"best": {"gemm": 1.0, "dp": 0.001, "pp": 0.001}}, {})
    assert [trace["name"] for trace in picture["data"]] == ["gemm", "all else"]
    assert picture["data"][1]["x"] == [0.002]


@given(st.text(st.characters(codec="ascii", exclude_characters="\n"), max_size=200))
def test_labels_stay_short(text: str) -> None:
    lines = wrapped(text).split("<br>") if "<br>" not in text else []
    assert len(lines) <= 3
    assert all(len(line) <= 26 for line in lines)


@pytest.mark.parametrize("name", ["memory", "gantt"])
def test_bars_are_drawn_as_svg_too(name: str) -> None:
    root = ElementTree.fromstring(svg(PICTURES[name], "a <title>"))
    bars = [e for e in root.iter("{http://www.w3.org/2000/svg}rect") if e.get("height") != "12.0"]
    drawn = sum(len(trace["y"]) for trace in PICTURES[name]["data"])
    assert len(bars) - 1 == drawn
    assert all(float(bar.get("x", 0)) + float(bar.get("width", 0)) <= WIDTH for bar in bars[1:])
    assert "a <title>" in [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]


def test_only_bars_are_drawn_as_svg() -> None:
    with pytest.raises(ValueError, match="only pictures of bars"):
        svg(PICTURES["pareto"], "")


def _pipeline(rounds: int) -> list[Slot]:
    """A rank that runs forward tasks of two chunks, then both kinds in turn, then backward."""
    kinds = ["forward"] * 8 + ["forward", "backward"] * rounds + ["backward"] * 8
    chunks = [0] * 4 + [1] * 4 + [0, 1] * rounds + [1] * 4 + [0] * 4
    pause = 8.0  # after the forward tasks: too long to be left out
    return [
        Slot(0, kind, 0, chunk, i + pause * (i >= 8), i + 1 + pause * (i >= 8))
        for i, (kind, chunk) in enumerate(zip(kinds, chunks, strict=True))
    ]


def test_a_pipeline_of_many_tasks_is_drawn_in_blocks_that_say_so() -> None:
    few, many = _pipeline(20), _pipeline(200)
    for slots, blocks in ((few, False), (many, True)):
        shown = gantt(slots, slots[-1].end_s, "all 8 microbatches")
        bars = sum(len(trace["y"]) for trace in shown["data"])
        title = shown["layout"]["xaxis"]["title"]["text"]
        assert "all 8 microbatches" in title
        assert ("pauses below" in title) is blocks
        assert (bars == len(slots)) is not blocks
        assert bars <= MOST_A_RANK
    named = {trace["name"]: trace for trace in shown["data"]}
    assert named[IN_TURN]["x"] == pytest.approx([400.0], abs=2)
    assert named["forward, even chunks"]["x"] == [4.0]
    assert named["backward, even chunks"]["x"] == [4.0]
    drawn = sum(sum(trace["x"]) for trace in shown["data"])
    assert drawn == pytest.approx(sum(slot.end_s - slot.start_s for slot in many))
