"""Legality: each rule is broken by one change, and sentences agree with masks."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from specs import catalog
from specs.choices import (
    CpComm,
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.legality import RULES, legal_mask, violations, why_illegal
from specs.stack import Framework, Stack
from specs.workload import Workload

PRIMUS = Stack(framework=Framework.PRIMUS, framework_name="Primus")
MEGATRON = Stack()
MIXTRAL = TrainingConfig(pp=4, ep=8, mbs=2)


def _cluster(gpu: str = "MI355X", nodes: int = 8) -> Cluster:
    return Cluster(name="", gpu=catalog.gpu(gpu), num_nodes=nodes, gpus_per_node=8)


def _workload(model: str = "mixtral-8x22b", **fields: Any) -> Workload:
    sizes = {"seq_len": 8192, "global_batch_size": 512} | fields
    return Workload(model=catalog.model(model), **sizes)


def _broken(
    config: TrainingConfig,
    workload: Workload | None = None,
    cluster: Cluster | None = None,
    stack: Stack = PRIMUS,
) -> set[str]:
    table = ConfigTable.from_configs([config])
    found = violations(table, workload or _workload(), cluster or _cluster(), stack)
    return set(found.counts())


def test_the_shipped_baseline_is_legal() -> None:
    assert why_illegal(MIXTRAL, _workload(), _cluster(), PRIMUS) == []


V_HALF = {"schedule": Schedule.V_HALF, "vpp": 2}
FULL = {"recompute": Recompute.FULL}
SELECTIVE = {"recompute": Recompute.SELECTIVE}
ON_MIXTRAL: list[tuple[dict[str, Any], set[str]]] = [
    ({"pp": 7}, {"world_exact", "expert_world_exact"}),
    ({"etp": 4}, {"expert_world_exact"}),
    ({"etp": 0, "tp": 2, "sequence_parallel": True}, set()),
    ({"etp": 0, "tp": 4, "sequence_parallel": True}, {"expert_world_exact"}),
    ({"ep": 16}, {"experts_divide"}),
    ({"tp": 2}, {"moe_needs_sequence_parallel"}),
    ({"mbs": 3}, {"batch_divides"}),
    ({"pp": 16, "ep": 4}, {"layout_runs"}),
    ({"layout": "first=13,last=13", "pp": 4}, set()),
    ({"layout": "first=13"}, {"layout_runs"}),
    ({"layout": "Et*14|t*14|t*14|t*14,L"}, set()),
    ({"layout": "Et*14|t*14|t*14|t*13,L"}, {"layout_runs"}),
    ({"layout": "nonsense"}, {"layout_runs"}),
    ({"vpp": 2}, {"schedule_chunks"}),
    ({"vpp": 2, "schedule": Schedule.INTERLEAVED}, set()),
    ({"schedule": Schedule.INTERLEAVED}, {"schedule_chunks"}),
    ({"schedule": Schedule.V_MIN}, {"schedule_chunks"}),
    ({"vpp": 4, "schedule": Schedule.ZBV}, {"schedule_chunks", "layout_runs"}),
    (
        {"pp": 16, "ep": 4, "layout": "Et*2|" + "t*2|" * 23 + "t*1|" * 7 + "tL"} | V_HALF,
        {"v_shape_divides"},
    ),
    ({"pp": 1, "schedule": Schedule.ZB_H1}, {"schedule_needs_pipeline"}),
    ({"schedule": Schedule.GPIPE}, {"schedule_offered"}),
    (V_HALF, set()),
    (V_HALF | {"overlap": Overlap.DP}, {"split_excludes_dp_overlap"}),
    (SELECTIVE, {"recompute_consistent"}),
    (SELECTIVE | {"recompute_modules": RecomputeModules.MOE_ACT}, set()),
    (SELECTIVE | {"recompute_modules": RecomputeModules.MLA_UP_PROJ}, {"modules_exist"}),
    (SELECTIVE | {"recompute_modules": RecomputeModules.SHARED_EXPERTS}, {"modules_exist"}),
    (FULL, {"recompute_consistent"}),
    (FULL | {"recompute_method": RecomputeMethod.BLOCK}, {"recompute_consistent"}),
    (FULL | {"recompute_method": RecomputeMethod.BLOCK, "recompute_layers": 3}, set()),
    (FULL | {"recompute_layer_ids": (0, 55)}, set()),
    (FULL | {"recompute_layer_ids": (0, 56)}, {"layer_ids_exist"}),
    ({"recompute_layers": 2}, {"recompute_consistent"}),
    ({"moe_dispatcher": MoeDispatcher.DEEPEP}, set()),
    ({"moe_dispatcher": MoeDispatcher.DEEPEP, "ep": 1}, {"flex_needs_ranks"}),
    ({"moe_dispatcher": MoeDispatcher.HYBRIDEP}, {"hybridep_needs_nvidia"}),
    ({"sync_free_stage": 3}, {"sync_free_needs_deepep"}),
    ({"sync_free_stage": 3, "moe_dispatcher": MoeDispatcher.DEEPEP}, set()),
    ({"sync_free_stage": 4, "moe_dispatcher": MoeDispatcher.DEEPEP}, {"sync_free_offered"}),
    ({"precision": Precision.MXFP8}, set()),
    ({"precision": Precision.NVFP4}, {"precision_by_gpu"}),
    ({"sharding": Sharding.FSDP}, {"fsdp_mesh"}),
    ({"sharding": Sharding.FSDP, "pp": 1, "ep": 1}, set()),
    (
        {"sharding": Sharding.HSDP, "replicate": 2, "pp": 1, "ep": 1, "tp": 2}
        | {"sequence_parallel": True},
        {"hsdp_mesh"},
    ),
    ({"sharding": Sharding.HSDP, "pp": 1, "ep": 1}, {"replicas_need_shards"}),
    ({"sharding": Sharding.NONE, "replicate": 2}, {"replicas_need_shards"}),
    ({"replicate": 2}, set()),
    ({"replicate": 4}, {"replicas_divide"}),
    ({"overlap": Overlap.TP}, {"tp_overlap"}),
    ({"overlap": Overlap.EP}, {"ep_overlap"}),
    ({"overlap": Overlap.EP, "vpp": 2, "schedule": Schedule.INTERLEAVED}, set()),
    ({"overlap": Overlap.EP} | V_HALF, {"ep_overlap"}),
    (
        {"overlap": Overlap.EP, "vpp": 2, "schedule": Schedule.INTERLEAVED}
        | FULL
        | {"recompute_method": RecomputeMethod.UNIFORM, "recompute_layers": 1},
        {"ep_overlap"},
    ),
]


@pytest.mark.parametrize(("change", "broken"), ON_MIXTRAL)
def test_one_change_breaks_its_rule(change: dict[str, Any], broken: set[str]) -> None:
    assert _broken(MIXTRAL.changed(**change)) == broken


def test_rules_of_one_stack_apply_there_only() -> None:
    split = MIXTRAL.changed(**V_HALF, precision=Precision.FP8_CS)
    turbo = PRIMUS.model_copy(update={"turbo": True})
    assert _broken(split) == set()
    assert _broken(split, stack=turbo) == {"split_excludes_turbo_fp8"}
    assert _broken(MIXTRAL.changed(**V_HALF), stack=MEGATRON) == {"schedule_offered"}
    by_id = MIXTRAL.changed(**FULL, recompute_layer_ids=(1,))
    assert _broken(by_id, stack=MEGATRON) == {"layer_ids_need_primus"}
    fsdp = MIXTRAL.changed(sharding=Sharding.FSDP, pp=1)
    titan = Stack(framework=Framework.TORCHTITAN, framework_name="torchtitan")
    assert _broken(fsdp, stack=MEGATRON) == {"fsdp_mesh"}
    assert _broken(fsdp, stack=titan) == set()
    deepspeed = Stack(framework=Framework.DEEPSPEED, framework_name="DeepSpeed")
    assert _broken(MIXTRAL.changed(sharding=Sharding.ZERO3), stack=deepspeed) == {
        "zero_with_pipeline"
    }
    graphs = MEGATRON.model_copy(update={"cuda_graphs": True})
    full = MIXTRAL.changed(**FULL, recompute_method=RecomputeMethod.UNIFORM, recompute_layers=1)
    assert _broken(full, stack=graphs) == {"recompute_with_graphs"}


def test_one_connection_or_eight() -> None:
    sea = Stack(framework_name="Megatron-LM zero-bubble")
    config = MIXTRAL.changed(**V_HALF, cp=2, ep=4)
    assert _broken(config, cluster=_cluster("H100"), stack=sea) == {"connections_agree"}
    assert _broken(config, cluster=_cluster("B200"), stack=sea) == set()
    assert _broken(config.changed(cp=1), cluster=_cluster("H100"), stack=sea) == set()


def test_microbatches_of_the_interleaved_schedule() -> None:
    config = MIXTRAL.changed(vpp=2, schedule=Schedule.INTERLEAVED)
    # dp 16, mbs 2: m = gbs/32
    for microbatches, group, legal in [
        (4, 0, True),
        (6, 0, False),
        (3, 0, False),
        (6, 6, True),
        (10, 6, True),
        (9, 6, False),
        (8, 3, False),
        (8, 9, False),
    ]:
        workload = _workload(global_batch_size=32 * microbatches)
        found = _broken(config.changed(microbatch_group=group), workload)
        assert found == (set() if legal else {"microbatch_groups"})


def test_heads_groups_and_widths() -> None:
    dense = _workload("llama3.1-70b", global_batch_size=48)
    nodes = _cluster(nodes=6)
    config = TrainingConfig(tp=3, sequence_parallel=True)
    assert _broken(config, dense, nodes) == {
        "heads_divide",
        "groups_divide",
        "mlp_width_divides",
        "sequence_parallel_divides",
    }
    # tp above the number of groups is legal where it is a multiple of them
    wide = TrainingConfig(tp=16, sequence_parallel=True)
    assert _broken(wide, dense, nodes) == set()
    assert _broken(TrainingConfig(ep=2), dense, nodes) == {"experts_need_moe"}
    assert _broken(TrainingConfig(moe_dispatcher=MoeDispatcher.DEEPEP), dense, nodes) == {
        "experts_need_moe"
    }
    a2a = TrainingConfig(tp=4, cp=4, cp_comm=CpComm.A2A, sequence_parallel=True)
    assert _broken(a2a, dense, nodes) == {"all_to_all_context_divides"}
    assert _broken(a2a.changed(tp=2, cp=4), dense, nodes) == set()


def test_odd_sequences_do_not_split() -> None:
    odd = _workload("llama3.1-8b", seq_len=8190)
    assert _broken(TrainingConfig(cp=2), odd) == {"context_parallel_divides"}
    tied = _workload("llama3.2-1b")
    assert _broken(TrainingConfig(sharding=Sharding.FSDP), tied) == {"fsdp_model"}
    zb_h2 = TrainingConfig(pp=2, schedule=Schedule.ZB_H2)
    assert _broken(zb_h2, tied) == {"zero_bubble_needs_untied"}


def test_deepseek_layout_without_mtp_is_refused() -> None:
    deepseek = _workload("deepseek-v3", seq_len=4096, global_batch_size=8192)
    layout = "Et*1|t*1|" + "t*2|" * 29 + "t*1,L"
    config = TrainingConfig(pp=16, vpp=2, ep=8, schedule=Schedule.INTERLEAVED, layout=layout, mbs=2)
    cluster = _cluster(nodes=32)
    assert _broken(config, deepseek, cluster) == {"layout_runs"}
    sentence = why_illegal(config, deepseek, cluster, PRIMUS)[0]
    assert "0 MTP layers, the model has 1" in sentence
    with_mtp = config.changed(layout=layout.replace("t*1,L", "t*1,m,L"))
    assert _broken(with_mtp, deepseek, cluster) == set()


def test_precisions_and_delayed_scaling() -> None:
    layernorm = MIXTRAL.changed(**SELECTIVE, recompute_modules=RecomputeModules.LAYERNORM)
    assert _broken(layernorm.changed(precision=Precision.FP8)) == {"modules_with_delayed_fp8"}
    assert _broken(layernorm.changed(precision=Precision.FP8_SC)) == set()
    for gpu, precision in [("A100", Precision.FP8), ("MI300X", Precision.MXFP8)]:
        config = MIXTRAL.changed(precision=precision)
        assert _broken(config, cluster=_cluster(gpu)) == {"precision_by_gpu"}
    no_capacity = MIXTRAL.changed(moe_dispatcher=MoeDispatcher.DEEPEP)
    assert _broken(no_capacity, _workload(capacity_factor=1.25)) == {"flex_is_dropless"}
    slow = PRIMUS.model_copy(update={"grouped_gemm": False})
    moe_act = MIXTRAL.changed(**SELECTIVE, recompute_modules=RecomputeModules.MOE_ACT)
    assert _broken(moe_act, stack=slow) == {"modules_exist"}
    gathered = MIXTRAL.changed(
        overlap=Overlap.EP,
        vpp=2,
        schedule=Schedule.INTERLEAVED,
        moe_dispatcher=MoeDispatcher.ALLGATHER,
    )
    assert _broken(gathered) == {"ep_overlap"}


def test_experts_split_over_their_own_tensor_ranks() -> None:
    odd = _workload("qwen1.5-moe-a2.7b", global_batch_size=96)
    assert _broken(TrainingConfig(etp=3), odd, _cluster(nodes=3)) == {"expert_width_divides"}


TESTED_ALONE = {
    "connections_agree",
    "microbatch_groups",
    "zero_bubble_needs_untied",
    "split_excludes_turbo_fp8",
    "layer_ids_need_primus",
    "recompute_with_graphs",
    "modules_with_delayed_fp8",
    "zero_with_pipeline",
    "fsdp_model",
    "flex_is_dropless",
    "heads_divide",
    "groups_divide",
    "hsdp_stack",
    "mlp_width_divides",
    "sequence_parallel_divides",
    "context_parallel_divides",
    "all_to_all_context_divides",
    "experts_need_moe",
    "expert_width_divides",
}


def test_megatron_alone_has_no_hybrid_sharding() -> None:
    config = MIXTRAL.changed(sharding=Sharding.HSDP, replicate=2, pp=1, ep=1)
    assert _broken(config, stack=MEGATRON) == {"hsdp_stack"}
    assert _broken(config, stack=PRIMUS) == set()


def test_every_rule_is_tested_and_has_a_source() -> None:
    tested = set().union(*(broken for _, broken in ON_MIXTRAL))
    assert tested | TESTED_ALONE == set(RULES)
    assert all(rule.source for rule in RULES.values())


def test_sentences_carry_the_numbers() -> None:
    sentences = why_illegal(MIXTRAL.changed(pp=7), _workload(), _cluster(), PRIMUS)
    assert sentences[0].startswith("64 GPUs are not a multiple of tp*pp*cp = 1*7*1 = 7")
    huge = why_illegal(MIXTRAL.changed(pp=70_000), _workload(), _cluster(), PRIMUS)
    assert any("at most 4096 stages" in sentence for sentence in huge)


def _tables() -> st.SearchStrategy[ConfigTable]:
    size = st.sampled_from([1, 2, 3, 4, 8])
    row = st.builds(
        TrainingConfig,
        tp=size,
        pp=size,
        vpp=size,
        cp=size,
        ep=size,
        etp=st.sampled_from([0, 1, 2, 8]),
        mbs=size,
        schedule=st.sampled_from(list(Schedule)),
        microbatch_group=st.sampled_from([0, 2, 8]),
        sequence_parallel=st.booleans(),
        recompute=st.sampled_from(list(Recompute)),
        recompute_method=st.sampled_from(list(RecomputeMethod)),
        recompute_layers=st.integers(0, 3),
        recompute_modules=st.integers(0, 127).map(RecomputeModules),
        moe_dispatcher=st.sampled_from(list(MoeDispatcher)),
        sync_free_stage=st.integers(0, 3),
        precision=st.sampled_from(list(Precision)),
        sharding=st.sampled_from(list(Sharding)),
        replicate=st.sampled_from([1, 2]),
        overlap=st.integers(0, 7).map(Overlap),
        layout=st.sampled_from(["", "first=7", "Et*28|t*28,L", "account=loss"]),
    )
    return st.lists(row, min_size=1, max_size=6).map(ConfigTable.from_configs)


@settings(max_examples=60, deadline=None)
@given(_tables())
def test_sentences_agree_with_masks(table: ConfigTable) -> None:
    workload, cluster = _workload(), _cluster()
    legal = legal_mask(table, workload, cluster, PRIMUS)
    for row, config in enumerate(table.configs()):
        assert legal[row] == (why_illegal(config, workload, cluster, PRIMUS) == [])


def test_chunks_do_not_change_the_verdict() -> None:
    rng = np.random.default_rng(0)
    columns = {axis: rng.choice([1, 2, 4, 8], 70_000) for axis in ("tp", "pp", "cp", "ep", "mbs")}
    table = ConfigTable.from_columns(columns | {"sequence_parallel": True})
    whole = violations(table, _workload(), _cluster(), PRIMUS).legal
    assert np.array_equal(whole, legal_mask(table, _workload(), _cluster(), PRIMUS))
