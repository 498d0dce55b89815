"""Where the time of a run goes: a trace of prefill and of decoding, apart, and what it says.

The trace is taken of the workload that is measured, in a process of its own: the profiler slows
what it watches, so it never runs while anything is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from studies.toolbox.roofline import Bound
from studies.toolbox.runtime import Runtime

DECODE_STEPS = 16
"""Decode steps that are traced; more would only repeat them."""
TOP = 12
_KINDS = (
    ("attention", ("attention", "softmax", "flash", "fmha", "attn")),
    ("matmul", ("mm", "linear", "gemm", "matmul", "cijk", "dot")),
    ("compiled", ("graph_", "triton", "cpp_fused", "compiled")),
    ("copy and cast", ("copy", "cat", "_to_copy", "clone", "contiguous", "index", "memcpy")),
    ("element-wise", ("mul", "add", "silu", "pow", "mean", "rsqrt", "neg", "norm", "elementwise")),
)
HOST_BOUND_BELOW = 0.5
"""Share of the time in which a GPU works, below which the host is what one waits for (assumed)."""


def profile_runtime(runtime: Runtime) -> dict[str, Any]:
    """Traces a warm runtime; seconds a phase and operators by their own time."""
    import torch

    ids, mask = runtime.prompts()
    generator = runtime.generator
    steps = min(DECODE_STEPS, runtime.work.new_tokens - 1)
    tokens = ids[:, -1:]

    def prefill() -> None:
        nonlocal tokens
        generator.start(ids, mask, runtime.work.new_tokens)
        tokens = generator.prefill().argmax(-1)

    def decode() -> None:
        nonlocal tokens
        for _ in range(steps):
            tokens = generator.step(tokens).argmax(-1)

    with torch.inference_mode():
        return {"prefill": _traced(runtime, prefill), "decode": _traced(runtime, decode)} | {
            "decode_steps": steps
        }


def _traced(runtime: Runtime, run: Callable[[], None]) -> dict[str, Any]:
    """One phase under the profiler."""
    from torch.profiler import ProfilerActivity, profile

    on_gpu = runtime.device == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    runtime.sync()
    with profile(activities=activities) as trace:
        started = time.perf_counter()
        run()
        runtime.sync()
        wall_s = time.perf_counter() - started
    events = trace.key_averages()
    rows = []
    for event in events:
        own_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if own_us > 0:
            rows.append({"operator": event.key, "own_s": own_us / 1e6, "calls": event.count})
    rows.sort(key=lambda row: -row["own_s"])
    busy_s = sum(row["own_s"] for row in rows)
    kinds: dict[str, float] = {}
    for row in rows:
        kinds[kind_of(row["operator"])] = kinds.get(kind_of(row["operator"]), 0.0) + row["own_s"]
    return {
        "wall_s": wall_s,
        "busy_s": busy_s,
        "operators": rows[:TOP],
        "kinds": {kind: own_s / max(busy_s, 1e-12) for kind, own_s in kinds.items()},
        "calls": sum(row["calls"] for row in rows),
    }


def kind_of(operator: str) -> str:
    """The kind of work that an operator or kernel does."""
    name = operator.lower()
    return next((kind for kind, words in _KINDS if any(word in name for word in words)), "other")


def bottlenecks(
    profile: Mapping[str, Any], run: Mapping[str, float], limit: Bound, on_gpu: bool
) -> list[str]:
    """What holds the model back, one sentence each.

    Args:
        profile: what ``profile_runtime`` found.
        run: median seconds ``prefill_wall_s`` and ``decode_wall_s`` of timed runs.
        limit: the roofline bound.
        on_gpu: whether the trace is of a device.
    """
    sentences = []
    whole = run["prefill_wall_s"] + run["decode_wall_s"]
    sentences.append(
        f"decoding takes {run['decode_wall_s'] / whole:.0%} of a run, prefill "
        f"{run['prefill_wall_s'] / whole:.0%}."
    )
    for phase in ("prefill", "decode"):
        found = profile[phase]
        shares = sorted(found["kinds"].items(), key=lambda item: -item[1])[:3]
        parts = ", ".join(f"{kind} {share:.0%}" for kind, share in shares)
        sentence = f"{phase}: {parts}"
        if on_gpu:
            busy = min(found["busy_s"] / found["wall_s"], 1.0)
            sentence += f"; the GPU works {busy:.0%} of the time"
            if busy < HOST_BOUND_BELOW:
                sentence += ", so it waits for the host"
        sentences.append(sentence + ".")
    sentences.append(
        f"decoding runs at {limit.decode_s / run['decode_wall_s']:.1%} of what "
        f"{limit.limited_by} allows, prefill at {limit.prefill_s / run['prefill_wall_s']:.1%}."
    )
    return sentences
