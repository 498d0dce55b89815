"""The bundles that can be tried: settings per tool, what this machine refuses, what conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from specs.errors import InputError
from studies.toolbox.bundle import OFF, Bundle
from studies.toolbox.runtime import Host
from studies.toolbox.tools import TOOLBOX
from studies.toolbox.workload import Generation


def checked_axes(axes: Mapping[str, Iterable[str]] | None) -> dict[str, tuple[str, ...]]:
    """Settings per tool: all of them, or those of ``axes``.

    Raises:
        InputError: a tool or a setting does not exist.
    """
    if axes is None:
        return {name: tool.settings for name, tool in TOOLBOX.items()}
    checked: dict[str, tuple[str, ...]] = {}
    for name, settings in axes.items():
        if name not in TOOLBOX:
            raise InputError(f"there is no tool {name!r}; there are {', '.join(sorted(TOOLBOX))}.")
        known = TOOLBOX[name].settings
        chosen = tuple(str(setting) for setting in settings)
        unknown = sorted(set(chosen) - set(known))
        if unknown:
            raise InputError(
                f"{name} has no setting {', '.join(unknown)}; it has {', '.join(known)}."
            )
        checked[name] = chosen
    return checked


@dataclass(frozen=True)
class ToolSpace:
    """Every legal bundle of some tools on one machine.

    Attributes:
        axes: settings per tool.
        host, work: what the tools must know.
        lossy_budget: multiple of bfloat16's rounding that a lossy tool may cost; None: none is
            tried.
    """

    axes: Mapping[str, tuple[str, ...]]
    host: Host
    work: Generation
    lossy_budget: float | None = None

    def refusal(self, tool: str, setting: str) -> str:
        """Why one setting is not tried here; empty where it is."""
        kind = TOOLBOX[tool]
        reason = kind.unavailable(setting, self.host, self.work)
        if not reason and not kind.lossless(setting) and self.lossy_budget is None:
            return "it loses precision by design; state a budget with --lossy-budget to try it"
        return reason

    @cached_property
    def refused(self) -> dict[str, str]:
        """``tool=setting`` to the reason, of every setting that is not tried."""
        reasons = {
            f"{tool}={setting}": self.refusal(tool, setting)
            for tool, settings in self.axes.items()
            for setting in settings
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def why_illegal(self, bundle: Bundle) -> list[str]:
        """Why a bundle cannot be tried; empty where it can."""
        reasons = []
        for tool, setting in bundle:
            if setting not in self.axes.get(tool, ()):
                reasons.append(f"{tool}={setting} is not in this study")
                continue
            refusal = self.refusal(tool, setting)
            reasons += [f"{tool}={setting}: {refusal}"] if refusal else []
            conflict = TOOLBOX[tool].conflict(setting, bundle, self.host)
            reasons += [conflict] if conflict else []
        return reasons

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """Every legal bundle but the baseline, small ones first."""
        choices = [
            [(tool, OFF)] + [(tool, s) for s in settings if f"{tool}={s}" not in self.refused]
            for tool, settings in sorted(self.axes.items())
        ]
        all_bundles = (Bundle.of(dict(pairs)) for pairs in product(*choices))
        legal = [b for b in all_bundles if len(b) and not self.why_illegal(b)]
        return tuple(sorted(legal, key=lambda bundle: (len(bundle), bundle.pairs)))
