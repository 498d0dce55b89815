"""Recomputation costs time: what was learned from runs must not credit it with more than noise."""

from __future__ import annotations

import numpy as np
import pytest

from search.ranking import SPEED_SLACK
from search.space import Space
from specs import catalog
from specs.choices import (
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Sharding,
)
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.runs import table_of
from specs.stack import Framework, Stack
from specs.workload import Workload
from studies.inputs import resolve
from surrogate.cases import Cases
from surrogate.learned import shipped
from surrogate.projection import throughput
from surrogate.run_cases import cases_of

NONE = {
    "recompute": int(Recompute.NONE),
    "recompute_method": int(RecomputeMethod.NONE),
    "recompute_layers": 0,
    "recompute_modules": int(RecomputeModules.NONE),
    "recompute_layer_ids": 0,
}
"""Columns of configs that recompute nothing."""

STACKS = (
    (Framework.PRIMUS, "Primus-Megatron"),
    (Framework.TORCHTITAN, "TorchTitan"),
    (Framework.MEGATRON_BRIDGE, "Megatron-Bridge"),
    (Framework.MAXTEXT, "MaxText"),
)
JOBS = (
    ("llama3.1-70b", "H100-SXM", 256), ("llama3-8b", "MI300X", 64), ("llama3-8b", "A100-80GB", 8),
    ("mixtral-8x22b", "MI355X", 32), ("deepseek-v3", "GB200", 256), ("qwen3-30b-a3b", "B200", 16),
)  # fmt: skip


@pytest.mark.parametrize(
    "study", ["mixtral_8x22b_mi355x", "llama3.1_70b_mi300x", "llama3.1_405b_h100"]
)
def test_no_config_gains_by_recomputing(study: str) -> None:
    job = resolve(study)
    space = Space.of(job.experiment, job.cluster, full=True)
    table = space.sample(4000, seed=0)
    without = job.tokens_per_s_per_gpu(table.changed(**NONE))
    speed = job.tokens_per_s_per_gpu(table)
    # Where communication takes most of the step, recomputation hides behind it and costs nothing.
    fast = speed > 0.5 * speed.max()
    assert np.max(speed[fast] / without[fast] - 1) < SPEED_SLACK


def mesh(model: str, num_gpus: int) -> list[TrainingConfig]:
    """Configs without recomputation: meshes, batches and ways of sharding."""
    is_moe = catalog.model(model).is_moe
    configs = []
    for tp, pp, mbs in ((1, 1, 1), (1, 1, 4), (2, 1, 2), (4, 2, 1), (1, 4, 1), (8, 1, 1)):
        if tp * pp > num_gpus:
            continue
        ep = min(8, num_gpus // pp) if is_moe else 1
        plain = TrainingConfig(
            tp=tp, pp=pp, mbs=mbs, ep=ep, etp=1 if is_moe else tp, sequence_parallel=tp > 1,
            overlap=Overlap.DP, precision=Precision.BF16, sharding=Sharding.ZERO1,
        )  # fmt: skip
        configs.append(plain)
        if pp == 1:
            configs.append(plain.changed(sharding=Sharding.FSDP))
            configs.append(plain.changed(sharding=Sharding.FSDP, overlap=Overlap.NONE))
            if num_gpus // tp >= 4 and not is_moe:
                configs.append(plain.changed(sharding=Sharding.HSDP, replicate=2))
    return configs


def recomputing(config: TrainingConfig, layers: int) -> list[TrainingConfig]:
    """A config with each way of recomputing."""
    full, selective = Recompute.FULL, Recompute.SELECTIVE
    block, uniform = RecomputeMethod.BLOCK, RecomputeMethod.UNIFORM
    modules = (RecomputeModules.CORE_ATTN, RecomputeModules.LAYERNORM, RecomputeModules.MLP)
    return [
        config.changed(recompute=full, recompute_method=uniform, recompute_layers=1),
        config.changed(recompute=full, recompute_method=block, recompute_layers=1),
        config.changed(recompute=full, recompute_method=block, recompute_layers=layers),
        *(config.changed(recompute=selective, recompute_modules=m) for m in modules),
    ]


@pytest.mark.parametrize(("model", "gpu", "num_gpus"), JOBS)
@pytest.mark.parametrize(("framework", "name"), STACKS)
@pytest.mark.parametrize("nic_share", [1.0, 0.1])
def test_recomputation_is_never_faster(
    framework: Framework, name: str, model: str, gpu: str, num_gpus: int, nic_share: float
) -> None:
    data_sheet = catalog.gpu(gpu)
    rate = data_sheet.nic_bytes_per_s
    slow = rate.model_copy(update={"value": rate.value * nic_share})
    per_node = min(data_sheet.gpus_per_node, num_gpus)
    cluster = Cluster(
        name="", gpu=data_sheet.model_copy(update={"nic_bytes_per_s": slow}),
        num_nodes=num_gpus // per_node, gpus_per_node=per_node, price_usd_per_gpu_hour=None,
    )  # fmt: skip
    workload = Workload(
        model=catalog.model(model), seq_len=4096, global_batch_size=8 * num_gpus,
        routing_imbalance=1.0, target_tokens=None,
    )  # fmt: skip
    stack = Stack(framework=framework, framework_name=name)
    configs = mesh(model, num_gpus)
    ways = [recomputing(config, 4) for config in configs]

    def speed(rows: list[TrainingConfig]) -> np.ndarray:
        return throughput(Cases.of_study(ConfigTable.from_configs(rows), workload, cluster, stack))

    bare = np.repeat(speed(configs), len(ways[0]))
    assert np.max(speed([config for way in ways for config in way]) / bare - 1) < 1e-3


def test_sharded_gathering_that_is_not_overlapped_is_slower() -> None:
    model, gpu = catalog.model("llama3.1-70b"), catalog.gpu("H100-SXM")
    cluster = Cluster(name="", gpu=gpu, num_nodes=8, gpus_per_node=8, price_usd_per_gpu_hour=None)
    workload = Workload(
        model=model, seq_len=4096, global_batch_size=256, routing_imbalance=1.0, target_tokens=None
    )
    overlapped = TrainingConfig(sharding=Sharding.FSDP, overlap=Overlap.DP)
    table = ConfigTable.from_configs([overlapped, overlapped.changed(overlap=Overlap.NONE)])
    stack = Stack(framework=Framework.TORCHTITAN, framework_name="TorchTitan")
    speed = throughput(Cases.of_study(table, workload, cluster, stack))
    assert speed[1] < 0.99 * speed[0]


def test_names_of_modules_mean_nothing_where_operators_are_repeated() -> None:
    base = TrainingConfig(
        tp=2, mbs=2, sharding=Sharding.FSDP, overlap=Overlap.DP, recompute=Recompute.SELECTIVE,
        sequence_parallel=True,
    )  # fmt: skip
    modules = (RecomputeModules.CORE_ATTN, RecomputeModules.CORE_ATTN | RecomputeModules.MLP)
    gpu = catalog.gpu("H100-SXM")
    cluster = Cluster(name="", gpu=gpu, num_nodes=1, gpus_per_node=8, price_usd_per_gpu_hour=None)
    work = Workload(model=catalog.model("llama3.1-8b"), seq_len=8192, global_batch_size=64)
    table = ConfigTable.from_configs([base.changed(recompute_modules=m) for m in modules])
    stack = Stack(framework=Framework.TORCHTITAN, framework_name="TorchTitan")
    speed = throughput(Cases.of_study(table, work, cluster, stack))
    assert speed[0] == pytest.approx(speed[1], rel=1e-9)


def test_told_runs_credit_recomputation_no_more_than_public_ones() -> None:
    """Runs without and with recomputation, told of one mesh, are as fast as each other."""
    run = {
        "source": "own", "gpu": "MI300X", "gpus_per_node": "8", "num_gpus": "16",
        "framework": "Primus", "model": "llama3.1-8b", "precision": "bf16", "seq_len": "8192",
        "gbs": "128", "mbs": "2", "tp": "1", "pp": "1", "sharding": "zero1",
    }  # fmt: skip
    rows = [
        run | {"run_id": "a", "recompute": "none", "tokens_per_s_per_gpu": "8200"},
        run | {"run_id": "b", "recompute": "full", "tokens_per_s_per_gpu": "8100"},
    ]
    learned = shipped().calibrated(table_of(rows, catalog.model, catalog.gpu))
    job = resolve("docs/example_study.yaml")
    space = Space.of(job.experiment, job.cluster, full=True)
    cases = job.cases(space.sample(8000, seed=1))
    speed = throughput(cases, learned.constants, learned)
    bare = throughput(cases.without_recomputation(), learned.constants, learned)
    assert np.max(speed / bare) < 1.005
    told = throughput(
        cases_of(table_of(rows, catalog.model, catalog.gpu)), learned.constants, learned
    )
    assert told[1] > 0.93 * told[0]  # the run itself is believed
