"""Page: the shell of a report, which holds everything it needs and asks the network for nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from studies.files import to_json
from studies.pictures.style import Picture
from studies.report.html import Markup, join, tag, text

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
"""What the page may load: nothing that is not in it."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report; ``name`` is its anchor."""

    name: str
    title: str
    content: Markup


def figure(name: str, shown: Picture, says: str) -> Markup:
    """A picture with its caption, which is also what a screen reader says of it."""
    data = to_json({**shown, "layout": {**shown["layout"], "autosize": True}})
    return tag(
        "figure",
        tag("div", class_="plot", id=name, role="img", aria_label=says),
        tag("figcaption", says),
        tag("script", _script(data), type="application/json", id=f"{name}-data"),
    )


def _script(code: str) -> Markup:
    """JSON that cannot close its own script element."""
    return Markup(json.dumps(json.loads(code)).replace("<", "\\u003c"))


def page(title: str, lead: Any, sections: Sequence[Section], foot: Any) -> str:
    """The whole document.

    Args:
        title: of the document and its heading.
        lead: what stands above the first section.
        sections: in reading order.
        foot: the last words.
    """
    from plotly.offline import get_plotlyjs

    contents = tag(
        "nav",
        tag("ul", *(tag("li", tag("a", s.title, href=f"#{s.name}")) for s in sections)),
        aria_label="Contents",
    )
    body = join(
        tag("section", tag("h2", s.title, id=f"{s.name}-title"), s.content, id=s.name,
            aria_labelledby=f"{s.name}-title")
        for s in sections
    )  # fmt: skip
    # Both files are ours or Plotly's; neither holds foreign text.
    style, script = Markup(_own("style.css")), Markup(_own("page.js"))
    return "<!DOCTYPE html>\n" + tag(
        "html",
        tag(
            "head",
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{text(POLICY)}">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            tag("title", title),
            tag("style", style),
        ),
        tag(
            "body",
            tag("a", "Skip to the answer", href="#main", class_="skip"),
            tag("header", tag("h1", title), lead, contents),
            tag("main", body, id="main"),
            tag("footer", foot),
            tag("noscript", "The pictures need JavaScript; every number is also in a table."),
            tag("script", Markup(get_plotlyjs())),
            tag("script", script),
        ),
        lang="en",
    )


def _own(name: str) -> str:
    return (resources.files("studies.report") / name).read_text(encoding="utf-8")
