"""Names that are taken from a file: one printable line each.

They end up in scripts, YAML, file names and terminals; a line end in one would begin a line of its
own there.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from specs.text import one_line


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
