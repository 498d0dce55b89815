"""Cases and measured runs for tests of what is learned from runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specs import catalog
from specs.cluster import Cluster
from specs.config import ConfigTable
from specs.runs import RunTable, table_of
from specs.stack import Framework, Stack
from specs.workload import Workload
from surrogate.cases import Cases
from surrogate.learned import shipped


def study(model: str = "llama3-70b", gpu: str = "MI300X", nodes: int = 8) -> Cases:
    """A small grid of configs on one cluster."""
    tp, pp, mbs = (axis.ravel() for axis in np.meshgrid([1, 2, 4, 8], [1, 2, 4], [1, 2]))
    config = ConfigTable.from_columns({"tp": tp, "pp": pp, "mbs": mbs, "etp": tp})
    workload = Workload(
        model=catalog.model(model), seq_len=4096, global_batch_size=512, routing_imbalance=1.0,
        target_tokens=None,
    )  # fmt: skip
    cluster = Cluster(
        name="", gpu=catalog.gpu(gpu), num_nodes=nodes, gpus_per_node=8,
        price_usd_per_gpu_hour=None,
    )  # fmt: skip
    stack = Stack(framework=Framework.PRIMUS, framework_name="Primus-Megatron")
    return Cases.of_study(config, workload, cluster, stack)


def runs(speed: float, *changes: dict[str, str]) -> RunTable:
    """Measured runs like those of ``study``, ``speed`` times as fast as projected."""
    base = {
        "source": "me", "gpu": "MI300X", "gpus_per_node": "8", "num_gpus": "64",
        "framework": "Primus-Megatron", "model": "llama3-70b", "seq_len": "4096", "gbs": "512",
        "mbs": "1", "tp": "8", "pp": "1", "recompute": "none", "sharding": "zero1",
        "tokens_per_s_per_gpu": "1",
    }  # fmt: skip
    text = [base | {"run_id": f"mine-{i}"} | change for i, change in enumerate(changes)]
    table = table_of(text, catalog.model, catalog.gpu)
    projected = shipped().predict(table).value
    return replace(table, tokens_per_s_per_gpu=projected * speed)
