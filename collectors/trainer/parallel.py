"""From settings to the model chunks of one rank: layers, tensor parallel plan, FSDP, weights."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from collectors.trainer.mesh import Mesh
from collectors.trainer.model import Layer, Stage
from collectors.trainer.moe import Experts, MoeLayer
from collectors.trainer.settings import Settings

INITIAL_SD = 0.02


def stage_numbers(settings: Settings, rank: int) -> list[int]:
    """Which stages of the pipeline a rank runs: every pp-th, or the ends of a V."""
    pp, chunks = settings.pipeline_model_parallel_size, settings.chunks
    if settings.pipeline_schedule == "zbv" and pp > 1:
        return [rank, chunks - 1 - rank]
    return list(range(rank, chunks, pp))


def build_stages(settings: Settings, mesh: Mesh, device: torch.device) -> list[Stage]:
    """The model chunks of this rank with their weights, split as the settings say."""
    per_stage = settings.num_layers // settings.chunks
    stages = []
    for number in stage_numbers(settings, mesh.pipeline.get_local_rank()):
        layers = range(number * per_stage, (number + 1) * per_stage)
        with torch.device("meta"):
            stage = Stage(settings, layers, [_experts(settings, mesh) for _ in layers])
        # FSDP keeps fp32 shards and gathers them in bf16; else weights are held as they compute.
        sharded = settings.sharding == "fsdp"
        stage.to(torch.bfloat16 if settings.bf16 and not sharded else torch.float32)
        if mesh.tensor.size() > 1:
            _split_tensors(stage, settings, mesh)
        if sharded:
            _shard(stage, settings, mesh)
        stage.to_empty(device=device)
        stage.set_positions(device)
        _fill(stage, settings)
        stages.append(stage)
    return stages


def _experts(settings: Settings, mesh: Mesh) -> Experts | None:
    if not settings.num_experts:
        return None
    count = settings.num_experts // settings.expert_model_parallel_size
    return Experts(settings, mesh.expert_rank * count, count)


def _split_tensors(stage: Stage, settings: Settings, mesh: Mesh) -> None:
    """Column- and row-parallel linear layers, with or without sequence parallelism."""
    between = Shard(1) if settings.sequence_parallel else Replicate()
    whole = Replicate()
    plan: dict[str, ParallelStyle] = {
        # Split by its width: the gradient of a vocabulary shard would need a reduction of its own.
        "embedding": ColwiseParallel(output_layouts=between),
        "logits": ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    gathered = PrepareModuleInput(input_layouts=between, desired_input_layouts=whole)
    norms = ["norm"]
    for number, layer in stage.layers.items():
        assert isinstance(layer, Layer)
        at = f"layers.{number}"
        norms += [f"{at}.attention_norm", f"{at}.mlp_norm"]
        plan[f"{at}.attention"] = gathered
        plan |= {f"{at}.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan[f"{at}.attention.output"] = RowwiseParallel(output_layouts=between)
        if isinstance(layer.mlp, MoeLayer):
            continue  # each rank routes the tokens of its part of the sequence
        plan[f"{at}.mlp"] = gathered
        plan |= {f"{at}.mlp.{name}": ColwiseParallel() for name in ("gate", "up")}
        plan[f"{at}.mlp.down"] = RowwiseParallel(output_layouts=between)
    if settings.sequence_parallel:
        plan |= {name: SequenceParallel(use_local_output=True) for name in norms}
    present = {name for name, module in stage.named_modules() if module is not None}
    parallelize_module(stage, mesh.tensor, {n: style for n, style in plan.items() if n in present})


def _shard(stage: Stage, settings: Settings, mesh: Mesh) -> None:
    """FSDP2 over data parallelism, a unit a layer; experts of expert parallelism stay whole."""
    compute = torch.bfloat16 if settings.bf16 else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    own: set[nn.Parameter] = set()
    if settings.expert_model_parallel_size > 1:
        for module in stage.modules():
            if isinstance(module, Experts):
                module.to(compute)
                own |= set(module.parameters())
    for unit in (*stage.layers.values(), stage):
        sharded = fully_shard(unit, mesh=mesh.data, mp_policy=policy, ignored_params=own)
        # The loss is divided by all micro-batches of the step: gradients are summed.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def _fill(stage: Stage, settings: Settings) -> None:
    """Weights that depend on the name of a parameter alone, not on how the model is split."""
    experts = {name: m for name, m in stage.named_modules() if isinstance(m, Experts)}
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            owner = experts.get(name.rpartition(".")[0])
            if owner is None:
                full = _initial(name, tuple(parameter.shape), settings.seed)
            else:
                each = tuple(parameter.shape[1:])
                numbers = range(owner.first, owner.first + owner.count)
                full = torch.stack([_initial(f"{name}.{n}", each, settings.seed) for n in numbers])
            _copy(parameter, full)


def _copy(parameter: nn.Parameter, full: Tensor) -> None:
    if isinstance(parameter, DTensor):
        full = full.to(parameter.device)
        mine = distribute_tensor(
            full, parameter.device_mesh, parameter.placements, src_data_rank=None
        )
        parameter.to_local().copy_(mine.to_local())
    else:
        parameter.copy_(full)


def _initial(name: str, shape: tuple[int, ...], seed: int) -> Tensor:
    if len(shape) == 1:
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator) * INITIAL_SD
