"""What is measured first is what the shortlist is most uncertain about."""

from __future__ import annotations

import pytest

from search.profile_plan import Node, items_of, profile_plan
from specs import catalog
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.stack import Stack
from specs.workload import Workload
from surrogate.cases import Cases
from surrogate.time_constants import TimeConstants


def _plan(model: str, gpu: str, config: TrainingConfig, node: Node) -> list:
    workload = Workload(model=catalog.model(model), seq_len=4096, global_batch_size=256)
    cluster = Cluster(name="c", gpu=catalog.gpu(gpu), num_nodes=8, gpus_per_node=8)
    table = ConfigTable.from_configs([config])
    cases = Cases.of_study(table, workload, cluster, Stack())
    return profile_plan(table, cases, workload, cluster.gpu, TimeConstants.of_priors(), node)


DENSE = TrainingConfig(tp=4, pp=2, mbs=1, sequence_parallel=True)
MOE = TrainingConfig(tp=1, pp=4, ep=8, etp=1, mbs=2)


def test_dense_model_has_no_expert_items():
    plan = _plan("llama3.1-70b", "MI300X", DENSE, Node(8))
    kinds = [item.kind for item in plan]
    assert "grouped_gemm" not in kinds
    assert {"gemm", "attention", "collective", "layer", "optimizer", "elementwise"} <= set(kinds)
    assert len({item.key for item in plan}) == len(plan)


def test_experts_come_first_where_they_are_most_uncertain():
    plan = _plan("mixtral-8x22b", "MI355X", MOE, Node(8))
    taught = [item for item in plan if item.kind != "layer"]
    assert taught[0].kind == "grouped_gemm"
    assert "grouped_utilisation" in taught[0].why


def test_sizes_are_those_of_one_rank():
    workload = Workload(model=catalog.model("llama3.1-70b"), seq_len=4096, global_batch_size=8)
    items = list(items_of(DENSE, workload, Node(8)))
    attention = next(item for item in items if item.kind == "attention")
    assert (attention.sizes["heads"], attention.sizes["kv_heads"]) == (64 // 4, 8 // 4)
    gemms = {tuple(item.sizes.values()) for item in items if item.kind == "gemm"}
    assert (4096, 28672 // 4 * 2, 8192) in gemms
    assert (4096, 8192, 28672 // 4) in gemms


@pytest.mark.parametrize(("node", "largest"), [(Node(1), 0), (Node(8), 8), (Node(8, 2), 16)])
def test_collectives_fit_the_node(node, largest):
    plan = _plan("mixtral-8x22b", "H100-SXM", MOE.changed(tp=2, sequence_parallel=True), node)
    ranks = [item.sizes["ranks"] for item in plan if item.kind == "collective"]
    assert max(ranks, default=0) == largest


def test_latent_attention():
    plan = _plan("deepseek-v3", "H200", MOE.changed(ep=32), Node(8))
    layer = next(item for item in plan if item.kind == "layer" and item.variant == "moe")
    assert (layer.sizes["kv_rank"], layer.sizes["rope_dim"]) == (512, 64)
    attention = next(item for item in plan if item.kind == "attention")
    assert (attention.sizes["head_dim_qk"], attention.sizes["head_dim_v"]) == (192, 128)
