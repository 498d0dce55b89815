"""Runs that do not say how they recompute."""

from __future__ import annotations

import pytest

from specs import catalog
from specs.choices import Recompute
from specs.runs import table_of
from surrogate.run_cases import cases_of

RUN = {
    "run_id": "a", "source": "owner/repo", "gpu": "H100-SXM", "gpus_per_node": "8",
    "num_gpus": "8", "framework": "Megatron-LM", "model": "llama3-8b", "precision": "bf16",
    "seq_len": "8192", "gbs": "64", "mbs": "1", "tp": "4", "pp": "1", "sharding": "zero1",
    "sequence_parallel": "1", "tokens_per_s_per_gpu": "1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("mbs", "granularity", "layers"),
    [
        (1, Recompute.NONE, {0}),
        (8, Recompute.SELECTIVE, {0}),
        (12, Recompute.FULL, {8, 16, 24}),
        (24, Recompute.FULL, {32}),
        (64, Recompute.NONE, {0}),
    ],
)
def test_a_run_is_taken_to_recompute_no_more_than_it_must(
    mbs: int, granularity: Recompute, layers: set[int]
) -> None:
    """From nothing over some layers to all of them; where nothing fits, memory says nothing."""
    row = RUN | {"mbs": str(mbs), "gbs": str(8 * mbs)}
    config = cases_of(table_of([row], catalog.model, catalog.gpu)).config.config(0)
    assert config.recompute is granularity
    assert config.recompute_layers in layers
