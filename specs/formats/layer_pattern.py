"""Patterns of layers: ``([0]*3+[1]*58)`` and friends, read by a small parser, never evaluated."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from specs.errors import InputError

MAX_LAYERS = 4096
_TOKEN = re.compile(r"\s*(?:(\d+)|([\[\](),+*]))")


def layer_flags(pattern: Any, num_layers: int, key: str) -> tuple[bool, ...]:
    """One flag a layer from an interval or a pattern of zeros and ones.

    An interval N marks layers 0, N, 2N ... (megatron/core/models/gpt/gpt_layer_specs.py); a list or
    a text such as ``([0]*1+[1]*26)`` gives each layer's flag.

    Raises:
        InputError: the pattern is malformed or has another length than ``num_layers``, or there
            are too many layers to spell out.
    """
    if num_layers > MAX_LAYERS:
        raise InputError(f"{key} is for {num_layers} layers; there are at most {MAX_LAYERS:,}.")
    if isinstance(pattern, str):
        pattern = _Parser(pattern, key).parse()
    if isinstance(pattern, bool) or not isinstance(pattern, int | list | tuple):
        raise InputError(f"{key} is {pattern!r}; use a whole number or a list of 0 and 1.")
    if isinstance(pattern, int):
        if pattern < 1:
            raise InputError(f"{key} is {pattern}; use a whole number of at least 1.")
        return tuple(layer % pattern == 0 for layer in range(num_layers))
    if len(pattern) != num_layers:
        raise InputError(f"{key} has {len(pattern)} entries for {num_layers} layers.")
    if any(isinstance(flag, bool) or flag not in (0, 1) for flag in pattern):
        raise InputError(f"{key} has an entry other than 0 and 1.")
    return tuple(bool(flag) for flag in pattern)


class _Parser:
    """Recursive descent over ``sum := term (+ term)*``, ``term := unit (* number)*``."""

    def __init__(self, text: str, key: str) -> None:
        self.text, self.key, self.place, self.depth = text, key, 0, 0

    def parse(self) -> int | list[int]:
        value = self._sum()
        if self._peek():
            self._fail()
        return value

    def _peek(self) -> str:
        match = _TOKEN.match(self.text, self.place)
        if match is None:
            if self.text[self.place :].strip():
                self._fail()
            return ""
        return match[1] or match[2]

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        match = _TOKEN.match(self.text, self.place)
        if match is None or (expected and token != expected):
            self._fail()
        self.place = match.end()
        return token

    def _fail(self) -> NoReturn:
        raise InputError(f"{self.key} is {self.text[:80]!r}; use a whole number or ([0]*3+[1]*58).")

    def _sum(self) -> int | list[int]:
        value = self._term()
        while self._peek() == "+":
            self._take()
            other = self._term()
            if isinstance(value, list) and isinstance(other, list):
                value = self._bounded(value + other)
            elif isinstance(value, int) and isinstance(other, int):
                value += other
            else:
                self._fail()
        return value

    def _term(self) -> int | list[int]:
        value = self._unit()
        while self._peek() == "*":
            self._take()
            times = self._unit()
            if not isinstance(times, int) or times > MAX_LAYERS:
                self._fail()
            if isinstance(value, list) and len(value) * times > MAX_LAYERS:
                self._fail()
            value = value * times
            if isinstance(value, int) and value > MAX_LAYERS:
                self._fail()
        return value

    def _unit(self) -> int | list[int]:
        self.depth += 1
        if self.depth > 200:
            self._fail()
        token = self._take()
        if token == "(":
            value = self._sum()
            self._take(")")
        elif token == "[":
            value = self._list()
        elif token.isdigit() and len(token) <= 6:
            value = int(token)
        else:
            self._fail()
        self.depth -= 1
        return value

    def _list(self) -> list[int]:
        values: list[int] = []
        while self._peek() != "]":
            value = self._sum()
            if not isinstance(value, int):
                self._fail()
            values.append(value)
            if self._peek() != "]":
                self._take(",")
        self._take("]")
        return values

    def _bounded(self, values: list[int]) -> list[int]:
        if len(values) > MAX_LAYERS:
            self._fail()
        return values
