"""Lines of a run in the words of Megatron-LM, so that the readers of its logs know them."""

from __future__ import annotations

import time
from dataclasses import fields

import torch

from collectors.trainer.settings import Settings


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


def argument_dump(settings: Settings, world_size: int) -> str:
    """The settings as Megatron-LM prints its arguments."""
    values: dict[str, object] = {f.name: getattr(settings, f.name) for f in fields(Settings)}
    values |= {
        "trainer": "foretune",
        "world_size": world_size,
        "data_parallel_size": settings.data_parallel_size(world_size),
        "torch_version": torch.__version__,
        "swiglu": True,
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True,
        "group_query_attention": settings.num_query_groups != settings.num_attention_heads,
        "use_flash_attn": True,
    }
    if not settings.num_experts:
        values["num_experts"] = None
    lines = [f"  {name} {'.' * max(48 - len(name), 2)} {values[name]}" for name in sorted(values)]
    head, tail = "arguments", "end of arguments"
    return "\n".join([f"{'-' * 24} {head} {'-' * 24}", *lines, f"{'-' * 20} {tail} {'-' * 21}"])


def model_flops(settings: Settings) -> float:
    """FLOPs of a step: 6 a parameter of a matrix and token, and causal attention."""
    s = settings
    attention = s.hidden_size * (2 * s.head_outputs + 2 * s.num_query_groups * s.kv_channels)
    mlp = 3 * s.hidden_size * s.ffn_hidden_size
    if s.num_experts:
        mlp = s.moe_router_topk * 3 * s.hidden_size * s.moe_ffn_hidden_size
        mlp += s.hidden_size * s.num_experts
    scores = s.head_outputs * s.seq_length  # QK and PV over half of the square
    each = s.num_layers * (attention + mlp + scores) + s.hidden_size * s.vocab_size
    return 6.0 * each * s.seq_length * s.global_batch_size


def iteration_line(
    settings: Settings, step: int, elapsed_s: float, loss: float, world_size: int
) -> str:
    """One iteration."""
    s = settings
    parts = [
        time.strftime(" [%Y-%m-%d %H:%M:%S]", time.gmtime())
        + f" iteration {step:8d}/{s.train_iters:8d}",
        f"consumed samples: {step * s.global_batch_size:12d}",
        f"elapsed time per iteration (ms): {elapsed_s * 1e3:.3f}",
        f"throughput per GPU (TFLOP/s/GPU): {model_flops(s) / elapsed_s / world_size / 1e12:.5f}",
        f"learning rate: {s.lr:.6E}",
        f"global batch size: {s.global_batch_size:5d}",
        f"lm loss: {loss:.6E}",
    ]
    return " | ".join(parts) + " |"


def memory_line(rank: int, step: int, mib: dict[str, float]) -> str:
    """Counters of one rank (Megatron's "MB" are MiB)."""
    counted = " | ".join(f"{name}: {value:.2f}" for name, value in mib.items())
    return f"[Rank {rank}] (after {step} iterations) memory (MB) | {counted} |"
