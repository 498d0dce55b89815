"""Measured runs as cases: what the surrogate projects when it is compared with reality."""

from __future__ import annotations

import numpy as np

from specs.choices import Recompute, RecomputeMethod, RecomputeModules
from specs.runs import RunTable
from surrogate.cases import Cases, Column
from surrogate.memory import memory

FULLEST = 1.3
"""Projected share of HBM up to which a setting may have been used. Runs that do not say how they
recompute often offload or rebuild single modules instead: a projection a little over capacity is no
proof of recomputation."""

_CHEAP_MODULES = (
    RecomputeModules.LAYERNORM | RecomputeModules.MOE_ACT | RecomputeModules.MLA_UP_PROJ
)
_CANDIDATES: tuple[tuple[Recompute, RecomputeModules, float], ...] = (
    (Recompute.NONE, RecomputeModules.NONE, 0.0),
    (Recompute.SELECTIVE, RecomputeModules.CORE_ATTN, 0.0),
    (Recompute.SELECTIVE, _CHEAP_MODULES, 0.0),
    *((Recompute.FULL, RecomputeModules.NONE, share) for share in (0.25, 0.5, 0.75, 1.0)),
)
"""Recompute settings that a run may have used, the fastest first: granularity, modules of selective
and share of the layers of full recomputation. Published runs are tuned: they recompute no more than
they must."""


def cases_of(table: RunTable) -> Cases:
    """The rows of a table as cases; recompute that is not stated is the least that fits.

    Where nothing fits, what else the row leaves open decides memory, and it says nothing of
    recomputation: then none is assumed.
    """
    cases = Cases.of_runs(table.config, table.workloads, table.clusters, table.stacks)
    rows = np.flatnonzero(table.recompute_unknown)
    if not len(rows):
        return cases
    config = {name: column.copy() for name, column in cases.config.columns().items()}
    open_rows = rows
    for candidate in (*_CANDIDATES, _CANDIDATES[0]):
        _recompute(config, open_rows, cases, *candidate)
        tried = Cases.of_runs(
            table.config.changed(**config), table.workloads, table.clusters, table.stacks
        ).take(open_rows)
        held = memory(tried).device_gib
        open_rows = open_rows[held > FULLEST * tried.cluster.hbm_gib]
        if not len(open_rows):
            break
    resolved = table.config.changed(**config)
    return Cases.of_runs(resolved, table.workloads, table.clusters, table.stacks)


def _recompute(
    config: dict[str, Column],
    rows: Column,
    cases: Cases,
    granularity: Recompute,
    modules: RecomputeModules,
    share: float,
) -> None:
    """Sets one candidate in some rows of the columns of ``config``."""
    chunk = np.ceil(cases.model.num_layers / (cases.config.pp * cases.config.vpp))
    layers = np.ceil(share * np.broadcast_to(chunk, (len(cases),)))
    method = RecomputeMethod.BLOCK if share else RecomputeMethod.NONE
    config["recompute"][rows] = int(granularity)
    config["recompute_method"][rows] = int(method)
    config["recompute_modules"][rows] = int(modules)
    config["recompute_layers"][rows] = layers[rows]
