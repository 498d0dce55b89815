"""Which facts that decide the memory of a run its row leaves unsaid.

Memory can be judged against a peak only where the row says what was run and what was read; a row
that leaves one of these facts open compares a default with a peak of something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from specs.choices import Schedule
from specs.config import TrainingConfig

_RANK_OPEN = re.compile(r"rank not stated", re.IGNORECASE)
_OFFLOADED = re.compile(
    r"fine[-_ ]grained[-_ ](?:activation[-_ ])?offload|cpu[-_]offloading[-_]num[-_]layers=[1-9]",
    re.IGNORECASE,
)
"""Megatron's offloading of activations, of modules or of layers, which no column states."""


def unstated_facts(
    row: Mapping[str, str], config: TrainingConfig, dp: int, recompute_unknown: bool
) -> tuple[str, ...]:
    """Names of the facts, among those on which the peak of this layout depends, left unsaid.

    Args:
        row: column name -> text, "" where not stated.
        config: what the row was read as.
        dp: its data-parallel ranks.
        recompute_unknown: whether neither the row nor the default of its framework says what it
            recomputes.

    Returns:
        Columns; ``rank`` where a pipeline's peak is that of a rank which the row does not name;
        ``offload`` where activations lie in host memory, of which no column says how many; ``dp``
        where the ranks that would share states do not get whole microbatches each.
    """
    columns = ["mbs"]
    if dp * config.cp > 1:
        columns.append("sharding")
    if config.schedule is Schedule.INTERLEAVED or row.get("schedule") == "interleaved":
        columns.append("vpp")
    left_open = ["recompute"] if recompute_unknown else []
    left_open += [name for name in columns if not row.get(name)]
    failed = row["run_id"].lower().endswith("-oom")
    counter = row.get("memory_counter", "").lower()
    if row.get("peak_mem_gb") and not failed and counter in ("", "unknown"):
        left_open.append("memory_counter")
    if config.pp > 1 and _RANK_OPEN.search(row.get("notes", "")):
        left_open.append("rank")
    if _OFFLOADED.search(f"{row['run_id']} ; {row.get('notes', '')}"):
        left_open.append("offload")
    if row.get("gbs") and float(row["gbs"]) % (config.mbs * dp):
        left_open.append("dp")
    return tuple(left_open)
