"""Kernel constants without kernel profiles: one utilisation for every GPU, what an ablation runs.

The laws stay (work over peak, traffic over HBM, small sides of a GEMM lose); what profiles teach of
tiles, waves, formats and throttled clocks is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

VALUES: dict[str, dict[str, float]] = {
    "gemm": {
        "utilisation_max": 0.75,
        "tile_overhead": 75.0,
        "wave_quantisation": 0.0,
        "prologue_k": 0.0,
        "memory_utilisation": 0.75,
        "overlap_loss": 0.0,
        "latency_s": 7e-6,
        "quantise_utilisation": 0.75,
        "quantise_latency_s": 0.0,
    },
    "attention": {
        "utilisation_max": 0.5,
        "softmax_dim": 0.0,
        "prologue_keys": 0.0,
        "window_keys": 0.0,
        "wave_quantisation": 0.0,
        "tail": 0.0,
        "memory_passes": 1.0,
        "latency_s": 7e-6,
    },
}
"""Assumed, by operator: typical of A100 and H100 (bf16 GEMM 0.75 to 0.8 of the peak before a side
of N loses 150/N, flash attention 0.3 to 0.54, 7 us a kernel)."""

_ONLY: ContextVar[bool] = ContextVar("analytic kernels only", default=False)


@contextmanager
def analytic_kernels() -> Iterator[None]:
    """Within it, times are computed from VALUES in place of the constants of each GPU."""
    token = _ONLY.set(True)
    try:
        yield
    finally:
        _ONLY.reset(token)


def without_profiles() -> bool:
    """Whether ``analytic_kernels`` is on."""
    return _ONLY.get()
