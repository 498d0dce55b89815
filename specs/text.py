"""Text of strangers: what is shown or written of it is one printable line, and names must be one.

A name that is taken from a file ends up in scripts, YAML, file names and terminals; a line end in
it would begin a line of its own there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator

LONGEST_COMMENT = 4000
"""Characters of a comment in a written file; the longest that we write ourselves has 600."""


def one_line(value: Any, limit: int) -> str:
    """A value as one line of at most ``limit`` characters; control characters become spaces."""
    text = value if isinstance(value, str) else "" if value is None else str(value)[: 4 * limit]
    shown = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    plain = " ".join(shown.split())
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def comment_lines(sentences: Iterable[str]) -> list[str]:
    """One comment line of a shell script or a YAML file for each sentence, whatever it holds."""
    return [f"# {one_line(sentence, LONGEST_COMMENT)}" for sentence in sentences]


def printable(name: str) -> str:
    """``name`` if it is one line of characters that can be printed.

    Raises:
        ValueError: it holds a line end, a tab, an escape or another control character.
    """
    if not name.isprintable():
        raise ValueError(
            f"{one_line(name, 60)!r} holds a line end or another control character; "
            "write it as one line of printable characters"
        )
    return name


Name = Annotated[str, AfterValidator(printable)]
"""A name in a schema: one printable line."""
