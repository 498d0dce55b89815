"""LogFormat: what the lines of one framework's log mean. A new format is one small class.

Write a subclass, add it to ``FORMATS`` in ``formats.py`` and put a sample file into
``tests/collectors/samples``: the tests read every sample with every property they know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from collectors.logs.reading import LineReader
from collectors.logs.run_log import RunLog
from specs.model import Model


@dataclass
class Description:
    """What a log says about the run: columns of the table of runs as text, and the architecture.

    ``model`` is None where the log does not state one; ``notes`` say what was assumed or is odd.
    ``words`` go into the notes column: what the table has no column for.
    """

    columns: dict[str, str] = field(default_factory=dict)
    model: Model | None = None
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class LogFormat(ABC):
    """One framework's log.

    ``readers`` are the line readers that only this format needs, beside the shared ones.
    """

    name: ClassVar[str]
    readers: ClassVar[tuple[type[LineReader], ...]] = ()

    @abstractmethod
    def recognises(self, run: RunLog) -> bool:
        """Whether what was read is a run of this framework."""

    @abstractmethod
    def describe(self, run: RunLog, where: str) -> Description:
        """The configuration of the run; ``where`` names the log in sentences.

        Raises:
            InputError: the log states a configuration that is contradictory or not supported.
        """
