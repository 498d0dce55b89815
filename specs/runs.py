"""Measured runs: the CSV format of one row a training run, read into columns.

The reader applies the defaults of the format and counts them, and refuses single rows, never the
table: a refused row says which field is missing or which architecture is unsupported. Results are
read apart from the configuration, so that a table without results can be projected.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

from specs import catalog
from specs.choices import Precision
from specs.cluster import Cluster
from specs.config import ConfigTable
from specs.csv_files import checked_header
from specs.errors import InputError
from specs.files import input_file
from specs.run_rows import FindGpu, FindModel, Run, read_row
from specs.stack import Stack
from specs.workload import Workload

Column = NDArray[Any]
MAX_ROWS = 1_000_000
"""Rows are held as a whole, about 7 KB each (measured): a million are 7 GB."""


RESULT_COLUMNS = (
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "step_time_s",
    "peak_mem_gb",
    "memory_counter",
    "memory_unit",
)
"""Columns that say what was measured, not what was run."""


class Refusal(NamedTuple):
    """A row that cannot be used, its place in the file, and the field that is why."""

    run_id: str
    reason: str
    row: int


@dataclass(frozen=True)
class RunTable:
    """n usable rows of a measured-runs file, as columns of shape (n,) in file order.

    ``Cases.of_runs(table.config, table.workloads, table.clusters, table.stacks)`` projects them.
    Text columns hold str objects. ``publisher`` is the repository, paper or site of the source,
    the same for all its releases. Measured columns are NaN where the row states none;
    ``throughput_from`` is ``tokens``, ``step``, ``tflops`` (converted from a printed TFLOP/s, whose
    definition differs between sources) or empty. ``recompute_unknown`` marks rows whose recompute
    is not stated; their config holds none. ``batch_assumed`` marks rows without a global batch
    size: one microbatch a step, or four a pipeline rank, is assumed; with a pipeline their
    throughput then says nothing and is left out. ``unstated`` names the facts that decide the
    memory of a row and that it leaves unsaid (``run_stated.unstated_facts``), "" where none.
    ``out_of_memory`` marks OOM rows: their peak, where stated, is a lower bound.
    """

    config: ConfigTable
    workloads: tuple[Workload, ...]
    clusters: tuple[Cluster, ...]
    stacks: tuple[Stack, ...]
    row: Column
    run_id: Column
    source: Column
    publisher: Column
    model: Column
    gpu: Column
    vendor: Column
    framework: Column
    version: Column
    tokens_per_s_per_gpu: Column
    throughput_from: Column
    peak_memory_gib: Column
    memory_counter: Column
    out_of_memory: Column
    recompute_unknown: Column
    batch_assumed: Column
    unstated: Column
    refused: tuple[Refusal, ...]
    defaults: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.config)

    @property
    def is_moe(self) -> Column:
        """Whether the model of each row has experts."""
        return np.array([w.model.is_moe for w in self.workloads], dtype=bool)

    @property
    def fold(self) -> Column:
        """Publisher, model and GPU: what is left out as a whole when accuracy is judged."""
        return _joined(self.publisher, self.model, self.gpu)

    @property
    def source_fold(self) -> Column:
        """Source as stated (a table of one release, say), model and GPU."""
        return _joined(self.source, self.model, self.gpu)

    @property
    def comparison_set(self) -> Column:
        """Key of runs that differ only in configuration: same source, model, kind, GPU, GPU
        count, batch, sequence and precision."""
        w, c = self.workloads, self.clusters
        return _joined(
            self.source,
            self.model,
            np.array([x.kind.label for x in w], dtype=object),
            self.gpu,
            np.array([str(x.num_gpus) for x in c], dtype=object),
            np.array([str(x.global_batch_size) for x in w], dtype=object),
            np.array([str(x.seq_len) for x in w], dtype=object),
            np.array([Precision.labels()[int(p)] for p in self.config.precision], dtype=object),
        )

    def take(self, rows: Any) -> RunTable:
        """The rows selected by indices or a mask; refusals and defaults stay."""
        index = np.arange(len(self))[rows]
        columns = {name: getattr(self, name)[index] for name in _COLUMNS}
        return replace(
            self,
            config=self.config.take(index),
            workloads=tuple(self.workloads[i] for i in index),
            clusters=tuple(self.clusters[i] for i in index),
            stacks=tuple(self.stacks[i] for i in index),
            **columns,
        )


_DTYPES = {str: object, int: np.int64, float: np.float64, bool: np.bool_}
"""Type of a field -> dtype of its column, whether a table has rows or not."""
_COLUMNS = {name: kind for name, kind in get_type_hints(Run).items() if kind in _DTYPES}
"""Field of a Run that is a column of the table -> its type."""


def folds(table: RunTable) -> dict[str, Column]:
    """Fold -> indices of its rows, in order of first appearance."""
    return _groups(table.fold)


def comparison_sets(table: RunTable, smallest: int = 4) -> dict[str, Column]:
    """ComparisonSets of at least ``smallest`` rows: key -> indices of its rows."""
    groups = _groups(table.comparison_set)
    return {key: rows for key, rows in groups.items() if len(rows) >= smallest}


def read_runs(
    path: Path,
    find_model: FindModel = catalog.model,
    find_gpu: FindGpu = catalog.gpu,
    with_results: bool = True,
) -> RunTable:
    """The rows of a measured-runs CSV.

    Args:
        path: the file; unknown columns are ignored, a column named like an axis is read.
        find_model: slug -> Model; raises InputError where it is unknown or unsupported. The
            catalog where not given.
        find_gpu: name -> Gpu; raises InputError where it is unknown.
        with_results: whether to read what was measured; without, those columns may hold anything
            and ids may repeat, for nothing is judged.

    Raises:
        InputError: the file cannot be read or is no table of runs.
    """
    try:
        with input_file(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            what = f"{path} is no table of runs"
            reader.fieldnames = checked_header(reader.fieldnames or (), ("model", "gpu"), what)
            rows = [
                {k: (v or "").strip() for k, v in raw.items() if k}
                for raw in islice(reader, MAX_ROWS + 1)
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}; give a CSV file of runs.") from None
    if len(rows) > MAX_ROWS:
        raise InputError(
            f"{path} has more than {MAX_ROWS:,} rows; split it into files of at most so many."
        )
    if not with_results:
        for row in rows:
            row.update(dict.fromkeys(RESULT_COLUMNS, ""))
    return table_of(rows, find_model, find_gpu, once=with_results)


def table_of(
    rows: list[dict[str, str]], find_model: FindModel, find_gpu: FindGpu, once: bool = False
) -> RunTable:
    """A RunTable from rows of text, column name -> value ("" where not stated).

    ``once`` refuses a row with the ``run_id`` of a usable one above it: a run that is in a table
    twice would be judged by its own copy.
    """
    defaults: Counter[str] = Counter()
    usable: list[Run] = []
    refused: list[Refusal] = []
    places: dict[str, int] = {}
    for number, row in enumerate(rows):
        run_id = row.get("run_id") or f"row-{number + 1}"
        row["run_id"] = run_id
        try:
            if once and run_id in places:
                raise InputError(
                    f"run_id {run_id} is there already, in row {places[run_id] + 1}; give every "
                    "run an id of its own."
                )
            usable.append(read_row(number, row, find_model, find_gpu, defaults))
            places[run_id] = number
        except InputError as error:
            refused.append(Refusal(run_id, str(error), number))
    columns: dict[str, Column] = {
        name: np.array([getattr(run, name) for run in usable], dtype=_DTYPES[kind])
        for name, kind in _COLUMNS.items()
    }
    return RunTable(
        config=ConfigTable.from_configs([run.config for run in usable]),
        workloads=tuple(run.workload for run in usable),
        clusters=tuple(run.cluster for run in usable),
        stacks=tuple(run.stack for run in usable),
        refused=tuple(refused),
        defaults=dict(defaults),
        **columns,
    )


def _joined(*columns: Column) -> Column:
    """Columns of text joined row by row."""
    return np.array([" | ".join(parts) for parts in zip(*columns, strict=True)], dtype=object)


def _groups(keys: Column) -> dict[str, Column]:
    """Key -> indices of its rows."""
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(str(key), []).append(index)
    return {key: np.array(rows, dtype=np.int64) for key, rows in groups.items()}
