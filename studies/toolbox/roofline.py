"""The least time a run can take on this machine: bytes that must be read, FLOPs that must be done.

Only work that cannot be avoided is counted (weights and KV cache read once a step, multiplications
of the weights and of attention), so a run that is faster was not measured correctly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from specs import catalog
from studies.toolbox.workload import Generation

CACHE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GUARD = 1.25
"""A run this many times faster than the bound on a GPU of the catalog was not measured right."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """What the machine can do: bytes/s from memory and FLOP/s by format, and where that is from."""

    bytes_per_s: float
    flops: Mapping[str, float]
    source: str
    guaranteed: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """Least seconds of prefill and of decoding, and what decides decoding."""

    prefill_s: float
    decode_s: float
    decode_bytes: float
    decode_flops: float
    limited_by: str

    @property
    def run_s(self) -> float:
        """Least seconds of a run."""
        return self.prefill_s + self.decode_s

    def as_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self) | {"run_s": self.run_s}


def catalog_peaks(device_name: str) -> Peaks | None:
    """The peaks of the GPU that torch names so; None where the catalog does not know it."""
    text = catalog.normalised(device_name)
    names = [
        (catalog.normalised(name), gpu)
        for gpu in map(catalog.gpu, catalog.gpu_names())
        for name in (gpu.name, *gpu.aliases)
    ]
    # The longest name wins: GB200 holds B200.
    found = max((item for item in names if item[0] in text), key=lambda x: len(x[0]), default=None)
    if found is None:
        return None
    gpu = found[1]
    peak = {name: quantity.value for name, quantity in gpu.peak_flops.items()}
    flops = {
        "bfloat16": peak["bf16"],
        "float16": peak["bf16"],
        # Matrix cores may run float32 products in a shorter format, so a bound must allow it.
        "float32": peak["bf16"],
        "int8": max(peak.values()),
    }
    return Peaks(gpu.hbm_bytes_per_s.value, flops, f"catalog, {gpu.name}", True)


def measured_peaks(working_bytes: int, device: str) -> dict[str, Any]:
    """Bandwidth and FLOP/s of this process: the best of some short products.

    Args:
        working_bytes: size of the matrix that is streamed, that of the model's weights, so that
            a model that fits into the cache is judged by the cache.
        device: ``cpu`` or ``cuda``.
    """
    import torch

    width = 1024
    rows = max(min(working_bytes, 1 << 30) // (4 * width), 64)
    matrix, vector = torch.ones(rows, width, device=device), torch.ones(width, device=device)
    stream_s = _best_s(lambda: torch.mv(matrix, vector), device)
    side = 512 if device == "cpu" else 8192
    flops = {}
    for name in CACHE_BYTES:
        square = torch.ones(side, side, dtype=getattr(torch, name), device=device)
        flops[name] = 2 * side**3 / _best_s(partial(torch.mm, square, square), device)
    return {"bytes_per_s": rows * width * 4 / stream_s, "flops": flops}


def _best_s(call: Callable[[], Any], device: str) -> float:
    """Least seconds of a few calls."""
    import torch

    times = []
    for _ in range(7):
        started = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


def bound(
    shape: Mapping[str, Any], weight_bytes: float, dtype: str, work: Generation, peaks: Peaks
) -> Bound:
    """The least time of a run.

    Args:
        shape: sizes of the model as the worker reports them.
        weight_bytes: bytes of all weights as they are held.
        dtype: format of the activations and the KV cache.
        work: what is generated.
        peaks: of the machine.
    """
    read = weight_bytes * shape["multiplied_parameters"] / shape["parameters"]
    token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * CACHE_BYTES[dtype]
    steps = work.new_tokens - 1
    context = work.prompt_tokens + work.new_tokens / 2
    flops = peaks.flops.get(dtype, max(peaks.flops.values()))
    attended = 4 * shape["layers"] * shape["heads"] * shape["head_dim"]
    # Ragged prompts hold three quarters of their padded length on average.
    filled = 0.75 if work.ragged else 1.0
    prompt = work.batch * work.prompt_tokens * filled
    prefill_flops = 2 * shape["multiplied_parameters"] * prompt * 0.9
    decode_bytes = steps * (read + work.batch * context * filled * token)
    decode_flops = steps * work.batch * (2 * shape["multiplied_parameters"] + attended * context)
    by_bytes, by_flops = decode_bytes / peaks.bytes_per_s, decode_flops / flops
    return Bound(
        prefill_s=max(prefill_flops / flops, read / peaks.bytes_per_s),
        decode_s=max(by_bytes, by_flops),
        decode_bytes=decode_bytes,
        decode_flops=decode_flops,
        limited_by="memory bandwidth" if by_bytes >= by_flops else "arithmetic",
    )
