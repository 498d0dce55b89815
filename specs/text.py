"""Text of strangers: what is shown or written of it is one printable line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

LONGEST_COMMENT = 4000
"""Characters of a comment in a written file; the longest that we write ourselves has 600."""


def printable_words(text: str) -> list[str]:
    """The words of a text; line ends, escapes and other control characters only part them."""
    return "".join(c if c.isprintable() else " " for c in text).split()


def one_line(value: Any, limit: int) -> str:
    """A value as one line of at most ``limit`` characters; control characters become spaces."""
    text = value if isinstance(value, str) else "" if value is None else str(value)[: 4 * limit]
    plain = " ".join(printable_words(text[: 4 * limit]))
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def comment_lines(sentences: Iterable[str]) -> list[str]:
    """One comment line of a shell script or a YAML file for each sentence, whatever it holds."""
    return [f"# {one_line(sentence, LONGEST_COMMENT)}" for sentence in sentences]
