"""The columns of a table of measured runs, and its writer; the reader is ``specs/runs.py``."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping

from specs.csv_files import write_rows

CONFIG_COLUMNS = (
    *("vendor", "run_id", "source", "source_date", "gpu", "gpus_per_node", "num_gpus"),
    *("framework", "framework_version", "model", "precision", "seq_len", "gbs", "mbs", "tp", "pp"),
    *("vpp", "cp", "ep", "etp", "dp", "sharding", "sequence_parallel", "schedule", "recompute"),
    *("recompute_layers", "moe_dispatcher"),
)
"""What was run."""

RESULT_COLUMNS = (
    *("tokens_per_s_per_gpu", "tflops_per_gpu", "step_time_s"),
    *("peak_mem_gb", "memory_counter", "memory_unit"),
)
"""What was measured."""

EXTRA_COLUMNS = (
    *("kind", "lora_rank", "capacity_factor", "layout", "recompute_method", "recompute_modules"),
    *("sync_free_stage", "overlap"),
)
"""Columns beyond the published format that the reader takes where a table has them."""

COLUMNS = (*CONFIG_COLUMNS, *RESULT_COLUMNS, *EXTRA_COLUMNS, "notes")


def runs_csv(rows: Iterable[Mapping[str, str]]) -> str:
    """A table of runs as CSV text; a column that a row lacks stays empty."""
    text = io.StringIO()
    write_rows(text, COLUMNS, ({name: row.get(name, "") for name in COLUMNS} for row in rows))
    return text.getvalue()
