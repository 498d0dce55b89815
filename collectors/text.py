"""Lines of a log that nobody vouches for: any compression, encoding, colour or length.

Memory is bounded: a block of the file and one cut line, whatever the file holds.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from specs.errors import InputError
from specs.files import input_file

BLOCK_BYTES = 2**18
LONGEST_LINE = 2**16
"""Characters of a line that are read; the rest of a longer one is dropped."""
BOMB_BYTES, BOMB_RATIO = 2**28, 200
"""A file that unpacks to more than both (bytes, times its size) is no log: those pack 5 to 50."""

_COMPRESSIONS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}\x07?|[@-Z\\-_])")
_CONTROL = dict.fromkeys((*range(9), *range(11, 32), 127), None)
_CUT = re.compile(r"\r\n|\n|\r")
_BROKEN = (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, OSError)


class Line(NamedTuple):
    """One line without colours and control characters; ``rank`` is -1 where no prefix names it."""

    number: int
    rank: int
    text: str


class Truncation:
    """Whether a compressed file ended early: what was read up to there counts."""

    def __init__(self) -> None:
        self.reason = ""


def open_binary(path: Path) -> BinaryIO:
    """The decompressed bytes of a file; the compression is told from its first bytes.

    Raises:
        InputError: the file cannot be opened.
    """
    try:
        with input_file(path, again=True).open("rb") as file:
            start = file.read(6)
        for magic, opener in _COMPRESSIONS:
            if start.startswith(magic):
                return cast(BinaryIO, opener(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; give a log or a trace."
        ) from None


def read_blocks(path: Path, truncation: Truncation) -> Iterator[bytes]:
    """The decompressed bytes in blocks; a file that ends early ends quietly in ``truncation``.

    Raises:
        InputError: the file cannot be opened, or unpacks without bound.
    """
    unpacked = 0
    with open_binary(path) as file:
        most = max(BOMB_BYTES, BOMB_RATIO * path.stat().st_size)
        while True:
            try:
                # read1 hands over what is there; read would lose it where the file is cut.
                block = file.read1(BLOCK_BYTES)  # type: ignore[attr-defined]
            except _BROKEN as error:
                truncation.reason = f"the file is cut or damaged ({error or type(error).__name__})"
                return
            if not block:
                return
            unpacked += len(block)
            if unpacked > most:
                raise InputError(
                    f"{path} unpacks to more than {BOMB_RATIO} times its size, as no log or trace "
                    "does; unpack it and look what it is."
                )
            yield block


def read_lines(path: Path, truncation: Truncation) -> Iterator[Line]:
    """The lines of a log, with the prefix of launchers read as the rank.

    Raises:
        InputError: the file cannot be opened or is no text.
    """
    pieces: list[str] = []
    held = number = 0
    for text in _decoded(path, truncation):
        parts = _CUT.split(text)
        for index, part in enumerate(parts):
            if held < LONGEST_LINE:
                pieces.append(part[: LONGEST_LINE - held])
                held += len(part)
            if index == len(parts) - 1:
                break
            if held:
                number += 1
                yield _line(number, "".join(pieces))
            pieces, held = [], 0
    if held:
        yield _line(number + 1, "".join(pieces))


def _decoded(path: Path, truncation: Truncation) -> Iterator[str]:
    """The text in blocks; bytes that are no text become a replacement character."""
    decoder = None
    for block in read_blocks(path, truncation):
        if decoder is None:
            encoding = next((e for mark, e in _BYTE_ORDER_MARKS if block.startswith(mark)), "utf-8")
            if encoding != "utf-16" and _is_binary(block):
                raise InputError(
                    f"{path} is neither text nor a trace; give the log that the training printed, "
                    "or a profiler trace as .json or .json.gz."
                )
            decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        yield decoder.decode(block)


def _is_binary(block: bytes) -> bool:
    """Whether a block holds too many control bytes to be text (a crash may leave some)."""
    sample = block[:65536]
    control = sum(sample.count(code) for code in (0, 1, 2, 3, 4, 5, 6, 14, 15, 16, 17, 18))
    return control > 0.3 * len(sample)


_RANK = re.compile(
    r"\s{0,40}(?:\[(?:default|rank)?(\d{1,7})\]:|(\d{1,7}): "
    r"|\[\d{1,6},(\d{1,7})\]<std(?:out|err)>:)"
)


def _line(number: int, text: str) -> Line:
    """A line without what terminals and launchers put around it."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if not text.isprintable():
        text = text.translate(_CONTROL)
    rank = -1
    match = _RANK.match(text)
    if match:
        rank = int(match[1] or match[2] or match[3])
        text = text[match.end() :]
    return Line(number, rank, text)


_NUMBER = re.compile(r"[-+]?\d[\d.,]{0,40}(?:[eE][-+]?\d{1,4})?")


def first_number(text: str) -> float | None:
    """The first number in ``text``, with a decimal point or comma; None where there is none."""
    match = _NUMBER.search(text)
    return parsed_number(match[0]) if match else None


def parsed_number(text: str) -> float | None:
    """A number as C or another locale prints it: ``1,234.5`` and ``1.234,5`` are the same.

    A lone comma is a decimal comma: training frameworks do not group digits.
    """
    digits = text.rstrip(".,")
    if digits.count(",") == 1 and digits.rfind(",") > digits.rfind("."):
        digits = digits.replace(".", "").replace(",", ".")
    else:
        digits = digits.replace(",", "")
    try:
        number = float(digits)
    except ValueError:
        return None
    return number if abs(number) < 1e300 else None


def grouped_number(digits: str) -> float:
    """A number whose commas group digits, as Python's ``,`` format prints in any locale."""
    return float(digits.replace(",", ""))
