"""Measured runs as cases: what the surrogate projects when it is compared with reality."""

from __future__ import annotations

import numpy as np

from specs.choices import Recompute, RecomputeMethod, RecomputeModules
from specs.runs import RunTable
from surrogate.cases import Cases
from surrogate.memory import memory

FULLEST = 1.3
"""Projected share of HBM up to which a setting may have been used. Runs that do not say how they
recompute often offload or rebuild single modules instead: a projection a little over capacity is no
proof of full recomputation."""

_CANDIDATES = (
    (Recompute.NONE, RecomputeMethod.NONE, RecomputeModules.NONE, 0),
    (Recompute.SELECTIVE, RecomputeMethod.NONE, RecomputeModules.CORE_ATTN, 0),
    (Recompute.FULL, RecomputeMethod.UNIFORM, RecomputeModules.NONE, 1),
)
"""Recompute settings that a run may have used, the fastest first."""


def cases_of(table: RunTable) -> Cases:
    """The rows of a table as cases; recompute that is not stated is the least that fits."""
    cases = Cases.of_runs(table.config, table.workloads, table.clusters, table.stacks)
    rows = np.flatnonzero(table.recompute_unknown)
    if not len(rows):
        return cases
    config = {name: column.copy() for name, column in cases.config.columns().items()}
    open_rows = rows
    for recompute, method, modules, layers in _CANDIDATES:
        config["recompute"][open_rows] = int(recompute)
        config["recompute_method"][open_rows] = int(method)
        config["recompute_modules"][open_rows] = int(modules)
        config["recompute_layers"][open_rows] = layers
        tried = Cases.of_runs(
            table.config.changed(**config), table.workloads, table.clusters, table.stacks
        ).take(open_rows)
        held = memory(tried).device_gib
        open_rows = open_rows[held > FULLEST * tried.cluster.hbm_gib]
        if not len(open_rows):
            break
    resolved = table.config.changed(**config)
    return Cases.of_runs(resolved, table.workloads, table.clusters, table.stacks)
