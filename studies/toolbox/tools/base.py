"""What every tool offers: when it can be tried, how it is applied, and how its effect is proven."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

from studies.toolbox.bundle import Bundle
from studies.toolbox.runtime import Host, Observation, Runtime
from studies.toolbox.workload import Generation


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a tool changed execution, and what shows it."""

    changed: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Code:
    """What a tool adds to a program that loads ``model``: lines, and arguments of its Generator.

    ``files`` are modules of this package whose source the program carries.
    """

    lines: tuple[str, ...] = ()
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


class Tool(ABC):
    """One optimisation with its settings.

    A worker applies the tools of a bundle in the order of the toolbox to a freshly loaded model,
    warms up, and observes; ``proof`` compares what was observed with and without.
    """

    name: ClassVar[str]
    settings: ClassVar[tuple[str, ...]]
    prepares: ClassVar[bool] = False
    """Whether its first runs compile or tune, which costs far more than running."""

    def lossless(self, setting: str) -> bool:  # noqa: ARG002
        """Whether outputs stay the same but for rounding; others need a budget of the user."""
        return True

    def has_twin(self, setting: str, host: Host) -> bool:  # noqa: ARG002
        """Whether it does the same in float32, where faults cannot hide under rounding."""
        return True

    def unavailable(self, setting: str, host: Host, work: Generation) -> str:  # noqa: ARG002
        """Why it cannot be tried on this machine and model; empty where it can."""
        return ""

    def conflict(self, setting: str, bundle: Bundle, host: Host) -> str:  # noqa: ARG002
        """Why it cannot be combined with the rest of a bundle; empty where it can."""
        return ""

    def environment(self, setting: str) -> dict[str, str]:  # noqa: ARG002
        """Variables that must be set before its process starts."""
        return {}

    @abstractmethod
    def apply(self, runtime: Runtime, setting: str) -> None:
        """Applies it to a loaded model."""

    @abstractmethod
    def proof(self, setting: str, before: Observation, after: Observation) -> Proof:
        """Whether execution changed against the baseline ``before``."""

    @abstractmethod
    def code(self, setting: str) -> Code:
        """The same in an optimised model's source."""
