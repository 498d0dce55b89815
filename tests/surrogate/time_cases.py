"""Cases for tests of the time model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from specs import catalog
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.model import Model
from specs.stack import Stack
from specs.workload import Workload
from surrogate.cases import Cases
from surrogate.step_time import step_time
from surrogate.time_constants import TimeConstants

SHIPPED = TimeConstants.shipped()


def study(
    *configs: TrainingConfig,
    model: str | Model = "mixtral-8x22b",
    gpu: str = "MI355X",
    num_gpus: int = 64,
    seq_len: int = 8192,
    gbs: int = 512,
    stack: Stack | None = None,
    **workload: Any,
) -> Cases:
    """A study of these configs."""
    part = catalog.gpu(gpu)
    cluster = Cluster(
        name="",
        gpu=part,
        num_nodes=num_gpus // part.gpus_per_node,
        gpus_per_node=part.gpus_per_node,
    )
    architecture = catalog.model(model) if isinstance(model, str) else model
    work = Workload(model=architecture, seq_len=seq_len, global_batch_size=gbs, **workload)
    return Cases.of_study(ConfigTable.from_configs(configs), work, cluster, stack or Stack())


def seconds(cases: Cases, constants: TimeConstants = SHIPPED) -> np.ndarray[Any, Any]:
    """Step times in s."""
    return step_time(cases, constants).step_time_s


def part(cases: Cases, name: str) -> np.ndarray[Any, Any]:
    """One part of the breakdown in s."""
    breakdown = step_time(cases, SHIPPED, breakdown=True).breakdown
    assert breakdown is not None
    return breakdown[name]


def with_cluster(cases: Cases, **columns: float) -> Cases:
    """The same cases with other rates of the hardware."""
    changed = {name: np.asarray(value) for name, value in columns.items()}
    return replace(cases, cluster=replace(cases.cluster, **changed))
