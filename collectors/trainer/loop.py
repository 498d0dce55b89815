"""The training loop of one rank: build, step, tell."""

from __future__ import annotations

import os
import re
import sys
import time
import warnings
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from collectors.trainer.data import micro_batches
from collectors.trainer.log import argument_dump, iteration_line, memory_line, say
from collectors.trainer.memory import Memory
from collectors.trainer.mesh import Mesh
from collectors.trainer.model import Stage
from collectors.trainer.moe import MoeLayer
from collectors.trainer.optimizer import Optimizer
from collectors.trainer.parallel import build_stages
from collectors.trainer.schedule import Runner
from collectors.trainer.settings import Settings, SettingsError, parse

OUT_OF_MEMORY, BAD_SETTINGS = 3, 2
"""Exit codes beside 1, a crash."""


def main(arguments: Sequence[str] | None = None) -> int:
    """One rank under torchrun; exit code 2 for impossible settings, 3 for out of memory."""
    settings = parse(arguments)
    warnings.simplefilter("ignore", FutureWarning)  # collectives get new names, old ones stay
    try:
        settings.check(int(os.environ.get("WORLD_SIZE", "1")))
    except SettingsError as error:
        print(f"collectors.trainer: {error}", file=sys.stderr)
        return BAD_SETTINGS
    gpu = torch.cuda.is_available()
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    )
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    try:
        train(settings, device)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # The other ranks wait for this one: end without asking them.
        text = f"[Rank {dist.get_rank()}] OutOfMemoryError: {tried(error)}{error}"
        print(text, file=sys.stderr, flush=True)
        os._exit(OUT_OF_MEMORY)
    dist.destroy_process_group()
    return 0


def tried(error: BaseException) -> str:
    """The size that could not be allocated, in the words of PyTorch's GPU allocators."""
    match = re.search(r"tried to allocate (\d+) bytes", str(error))
    return f"Tried to allocate {int(match[1]) / 2**20:.2f} MiB. " if match else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: CUDA's or HIP's error, or that of the CPU allocator."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return (
        "can't allocate memory" in text or "bad_alloc" in text or "Cannot allocate memory" in text
    )


def train(settings: Settings, device: torch.device) -> list[float]:
    """Trains and prints; gives the loss of every step. The process group exists."""
    rank, world = dist.get_rank(), dist.get_world_size()
    memory = Memory(device)
    if rank == 0:
        say(f"using world size: {world}, data-parallel size: {settings.data_parallel_size(world)}")
        say(argument_dump(settings, world))
    mesh = Mesh.of(settings, device.type)
    memory.limit(settings.memory_limit_gib)
    stages = build_stages(settings, mesh, device)
    if mesh.expert is not None:
        _connect(stages, mesh)
    optimizer = Optimizer(stages, settings, mesh)
    runner = Runner(stages, settings, mesh, device)
    memory.begin()
    losses: list[float] = []

    def step() -> None:
        number = len(losses)
        data = micro_batches(settings, number, mesh.data.get_local_rank(), mesh.data.size(), device)
        loss = runner.run(*data)
        optimizer.step()
        if mesh.tensor.get_local_rank() > 0:
            loss = loss * 0.0  # tensor-parallel ranks hold the same loss: count it once
        dist.all_reduce(loss)
        losses.append(float(loss))

    for _ in range(settings.train_iters):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        step()
        if rank == world - 1:
            elapsed_s = time.perf_counter() - started
            say(iteration_line(settings, len(losses), elapsed_s, losses[-1], world))
    resident = memory.peak_resident
    held = sum(_held(stage) for stage in stages) + optimizer.state_bytes()
    if not settings.skip_memory_step:
        memory.observe(step)
    counters = memory.mib(held)
    if device.type == "cpu":
        counters["max reserved"] = (resident - memory.before) / 2**20
    # One rank after the other, so that lines stay whole.
    for turn in range(world):
        if turn == rank:
            say(memory_line(rank, settings.train_iters, counters))
        dist.barrier()
    return losses


def _connect(stages: list[Stage], mesh: Mesh) -> None:
    """Gives MoE layers the group that their tokens travel in."""
    for stage in stages:
        for module in stage.modules():
            if isinstance(module, MoeLayer):
                module.group = mesh.expert


def _held(stage: Stage) -> int:
    """Bytes of the weights of a stage on this rank."""
    local = [p.to_local() if isinstance(p, DTensor) else p for p in stage.parameters()]
    return sum(p.numel() * p.element_size() for p in local)
