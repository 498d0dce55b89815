"""HTML that cannot be broken by what it says: every text is escaped unless it is Markup already."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

WIDE = 24
"""Characters from which a cell must not be squeezed on a small screen."""


class Markup(str):
    """Text that is HTML already. Only this module and constants of ours make it."""

    __slots__ = ()


def text(content: Any) -> Markup:
    """Any content as HTML: Markup as it is, everything else escaped."""
    return content if isinstance(content, Markup) else Markup(escape(str(content)))


def tag(name: str, *children: Any, **attributes: str | None) -> Markup:
    """An element; ``class_`` becomes ``class``, ``_`` a hyphen, and None leaves one out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Iterable[Any]) -> Markup:
    """Contents one after the other."""
    return Markup("".join(text(child) for child in children))


def paragraphs(*sentences: Any) -> Markup:
    """One paragraph a text."""
    return join(tag("p", sentence) for sentence in sentences)


def bullets(items: Iterable[Any]) -> Markup:
    """A list."""
    return tag("ul", *(tag("li", item) for item in items))


def folded(summary: str, *children: Any) -> Markup:
    """Something that is shown when asked for, and always when printed."""
    return tag("details", tag("summary", summary), *children)


def table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Iterable[int] = ()
) -> Markup:
    """A table that scrolls sideways on small screens; the first cell of a row names it.

    Args:
        caption: what the table says, also its name for screen readers; unique in a document.
        header: a name a column.
        rows: cells, escaped unless Markup.
        numeric: columns whose cells are aligned right.
    """
    right = set(numeric)

    def cell(kind: str, column: int, content: Any, scope: str | None = None) -> Markup:
        wide = len(re.sub(r"<[^>]*>", "", str(content))) > WIDE
        look = "number" if column in right else "wide" if wide else None
        return tag(kind, content, class_=look, scope=scope)

    head = tag("tr", *(cell("th", i, name, "col") for i, name in enumerate(header)))
    body = join(
        tag(
            "tr",
            *(
                cell("td" if i else "th", i, content, None if i else "row")
                for i, content in enumerate(row)
            ),
        )
        for row in rows
    )
    name = "table-" + re.sub(r"[^a-z0-9]+", "-", caption.lower()).strip("-")
    return join(
        [
            tag("p", caption, class_="caption", id=name),
            tag(
                "div",
                tag("table", tag("thead", head), tag("tbody", body), aria_labelledby=name),
                class_="scroll",
                role="region",
                aria_labelledby=name,
                tabindex="0",
            ),
        ]
    )
