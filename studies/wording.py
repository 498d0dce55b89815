"""Configs in words, short enough for a line."""

from __future__ import annotations

from specs.config import TrainingConfig

_ALWAYS = ("tp", "pp", "cp", "ep", "mbs")
_LONGEST = 30


def describe(config: TrainingConfig) -> str:
    """The mesh of a config and every axis that is not at its default, as ``tp=1 pp=4 cp=1 ...``."""
    labels, default = config.as_labels(), TrainingConfig().as_labels()
    shown = [name for name in labels if name in _ALWAYS or labels[name] != default[name]]
    return " ".join(f"{name}={short(labels[name])}" for name in shown)


def short(label: str | int | bool) -> str:
    """A label that fits a line: a long layout is told by the number of its stages."""
    text = str(label)
    if len(text) <= _LONGEST:
        return text
    return f"<{text.count('|') + 1} stages>" if "|" in text else f"{text[: _LONGEST - 3]}..."
