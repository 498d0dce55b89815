"""What if: the best config with one axis changed, and on hardware that is slower or faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from search.companions import with_companions
from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.gpu import Gpu
from specs.provenance import Quantity
from studies.job import Job
from studies.pictures.axis_effects import Neighbour
from studies.pictures.sensitivity import Lever
from studies.wording import short

STEP = 0.2
"""Fraction by which a number of the hardware is moved."""
LEVERS = {
    "GEMM peak": "peak_flops",
    "HBM bandwidth": "hbm_bytes_per_s",
    "bandwidth within a node": "link_bytes_per_s",
    "bandwidth between nodes": "nic_bytes_per_s",
    "latency within a node": "link_latency_s",
    "latency between nodes": "nic_latency_s",
}
"""Numbers of a GPU in words -> its field."""


def neighbours(
    job: Job, best: TrainingConfig, axes: Mapping[str, list[Any]]
) -> tuple[Neighbour, ...]:
    """The legal configs that differ from ``best`` in one axis and what that entails.

    Args:
        job: what is trained and where.
        best: the config to vary.
        axes: axis -> labels of the values to try, as the study keeps them.
    """
    found = [
        (axis, label, config)
        for axis, labels in axes.items()
        for label, config in _changed(best, axis, labels)
        if not job.why_illegal(config)
    ]
    if not found:
        return ()
    seen = job.project(ConfigTable.from_configs([best, *(config for _, _, config in found)]))
    speed = seen.tokens_per_s_per_gpu
    return tuple(
        Neighbour(axis, short(label), float(speed[row] / speed[0] - 1), bool(fits >= 0.5))
        for row, ((axis, label, _), fits) in enumerate(
            zip(found, seen.fit_probability[1:], strict=True), 1
        )
    )


def _changed(
    best: TrainingConfig, axis: str, labels: list[Any]
) -> Iterator[tuple[Any, TrainingConfig]]:
    here = getattr(best, axis)
    for label in labels:
        try:
            value = getattr(TrainingConfig.from_labels({axis: label}), axis)
            if value != here:
                yield label, with_companions(best, {axis: value})
        except InputError:
            continue  # A value that no companion makes sense of is no neighbour.


def levers(
    job: Job, configs: list[TrainingConfig]
) -> tuple[tuple[Lever, ...], tuple[tuple[str, int], ...]]:
    """How far each number of the hardware moves the first config, and who overtakes it.

    Returns:
        The levers, and for each moved number under which another config becomes the fastest, the
        number in words and the row of that config.
    """
    table = ConfigTable.from_configs(configs)
    now = job.tokens_per_s_per_gpu(table)
    found: list[Lever] = []
    overtaken: list[tuple[str, int]] = []
    for words, name in LEVERS.items():
        change = {}
        for sign, factor in (("-", 1 - STEP), ("+", 1 + STEP)):
            there = _on(job, scaled(job.cluster.gpu, name, factor)).tokens_per_s_per_gpu(table)
            change[sign] = float(there[0] / now[0] - 1)
            fastest = int(np.argmax(there))
            if there[fastest] > 1.002 * there[0] and now[fastest] <= now[0]:
                overtaken.append((f"{words} {sign}{STEP:.0%}", fastest))
        found.append(Lever(words, change["-"], change["+"]))
    return tuple(found), tuple(overtaken)


def scaled(gpu: Gpu, name: str, factor: float) -> Gpu:
    """The GPU with one number of its data sheet multiplied."""

    def moved(quantity: Quantity) -> Quantity:
        return quantity.model_copy(update={"value": quantity.value * factor})

    held = getattr(gpu, name)
    if isinstance(held, dict):
        return gpu.model_copy(update={name: {key: moved(value) for key, value in held.items()}})
    return gpu.model_copy(update={name: moved(held)})


def _on(job: Job, gpu: Gpu) -> Job:
    return replace(job, cluster=job.cluster.model_copy(update={"gpu": gpu}))
