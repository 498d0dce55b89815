"""Configs in words, short enough for a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import Any

from specs.config import TrainingConfig
from specs.figures import percent
from specs.gpu import Gpu
from specs.layout import explicit_stages, is_explicit

_ALWAYS = ("tp", "pp", "cp", "ep", "mbs")
_LONGEST = 48
WIDTH = 80
"""Columns that a line about a config may take, on a terminal as in a file."""
_DEEPEST = 8
TRUST = {
    "physics only": "no measured run stands behind this number, only data sheets and kernel "
    "profiles",
    "extrapolated": "public runs that it was learned from are unlike this one",
    "interpolated": "public runs like this one are among those that it was learned from",
    "calibrated": "runs of this model, GPU and stack were measured and told back",
    "measured": "this very config was measured",
}
"""What a trust grade means."""


def describe(config: TrainingConfig) -> str:
    """The mesh of a config and every axis that is not at its default, as ``tp=1 pp=4 cp=1 ...``."""
    labels, default = config.as_labels(), TrainingConfig().as_labels()
    shown = [name for name in labels if name in _ALWAYS or labels[name] != default[name]]
    return " ".join(f"{name}={short(labels[name])}" for name in shown)


def difference(best: TrainingConfig, config: TrainingConfig) -> str:
    """What a config changes in the best one, as ``the best with tp 1 -> 2, sharding ...``."""
    held, labels = best.as_labels(), config.as_labels()
    changed = {name: (held[name], labels[name]) for name in labels if held[name] != labels[name]}
    return f"the best with {change_in_words(changed)}" if changed else "the best"


def peaks_in_words(gpu: Gpu, configs: Iterable[TrainingConfig]) -> str:
    """What MFU is a share of: the dense peak of the GPU in the format of each config's GEMMs, and
    where each is from."""
    formats = dict.fromkeys(config.precision.gemm_format for config in configs)
    peaks = "; ".join(
        f"{name} {peak.value / 1e12:,.0f} TFLOP/s ({peak.kind}: {peak.source})"
        for name, peak in ((name, gpu.peak_flops[name]) for name in formats)
    )
    return wrapped(
        f"MFU: of the dense peak of the {gpu.name} in the format of the GEMMs, {peaks}", 2
    )


def gain_in_words(gain: float | None) -> str:
    """A gain of throughput as a signed percentage; a change that the rules refuse has none."""
    return "illegal" if gain is None else percent(gain, signed=True)


def mesh_in_words(mesh: Mapping[str, int]) -> str:
    """The sizes of a mesh in the words of ``describe``, as ``tp=1 pp=4 cp=1 ...``."""
    return " ".join(f"{name}={size}" for name, size in mesh.items())


def config_line(lead: str, config: TrainingConfig, tail: str = "") -> str:
    """``describe`` behind a lead, wrapped between axes so that it fits 80 columns."""
    return wrapped(lead + describe(config) + tail, min(len(lead), _DEEPEST))


def wrapped(text: str, indent: int = 0) -> str:
    """A sentence on lines of 80 columns, the later ones indented; no word is cut."""
    deeper = " " * indent
    return fill(
        text, WIDTH, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False
    )


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
