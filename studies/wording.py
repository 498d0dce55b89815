"""Configs in words, short enough for a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specs.config import TrainingConfig
from specs.layout import explicit_stages, is_explicit

_ALWAYS = ("tp", "pp", "cp", "ep", "mbs")
_LONGEST = 48


def describe(config: TrainingConfig) -> str:
    """The mesh of a config and every axis that is not at its default, as ``tp=1 pp=4 cp=1 ...``."""
    labels, default = config.as_labels(), TrainingConfig().as_labels()
    shown = [name for name in labels if name in _ALWAYS or labels[name] != default[name]]
    return " ".join(f"{name}={short(labels[name])}" for name in shown)


def change_in_words(axes: Mapping[str, Sequence[Any]]) -> str:
    """Axis -> (label before, label after) as ``vpp 1 -> 7, schedule 1f1b -> interleaved``."""
    return ", ".join(
        f"{a} {short(before)} -> {short(after)}" for a, (before, after) in axes.items()
    )


def short(label: str | int | bool) -> str:
    """A label that fits a line: a long layout is told by the number of its stages."""
    text = str(label)
    if len(text) <= _LONGEST:
        return text
    if is_explicit(text) and "|" in text:
        return f"<{len(explicit_stages(text))} stages>"
    return f"{text[: _LONGEST - 3]}..."
