"""Figures as people read them."""

from __future__ import annotations

import pytest

from studies.cli.figures import components_in_words, counted, duration, percent, shortened


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
