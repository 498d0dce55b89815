"""Numbers of any locale, prefixes of launchers, colours."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.text import Truncation, parsed_number, read_lines
from specs.errors import InputError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5123.4", 5123.4),
        ("5123,4", 5123.4),
        ("1,234.5", 1234.5),
        ("1.234,5", 1234.5),
        ("1,234,567.8", 1234567.8),
        ("-3.5e-2", -0.035),
        ("57.65,", 57.65),
    ],
)
def test_numbers_of_any_locale(text, number):
    assert parsed_number(text) == pytest.approx(number)


@given(st.text(alphabet="0123456789.,eE+-", max_size=50))
def test_any_digits_are_a_number_or_nothing(text):
    number = parsed_number(text)
    assert number is None or abs(number) < 1e300


@pytest.mark.parametrize(
    ("raw", "rank", "text"),
    [
        ("  0: hello", 0, "hello"),
        ("127:  iteration", 127, " iteration"),
        ("[default3]:hello", 3, "hello"),
        ("[rank5]: hello", 5, " hello"),
        ("[1,17]<stdout>:hello", 17, "hello"),
        ("\x1b[32mgreen\x1b[0m \x00text", -1, "green text"),
        ("12:30:45 time", -1, "12:30:45 time"),
    ],
)
def test_prefixes_and_colours(tmp_path, raw, rank, text):
    path = tmp_path / "x.log"
    path.write_text(raw + "\n")
    line = next(read_lines(path, Truncation()))
    assert (line.rank, line.text) == (rank, text)


@given(st.binary(max_size=3000))
def test_any_bytes_are_lines_or_a_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "x"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        for line in read_lines(path, Truncation()):
            assert "\n" not in line.text
