"""JSON documents larger than memory: the members of the top object, and one array item by item."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from collectors.text import Truncation, read_blocks
from specs.errors import InputError

LARGEST_VALUE = 2**24
"""Characters of one value (an event, a header) that are held; a larger one is refused."""

_BLANKS = re.compile(r"[ \t\r\n]*")


class JsonStream:
    """Reads a document front to back with a buffer of at most one value and one block.

    ``truncation.reason`` is set where the file ends early; iteration then ends quietly.
    """

    def __init__(self, path: Path, truncation: Truncation) -> None:
        self._path = path
        self._truncation = truncation
        decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._blocks: Iterator[str] = (decode(b) for b in read_blocks(path, truncation))
        self._buffer = ""
        self._place = 0
        self._decoder = json.JSONDecoder(strict=False)

    def members(self, streamed: str, item: Callable[[Any], None]) -> Iterator[tuple[str, Any]]:
        """(name, value) of each member of the top object but ``streamed``, an array whose items
        go to ``item`` one by one. A top-level array counts as ``streamed``.

        Raises:
            InputError: the document is no JSON object or array, or a value is too large.
        """
        first = self._peek()
        if first == "[":
            self._place += 1
            self._items(item)
            return
        if first != "{":
            raise InputError(f"{self._path} is no JSON trace: it begins with {first!r}.")
        self._place += 1
        while (char := self._peek()) not in ("}", ""):
            if char == ",":
                self._place += 1
                continue
            name = self._value()
            if name is _END:
                return
            if self._peek() != ":":
                if not self._peek():
                    break
                raise self._malformed()
            self._place += 1
            if name == streamed and self._peek() == "[":
                self._place += 1
                self._items(item)
            else:
                value = self._value()
                if value is _END:
                    return
                yield str(name), value
        if not char and not self._truncation.reason:
            self._truncation.reason = "the file ends before its JSON does"

    def _items(self, item: Callable[[Any], None]) -> None:
        """Hands the items of the array that has just been opened to ``item``."""
        while (char := self._peek()) not in ("]", ""):
            if char == ",":
                self._place += 1
                continue
            value = self._value()
            if value is _END:
                return
            item(value)
        self._place += 1

    def _peek(self) -> str:
        """The next character that is no blank; empty at the end of the file."""
        while True:
            blanks = _BLANKS.match(self._buffer, self._place)
            assert blanks is not None
            self._place = blanks.end()
            if self._place < len(self._buffer):
                return self._buffer[self._place]
            if not self._more():
                return ""

    def _value(self) -> Any:
        """The value that begins here; ``_END`` where the file ends inside it."""
        self._peek()
        wanted = 2**14
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._place)
            except (json.JSONDecodeError, RecursionError, ValueError) as error:
                whole = len(self._buffer) - self._place
                if isinstance(error, RecursionError) or whole > LARGEST_VALUE:
                    raise self._malformed() from None
                if isinstance(error, json.JSONDecodeError) and self._is_hopeless(error):
                    raise self._malformed() from None
                # Doubling what is read before the next try keeps the work linear.
                if not self._more(max(wanted, whole)):
                    if not self._truncation.reason:
                        self._truncation.reason = "the file ends before its JSON does"
                    return _END
                continue
            # A number may go on in the next block.
            whole_value = end < len(self._buffer) or isinstance(value, dict | list | str)
            if not whole_value and self._more():
                continue
            self._place = end
            return value

    def _is_hopeless(self, error: json.JSONDecodeError) -> bool:
        """Whether more text cannot mend the value: the fault lies well before the end."""
        return error.pos < len(self._buffer) - 2**16 and "Unterminated" not in error.msg

    def _more(self, characters: int = 1) -> bool:
        """Reads at least ``characters`` more; False at the end of the file."""
        parts = [self._buffer[self._place :]]
        read = 0
        for text in self._blocks:
            parts.append(text)
            read += len(text)
            if read >= characters:
                break
        self._buffer, self._place = "".join(parts), 0
        return read > 0

    def _malformed(self) -> InputError:
        around = " ".join(self._buffer[self._place : self._place + 40].split())
        return InputError(
            f"{self._path} is no readable JSON trace near {around!r}; export it from the profiler "
            "again."
        )


_END = object()
