"""Bundle: the tools that are applied together and how each is set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

OFF = "off"
"""The setting of a tool that is not applied."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Pairs of tool and setting, sorted by tool; a tool that is off is absent."""

    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Bundle:
        """The bundle of a mapping; tools that are off are left out."""
        return cls(tuple(sorted((tool, s) for tool, s in settings.items() if s != OFF)))

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __contains__(self, tool: object) -> bool:
        return any(name == tool for name, _ in self.pairs)

    def __str__(self) -> str:
        return " + ".join(f"{tool}={setting}" for tool, setting in self.pairs) or "baseline"

    def get(self, tool: str) -> str:
        """The setting of a tool; ``off`` where it is not applied."""
        return dict(self.pairs).get(tool, OFF)

    def with_(self, tool: str, setting: str) -> Bundle:
        """This bundle with one tool set; ``off`` removes it."""
        return Bundle.of({**dict(self.pairs), tool: setting})

    def without(self, *tools: str) -> Bundle:
        """This bundle without some of its tools."""
        return Bundle(tuple(pair for pair in self.pairs if pair[0] not in tools))

    def within(self, other: Bundle) -> bool:
        """Whether every pair of this bundle is in the other."""
        return set(self.pairs) <= set(other.pairs)

    def as_json(self) -> dict[str, str]:
        """Tool to setting."""
        return dict(self.pairs)


BASELINE = Bundle()
