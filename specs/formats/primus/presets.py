"""Primus presets: the layers of defaults under an experiment's overrides.

Megatron's own defaults < model base and trainer base < pre_trainer < model preset < overrides
(primus/backends/megatron/argument_builder.py). Inside a preset the file wins over what it extends
and a later base over an earlier one. Module presets and model presets share no key that foretune
reads, except ``seq_length`` and ``make_vocab_size_divisible_by`` of models it does not project, so
their order decides nothing; the model preset wins here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from specs.errors import InputError
from specs.files import is_file
from specs.formats.yaml_files import fill_environment, parse_yaml, read_chain

ROOT_VARIABLE = "PRIMUS_PATH"


@cache
def shipped_defaults() -> dict[str, Any]:
    """The compact table of defaults that ships with foretune."""
    path = resources.files("specs") / "catalog" / "primus_defaults.yaml"
    defaults: dict[str, Any] = parse_yaml(path.read_text("utf-8"), "primus_defaults.yaml")
    return defaults


def find_root(path: Path, environment: Mapping[str, str] | None = None) -> Path | None:
    """The Primus checkout to take presets from, None where there is none.

    The checkout around ``path`` comes first, then the one that the variable PRIMUS_PATH names.

    Raises:
        InputError: the checkout that was named holds no presets.
    """
    variables = os.environ if environment is None else environment
    for folder in path.resolve().parents:
        if (folder / "primus" / "configs").is_dir():
            return folder
    named = variables.get(ROOT_VARIABLE)
    if not named:
        return None
    root = Path(named)
    if not (root / "primus" / "configs").is_dir():
        raise InputError(
            f"{ROOT_VARIABLE} {root} is no Primus checkout: it has no folder primus/configs."
        )
    return root


@dataclass(frozen=True)
class Presets:
    """Defaults under the overrides: flat (Megatron) or nested (torchtitan) settings.

    ``model`` is None where the presets were not found: the architecture must then come from the
    catalog.
    """

    module: dict[str, Any]
    model: dict[str, Any] | None
    root: Path | None

    def __contains__(self, key: str) -> bool:
        return key in self.module or key in (self.model or {})

    def known_keys(self) -> frozenset[str]:
        """Keys that Primus or Megatron know, as far as the presets and the shipped table say."""
        defaults = shipped_defaults()
        keys = set(self.module) | set(self.model or {}) | set(defaults["megatron_names"])
        return frozenset(keys | set(defaults["module"]) | set(defaults["model"]))


def is_primus_key(key: str) -> bool:
    """Whether only Primus knows the key, so that a checkout without it drops it silently."""
    return key in shipped_defaults()["primus_names"]


def load_presets(
    root: Path | None,
    framework: str,
    config: str,
    model: str,
    environment: Mapping[str, str] | None = None,
) -> Presets:
    """The module preset ``config`` and the model preset ``model`` of a framework.

    Raises:
        InputError: a preset is missing from the checkout or cannot be read.
    """
    if root is None:
        return Presets(_shipped_module(config), None, None)
    folder = root / "primus" / "configs"
    loaded = []
    for kind, name in (("modules", config), ("models", model)):
        path = folder / kind / framework / name
        if not is_file(path):
            raise InputError(f"the {kind[:-1]} preset {name!r} is not in {path.parent}.")
        loaded.append(fill_environment(read_chain(path), str(path), environment))
    return Presets(loaded[0], loaded[1], root)


def _shipped_module(config: str) -> dict[str, Any]:
    """Module defaults of the shipped table."""
    defaults = shipped_defaults()
    module = dict(defaults["module"])
    if config.startswith("sft"):
        module |= defaults["sft_module"]
    return module
