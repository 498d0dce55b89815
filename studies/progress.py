"""Progress of long work, for whoever watches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Tell = Callable[[str], None]
"""``tell(line)`` shows a line while work goes on."""
Progress = Callable[[str, int | None], AbstractContextManager[Callable[[int], None]]]
"""``progress(text, total)`` gives ``advance(steps)``; a silent one where nobody watches."""


def untold(_line: str) -> None:
    """Lines that nobody reads."""


def silent(_text: str, _total: int | None) -> AbstractContextManager[Callable[[int], None]]:
    """Progress that nobody sees."""
    return nullcontext(lambda _steps: None)
