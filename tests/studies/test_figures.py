"""Figures as people read them."""

from __future__ import annotations

import math
import re

import pytest

from specs.figures import in_percent, percent
from studies.cli.common import number
from studies.cli.figures import components_in_words, counted, duration, shortened
from studies.explanation import SMALLEST_SHARE, step_shares
from studies.wording import gain_in_words
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(
    ("fraction", "signed", "text"),
    [
        (0.0123, False, "1.2%"), (-0.0123, False, "-1.2%"), (0.0123, True, "+1.2%"),
        (-0.0001, False, "0.0%"), (-0.0001, True, "0.0%"), (0.0001, True, "0.0%"),
        (10.0, False, "1000.0%"),
    ],
)  # fmt: skip
def test_nothing_has_no_minus(fraction: float, signed: bool, text: str) -> None:
    assert percent(fraction, signed) == text


def test_zero_has_no_minus_in_pictures_and_tables() -> None:
    assert math.copysign(1.0, in_percent(-0.0004)) == 1.0
    assert in_percent(-0.0006) == -0.1
    assert percent(-0.004, signed=True, digits=0) == "0%"
    assert number(-0.0) == "0"
    assert (gain_in_words(-0.0004), gain_in_words(None)) == ("0.0%", "illegal")


def test_signed_percentages_are_written_in_one_place() -> None:
    """Of a format of one's own, what rounds to zero has a minus."""
    rooms = ("specs", "surrogate", "collectors", "search", "studies")
    written = [
        str(path)
        for room in rooms
        for path in (REPOSITORY / room).rglob("*.py")
        if re.search(r":\+\.\d%\}", path.read_text())
    ]
    assert not written


def test_parts_that_would_read_as_nothing_are_not_told() -> None:
    parts = {"gemm": 1.0, "dp": 0.9 * SMALLEST_SHARE, "pp": 1.1 * SMALLEST_SHARE, "ep": 0.0}
    told = step_shares({"throughput": {"breakdown_s": parts}})
    assert [name for name, _, _ in told] == ["dense GEMMs", "pipeline point-to-point"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1234.5, "1,234 s"), (50.46, "50.5 s"), (1.0, "1 s"), (0.184, "184 ms"),
        (0.00123, "1.23 ms"), (7.323e-05, "73.2 us"), (0.0, "0 us"),
    ],
)  # fmt: skip
def test_times_have_no_powers_of_ten(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(0, "0 runs"), (1, "1 run"), (1200, "1,200 runs")])
def test_nouns_agree(number: int, text: str) -> None:
    assert counted(number, "run") == text


def test_long_names_keep_both_ends() -> None:
    name = "source mlcommons/training_results_v5.1"
    assert shortened(name, 40) == name
    short = shortened(name, 20)
    assert len(short) <= 20
    assert short.startswith("source")
    assert short.endswith("v5.1")


def test_a_negative_overhead_is_explained() -> None:
    told = components_in_words({"weights": 11.5, "overhead": -2.2, "logits": 0.01}, 0.05)
    assert told == "weights 11.5, less 2.2 that are not alive at once"
    assert "less" not in components_in_words({"weights": 11.5, "overhead": 2.2}, 0.05)
