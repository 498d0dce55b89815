"""Megatron-LM command lines: names to flags and back (megatron/training/arguments.py)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from specs.errors import InputError

# Destinations whose flag is not "--" and the name with dashes.
_RENAMED = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
}
# Destinations that are on unless their flag turns them off.
_NEGATED = {
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
    "overlap_p2p_comm": "--no-overlap-p2p-communication",
    "add_bias_linear": "--disable-bias-linear",
    "apply_rope_fusion": "--no-rope-fusion",
}
_LISTS = ("recompute_modules",)
_DESTINATIONS = {flag: name for name, flag in (_RENAMED | _NEGATED).items()}


def to_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Command-line flags of the arguments; null and switched-off ones are left out."""
    flags: list[str] = []
    for name, value in arguments.items():
        if name in _NEGATED:
            flags += [] if value else [_NEGATED[name]]
        elif value is None or value is False:
            continue
        elif value is True:
            flags.append(_flag(name))
        elif name in _LISTS:
            flags += [_flag(name), *map(str, value)]
        elif name == "window_size":
            flags += [_flag(name), ",".join(map(str, value))]
        elif isinstance(value, list | tuple):
            flags += [_flag(name), str(list(value)).replace(" ", "")]
        else:
            flags += [_flag(name), str(value)]
    return flags


def _flag(name: str) -> str:
    return _RENAMED.get(name, "--" + name.replace("_", "-"))


def from_flags(flags: Sequence[str] | str) -> dict[str, Any]:
    """Arguments given on a Megatron-LM command line, destination name -> value.

    Raises:
        InputError: the text is no shell line, or a value stands without its flag.
    """
    if isinstance(flags, str):
        try:
            flags = shlex.split(flags.replace("\\\n", " "), comments=True)
        except ValueError as error:
            raise InputError(f"the Megatron arguments are no shell line: {error}.") from None
    arguments: dict[str, Any] = {}
    place = 0
    while place < len(flags):
        flag, _, attached = flags[place].partition("=")
        if not flag.startswith("--"):
            raise InputError(f"Megatron argument {flags[place]!r} stands without a flag.")
        place += 1
        values = [attached] if attached else []
        while place < len(flags) and not flags[place].startswith("--"):
            values.append(flags[place])
            place += 1
        name = _DESTINATIONS.get(flag, flag[2:].replace("-", "_"))
        arguments[name] = _value(name, values)
    return arguments


def _value(name: str, values: list[str]) -> Any:
    """The value of one flag: a switch, a scalar or a list."""
    if not values:
        return name not in _NEGATED
    if name == "window_size":
        parts = ",".join(values).strip("()[]").split(",")
        return [int(part) if part.strip().lstrip("-").isdigit() else part for part in parts]
    if name in _LISTS:
        return values
    return values[0] if len(values) == 1 else values
