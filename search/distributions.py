"""The frozen superset of search distributions that all studies share, and configs as parameters.

Every study stores every axis with the same distributions, so studies of other models, clusters and
stacks can be compared and transferred. An axis whose values cannot be listed once for all (explicit
layouts, listed layers) is stored by its kind or count; the exact config is kept as labels beside
the parameters. Flag axes become one yes/no parameter a flag.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import TYPE_CHECKING, Any

from specs.choices import Choice, Overlap, RecomputeModules
from specs.config import AXES, TrainingConfig
from specs.errors import InputError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

LAYOUT_KINDS = ("even", "ends", "account", "explicit")
_MODULES = tuple(flag for flag in RecomputeModules if flag.name)
_OVERLAPS = tuple(flag for flag in Overlap if flag.name)
_LARGEST = 2**16
_FROM_ZERO = {"etp", "microbatch_group", "recompute_layers"}


@cache
def distributions() -> dict[str, BaseDistribution]:
    """Parameter name -> Optuna distribution, the same for every study."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    space: dict[str, BaseDistribution] = {}
    for name, axis in AXES.items():
        if name == "layout":
            space["layout_kind"] = CategoricalDistribution(LAYOUT_KINDS)
        elif name == "recompute_layer_ids":
            space["recompute_listed_layers"] = IntDistribution(0, _LARGEST)
        elif name == "recompute_modules":
            space |= {_flag(name, m): CategoricalDistribution((False, True)) for m in _MODULES}
        elif name == "overlap":
            space |= {_flag(name, o): CategoricalDistribution((False, True)) for o in _OVERLAPS}
        elif name == "sync_free_stage":
            space[name] = IntDistribution(0, 3)
        elif axis.kind is bool:
            space[name] = CategoricalDistribution((False, True))
        elif axis.kind is int:
            low = 0 if name in _FROM_ZERO else 1
            space[name] = IntDistribution(low, _LARGEST, log=low == 1)
        elif issubclass(axis.kind, Choice):
            space[name] = CategoricalDistribution(axis.kind.labels())
        else:
            raise TypeError(f"the axis {name} has no distribution")
    return space


def parameters(config: TrainingConfig) -> dict[str, Any]:
    """The config as values of ``distributions``.

    Raises:
        InputError: a number is beyond what a study can store.
    """
    values: dict[str, Any] = {}
    for name, axis in AXES.items():
        value = getattr(config, name)
        if name == "layout":
            values["layout_kind"] = layout_kind(value)
        elif name == "recompute_layer_ids":
            values["recompute_listed_layers"] = len(value)
        elif name == "recompute_modules":
            values |= {_flag(name, flag): bool(value & flag) for flag in _MODULES}
        elif name == "overlap":
            values |= {_flag(name, flag): bool(value & flag) for flag in _OVERLAPS}
        elif axis.kind is int and not value <= _LARGEST:
            raise InputError(f"{name} is {value}; a study stores at most {_LARGEST}.")
        else:
            values[name] = axis.label(value)
    return values


def layout_kind(layout: str) -> str:
    """How a layout splits the layers: evenly, with uneven ends, with accounting, or explicitly."""
    if layout in ("", "even"):
        return "even"
    if layout.startswith(("first=", "last=")):
        return "ends"
    return "account" if layout.startswith("account=") else "explicit"


def config_key(config: TrainingConfig) -> str:
    """A short stable name of a config: two configs share it only if every axis agrees."""
    text = json.dumps(config.as_labels(), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _flag(axis: str, flag: Any) -> str:
    """Parameter name of one flag: ``overlap_dp``, ``recompute_core_attn``."""
    return f"{axis.removesuffix('_modules')}_{flag.name.lower()}"
