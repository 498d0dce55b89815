"""The legal space as a CSV in the format of measured runs: one row a config, results left empty."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO

import numpy as np

from search.space import Space
from specs.config import AXES, ConfigTable
from specs.csv_files import cell
from specs.errors import InputError
from specs.files import atomic_text

RUN_COLUMNS = (
    *("run_id", "source", "gpu", "gpus_per_node", "num_gpus", "framework", "framework_version"),
    *("model", "precision", "seq_len", "gbs", "mbs", "tp", "pp", "vpp", "cp", "ep", "etp", "dp"),
    *("sharding", "sequence_parallel", "schedule", "recompute", "recompute_layers"),
    "moe_dispatcher",
)
COLUMNS = (*RUN_COLUMNS, *(name for name in AXES if name not in RUN_COLUMNS))
MAX_ROWS = 20_000_000
BYTES_PER_ROW = 250


def write_space(space: Space, path: Path, advance: Callable[[int], None]) -> Path:
    """Writes every config of a space; the file appears when it is complete.

    Raises:
        InputError: the space is too large for a file.
    """
    if len(space) > MAX_ROWS:
        raise InputError(
            f"the space has {len(space):,} configs, about {len(space) * BYTES_PER_ROW / 1e9:,.0f} "
            f"GB as CSV; narrow it with --pin axis=value to at most {MAX_ROWS:,}."
        )
    with atomic_text(path) as file:
        _write(space, file, advance)
    return path


def _write(space: Space, file: TextIO, advance: Callable[[int], None]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    done = 0
    for table in space.chunks():
        columns = _columns(space, table, done)
        writer.writerows(zip(*(columns[name] for name in COLUMNS), strict=True))
        done += len(table)
        advance(len(table))


def _columns(space: Space, table: ConfigTable, first: int) -> dict[str, Iterable[str | int]]:
    """Texts and numbers of each column."""
    setting, count = space.setting, len(table)
    fixed: dict[str, str | int] = {
        "source": "foretune space",
        "gpu": setting.cluster.gpu.name,
        "gpus_per_node": setting.cluster.gpus_per_node,
        "num_gpus": setting.cluster.num_gpus,
        "framework": setting.stack.framework_name,
        "framework_version": setting.stack.version,
        "model": setting.workload.model.name,
        "seq_len": setting.workload.seq_len,
        "gbs": setting.workload.global_batch_size,
    }
    columns: dict[str, Iterable[str | int]] = {name: [cell(v)] * count for name, v in fixed.items()}
    columns["run_id"] = [f"space-{index}" for index in range(first, first + count)]
    columns["dp"] = table.data_parallel(setting.cluster.num_gpus).tolist()
    for name in AXES:
        columns[name] = _labels(table, name)
    return columns


def _labels(table: ConfigTable, name: str) -> list[str | int]:
    """How each value of an axis is written; flags are 0 or 1, as in tables of runs."""
    column = getattr(table, name)
    if AXES[name].kind in (int, bool):
        numbers: list[str | int] = column.astype(np.int64).tolist()
        return numbers
    values: dict[int, str | int] = {}
    for code in np.unique(column).tolist():
        held = code
        if name == "layout":
            held = table.layouts[code]
        elif name == "recompute_layer_ids":
            held = table.layer_id_sets[code]
        values[code] = AXES[name].label(held)
    return [values[code] for code in column.tolist()]
