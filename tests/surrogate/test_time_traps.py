"""Traps that projections have fallen into (Primus projection at fd1eeab): a test for each."""

from __future__ import annotations

import numpy as np
import pytest

from specs import catalog
from specs.choices import (
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    Schedule,
    Sharding,
    TrainingKind,
)
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.stack import Framework, Stack
from surrogate.kernels.analytic import analytic_kernels
from surrogate.learned import shipped
from surrogate.projection import throughput
from tests.surrogate.time_cases import part, seconds, study, with_cluster

BASE = TrainingConfig(pp=4, ep=8, overlap=Overlap.DP)
INTERLEAVED = BASE.changed(vpp=2, schedule=Schedule.INTERLEAVED)


def recomputing(layers: int, **axes: int) -> TrainingConfig:
    return INTERLEAVED.changed(
        recompute=Recompute.FULL,
        recompute_method=RecomputeMethod.BLOCK,
        recompute_layers=layers,
        **axes,
    )


def test_context_parallelism_is_no_free_throughput() -> None:
    configs = [BASE.changed(cp=cp, ep=8) for cp in (1, 2, 4, 8)]
    times = seconds(study(*configs))
    # Splitting the sequence of a fixed batch saves nothing: the same work on the same GPUs.
    assert np.all(np.diff(times) > -0.02 * times[:-1])
    assert np.all(part(study(*configs), "cp")[1:] > 0)


def test_recomputing_more_layers_costs_time() -> None:
    times = seconds(study(recomputing(1), recomputing(3), recomputing(7)))
    assert np.all(np.diff(times) > 0)


def test_recompute_counts_layers_of_each_chunk() -> None:
    # Block recompute counts per model chunk: 14 layers of a chunk that holds 7 are all of them.
    times = seconds(study(recomputing(7), recomputing(14)))
    assert times[0] == pytest.approx(times[1])


def test_as_many_microbatches_as_stages_with_chunks_is_projected() -> None:
    cases = study(INTERLEAVED.changed(pp=4), gbs=64)
    assert cases.microbatches()[0] == 4
    assert np.isfinite(seconds(cases)[0])


def test_tensor_parallelism_pays_its_communication() -> None:
    wide = BASE.changed(tp=8, etp=1, sequence_parallel=True, pp=1)
    times = seconds(study(wide.changed(tp=1, sequence_parallel=False), wide))
    assert part(study(wide), "tp")[0] > 0
    assert times[1] > times[0]


def test_a_parallel_block_exchanges_once_a_layer() -> None:
    wide = BASE.changed(tp=8, etp=1, sequence_parallel=True, pp=1, ep=1)
    plain = catalog.model("llama3-70b")
    merged = plain.model_copy(update={"parallel_block": True})
    two, one = (part(study(wide, model=model), "tp")[0] for model in (plain, merged))
    assert one == pytest.approx(two / 2)


def test_deepep_and_fp8_have_an_effect() -> None:
    plain = seconds(study(BASE))[0]
    assert seconds(study(BASE.changed(moe_dispatcher=MoeDispatcher.DEEPEP)))[0] < plain
    assert seconds(study(BASE.changed(precision=Precision.FP8)))[0] < 0.9 * plain


def test_deepep_gains_with_topk_and_across_nodes() -> None:
    deepep = BASE.changed(pp=1, ep=64, moe_dispatcher=MoeDispatcher.DEEPEP)
    pair = study(deepep.changed(moe_dispatcher=MoeDispatcher.ALLTOALL), deepep, model="deepseek-v3")
    plain, deduplicated = part(pair, "ep")
    assert deduplicated < plain


def test_copies_to_one_peer_after_another_leave_the_links_of_a_mesh_idle() -> None:
    one_by_one = Stack(one_peer_exchange=True)

    def exchange(gpu: str, stack: Stack) -> float:
        return float(part(study(BASE, gpu=gpu, stack=stack), "ep")[0])

    mesh = exchange("MI355X", one_by_one) / exchange("MI355X", Stack())
    assert 6.5 < mesh < 7.0, "one of seven links is in use; the latency stays"
    assert exchange("H100-SXM", one_by_one) == exchange("H100-SXM", Stack())


def test_network_of_the_cluster_counts() -> None:
    cases = study(BASE.changed(ep=8), BASE.changed(tp=8, pp=1, ep=8, sequence_parallel=True))
    slow = with_cluster(cases, link_bytes_per_s=float(cases.cluster.link_bytes_per_s) / 10)
    assert np.all(seconds(slow) > 1.05 * seconds(cases))
    slow_nic = with_cluster(cases, nic_bytes_per_s=float(cases.cluster.nic_bytes_per_s) / 10)
    assert np.all(seconds(slow_nic) > seconds(cases))


def test_1f1b_is_never_projected_as_zero_bubble() -> None:
    plain, split = seconds(study(BASE, BASE.changed(schedule=Schedule.ZB_H1), gbs=128))
    assert plain > split
    assert part(study(BASE, gbs=128), "bubble")[0] > 0


def test_full_recompute_of_no_layers_is_no_recompute() -> None:
    none = BASE.changed(
        recompute=Recompute.FULL, recompute_method=RecomputeMethod.BLOCK, recompute_layers=0
    )
    times = seconds(study(BASE, none))
    assert times[0] == pytest.approx(times[1])


def test_fully_sharded_parameters_are_gathered_every_microbatch() -> None:
    once = BASE.changed(pp=1, sharding=Sharding.ZERO1)
    pair = study(once, once.changed(sharding=Sharding.FSDP), gbs=1024)
    assert part(pair, "dp")[1] > 2 * part(pair, "dp")[0]


def test_hybrid_sharding_gathers_within_its_shards() -> None:
    full = TrainingConfig(sharding=Sharding.FSDP, overlap=Overlap.DP)
    hybrid = full.changed(sharding=Sharding.HSDP, replicate=8)
    pair = study(full, hybrid, model="llama3.1-70b", gpu="H100-SXM", num_gpus=64, gbs=1024)
    gathered_wide, gathered_in_node = part(with_cluster(pair, nic_bytes_per_s=5e9), "dp")
    assert gathered_in_node < gathered_wide
    lone = study(hybrid, model="llama3.1-70b", gpu="H100-SXM", num_gpus=64, gbs=64)
    assert part(lone, "dp")[0] > 0


def test_zero_bubble_schedules_expose_data_parallel_communication() -> None:
    pair = study(BASE, BASE.changed(schedule=Schedule.ZB_H1))
    assert part(pair, "dp")[1] > part(pair, "dp")[0]


def test_small_microbatches_wait_for_the_host() -> None:
    tiny = study(
        TrainingConfig(ep=8), model="qwen3-30b-a3b", gpu="B200", num_gpus=8, seq_len=1024, gbs=64
    )
    assert part(tiny, "host")[0] > 0.2 * seconds(tiny)[0]


@pytest.mark.parametrize("flag", [Overlap.DP, Overlap.TP, Overlap.EP])
@pytest.mark.parametrize("sharding", [Sharding.ZERO1, Sharding.FSDP])
def test_overlapping_communication_is_never_slower(flag: Overlap, sharding: Sharding) -> None:
    # A graph launches what the host would otherwise launch in more parts where EP overlaps.
    graphs = Stack(cuda_graphs=True, full_iteration_graphs=True)
    stack = graphs if flag is Overlap.EP else Stack()
    plain = TrainingConfig(ep=8, overlap=Overlap.NONE, sharding=sharding)
    configs = [plain.changed(tp=tp, etp=1, sequence_parallel=tp > 1, mbs=8 // tp) for tp in (1, 8)]
    if sharding is Sharding.ZERO1:
        configs += [plain.changed(pp=4), plain.changed(pp=4, schedule=Schedule.ZB_H1)]
    alone = seconds(study(*configs, stack=stack))
    hidden = [config.changed(overlap=flag) for config in configs]
    overlapped = seconds(study(*hidden, stack=stack))
    assert np.all(overlapped <= alone * (1 + 1e-9))
    assert np.any(overlapped < 0.999 * alone)


def test_hiding_all_to_all_launches_no_kernels_sooner() -> None:
    # A layer that waits for the host gains nothing more from links that are faster still.
    config = TrainingConfig(ep=8, mbs=2, precision=Precision.MXFP8, overlap=Overlap.EP)
    cases = study(config, model="qwen3-30b-a3b", gpu="B200", num_gpus=32, seq_len=4096, gbs=256)
    link = float(cases.cluster.link_bytes_per_s)
    speeds = [with_cluster(cases, link_bytes_per_s=link * factor) for factor in (0.5, 1, 2, 4)]
    times = np.concatenate([seconds(each) for each in speeds])
    assert part(cases, "host")[0] > 0
    assert np.all(np.diff(times) <= 1e-9 * times[:-1])


def test_graphs_of_parts_of_a_layer_leave_experts_to_the_host() -> None:
    tiny = TrainingConfig(ep=8)

    def host(stack: Stack) -> float:
        cases = study(
            tiny, model="qwen3-30b-a3b", gpu="B200", num_gpus=8, seq_len=1024, gbs=64, stack=stack
        )
        return float(part(cases, "host")[0])

    none, parts = host(Stack()), host(Stack(cuda_graphs=True))
    whole = host(Stack(cuda_graphs=True, full_iteration_graphs=True))
    assert none > parts > 1.2 * whole


def test_graphs_of_layers_hold_experts_of_equal_size() -> None:
    config = TrainingConfig(ep=8)

    def host(capacity_factor: float, stack: Stack) -> float:
        cases = study(
            config, model="qwen3-30b-a3b", gpu="B200", num_gpus=8, seq_len=1024, gbs=64,
            stack=stack, capacity_factor=capacity_factor,
        )  # fmt: skip
        return float(part(cases, "host")[0])

    layers = Stack(cuda_graphs=True)
    whole = Stack(cuda_graphs=True, full_iteration_graphs=True)
    assert host(1.0, layers) == pytest.approx(host(1.0, whole))
    assert host(0.0, layers) > 1.2 * host(0.0, whole)


def test_hiding_all_to_all_gives_the_host_more_to_launch_unless_a_graph_holds_it() -> None:
    plain = TrainingConfig(ep=8, mbs=1)

    def seconds_of(stack: Stack) -> list[float]:
        cases = study(
            plain, plain.changed(overlap=Overlap.EP),
            model="qwen3-30b-a3b", gpu="B200", num_gpus=8, seq_len=1024, gbs=64, stack=stack,
        )  # fmt: skip
        return list(map(float, seconds(cases)))

    alone, overlapped = seconds_of(Stack())
    assert overlapped > 1.1 * alone
    alone, overlapped = seconds_of(Stack(cuda_graphs=True, full_iteration_graphs=True))
    assert overlapped <= alone


def test_without_kernel_profiles_gpus_of_equal_peaks_are_equal() -> None:
    config = TrainingConfig(tp=8, sequence_parallel=True)

    def gemm(gpu: str) -> float:
        cases = study(config, model="llama3.1-70b", gpu=gpu, num_gpus=8, gbs=64)
        return float(part(cases, "gemm")[0])

    profiled = gemm("MI300X") / gemm("MI325X")
    with analytic_kernels():
        alike = gemm("MI300X") / gemm("MI325X")
    assert profiled > 1.1, "MI300X throttles its clock more than MI325X"
    assert alike == pytest.approx(1.0, rel=0.05)
    assert gemm("MI300X") / gemm("MI325X") == pytest.approx(profiled)


def test_busiest_expert_rank_sets_the_pace() -> None:
    balanced, skewed = (
        part(study(BASE, routing_imbalance=factor), "expert_gemm")[0] for factor in (1.0, 2.0)
    )
    assert skewed > 1.5 * balanced


def test_one_expert_rank_is_never_busier_than_its_mean() -> None:
    alone = BASE.changed(ep=1)
    balanced, skewed = (seconds(study(alone, routing_imbalance=factor))[0] for factor in (1.0, 4.0))
    assert skewed == balanced
    most, beyond = (seconds(study(BASE, routing_imbalance=factor))[0] for factor in (8.0, 1e5))
    assert beyond == most, "no rank receives more than all that its eight send"


def test_adapters_cost_by_their_rank() -> None:
    def tuned(rank: int) -> float:
        cases = study(
            TrainingConfig(tp=2), model="llama3.1-8b", kind=TrainingKind.LORA, lora_rank=rank
        )
        return float(seconds(cases)[0])

    thin, wide = tuned(16), tuned(4096)
    assert tuned(1) < thin < 1.02 * tuned(1)
    assert wide > 1.3 * thin, "4,096 is the width of the model: the adapters outweigh it"


def test_attention_in_fp32_runs_at_the_rate_of_fp32() -> None:
    long = [TrainingConfig(cp=8, precision=p) for p in (Precision.BF16, Precision.FP32)]
    cases = study(*long, model="llama3.1-8b", gpu="H100-SXM", num_gpus=8, seq_len=32768, gbs=8)
    bf16, fp32 = part(cases, "attention")
    peak = cases.gpus[0].peak_flops
    assert fp32 / bf16 == pytest.approx(peak["bf16"].value / peak["fp32"].value)


def test_format_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(InputError, match="A100-80GB does not multiply in fp8"):
        seconds(study(TrainingConfig(precision=Precision.FP8), model="llama3-8b", gpu="A100-80GB"))


@pytest.mark.parametrize("framework", [Framework.PRIMUS, Framework.MEGATRON_BRIDGE])
def test_fp32_is_never_faster_however_much_waits_for_the_host(framework: Framework) -> None:
    stack = Stack(framework=framework)
    pairs = [
        TrainingConfig(tp=tp, pp=pp, mbs=mbs, precision=precision)
        for tp in (1, 4)
        for pp in (1, 4)
        for mbs in (1, 4)
        for precision in (Precision.BF16, Precision.FP32)
    ]
    cases = study(*pairs, model="qwen3-30b-a3b", gpu="B200", num_gpus=16, seq_len=4096, stack=stack)
    speed = throughput(cases, shipped().constants, shipped()).reshape(-1, 2)
    assert (speed[:, 1] < speed[:, 0]).all()


def test_no_gpu_projects_as_another() -> None:
    speeds = {gpu: seconds(study(BASE, gpu=gpu))[0] for gpu in ("MI300X", "MI325X", "MI355X")}
    assert speeds["MI300X"] > speeds["MI325X"] > speeds["MI355X"]


def test_compiling_saves_passes_over_memory_and_nothing_else() -> None:
    config = TrainingConfig(sharding=Sharding.FSDP)
    cases = [
        study(config, model="llama3-8b", gbs=64, stack=Stack(compiled=compiled))
        for compiled in (False, True)
    ]
    eager, compiled = (part(case, "elementwise")[0] for case in cases)
    assert 0.3 * eager < compiled < eager
    for name in ("gemm", "attention", "tp", "dp"):
        assert part(cases[1], name)[0] == pytest.approx(part(cases[0], name)[0], rel=0.05, abs=1e-3)


def test_the_gpu_waits_where_the_host_reads_how_many_tokens_each_expert_got() -> None:
    deepep = BASE.changed(pp=1, mbs=4, moe_dispatcher=MoeDispatcher.DEEPEP)
    hosts = part(study(deepep, deepep.changed(sync_free_stage=1)), "host")
    assert hosts[1] < 0.7 * hosts[0]
    padded = part(study(deepep, capacity_factor=1.0), "host")
    graphs = part(study(deepep, stack=Stack(cuda_graphs=True, full_iteration_graphs=True)), "host")
    assert padded[0] < 0.7 * hosts[0]
    assert graphs[0] < padded[0]


def test_zero_bubble_schedules_idle_in_the_order_that_was_measured() -> None:
    """arXiv 2401.10241, table 4: 1F1B, ZB-1p and ZB-2p at 24 microbatches on 8 ranks."""
    config = TrainingConfig(pp=8)
    schedules = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.ZB_H2)
    idle = part(
        study(
            *(config.changed(schedule=schedule) for schedule in schedules),
            model="llama3-8b", num_gpus=8, gbs=24,
        ),
        "bubble",
    )  # fmt: skip
    assert idle[0] > 1.5 * idle[1]
    assert idle[1] > 1.5 * idle[2]


def test_gathers_of_many_layers_at_once_hide_behind_less() -> None:
    config = TrainingConfig(sharding=Sharding.FSDP, overlap=Overlap.DP, mbs=1)
    exposed = [
        part(study(config, model="llama3-70b", gbs=64, stack=Stack(coarse_gathers=coarse)), "dp")[0]
        for coarse in (False, True)
    ]
    assert exposed[1] > 1.1 * exposed[0]


def test_attention_that_hides_a_ring_hides_no_exchange_as_well() -> None:
    """Else a faster GPU, which hides less twice, would be slower."""
    config = TrainingConfig(
        cp=2, ep=8, mbs=2, overlap=Overlap.DP | Overlap.EP, moe_dispatcher=MoeDispatcher.ALLTOALL,
        pp=2, vpp=2, schedule=Schedule.INTERLEAVED,
    )  # fmt: skip
    cases = study(config, model="qwen3-30b-a3b", gpu="B200", gbs=256)
    faster = with_cluster(cases, peak_bf16_flops=5 * cases.cluster.peak_bf16_flops)
    assert seconds(faster)[0] <= seconds(cases)[0]
