"""What a rank holds, by three counters, and a limit on it that is real.

* allocated. GPU: tensors of PyTorch's caching allocator. CPU: weights, gradients and optimizer
  state that are held, and the peak of what one step takes from PyTorch's CPU allocator beyond them.
* reserved. GPU: what the caching allocator took from the driver. CPU: growth of the resident set
  since the process began to build its model.

The resident set of a CPU process (``resident``) counts interpreter and libraries too.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import torch

MIB = 2**20
GIB = 2**30
_STATUS = Path("/proc/self/status")


def status_bytes(name: str) -> int:
    """A line of /proc/self/status (``VmRSS``, ``VmHWM``, ``VmData``) in bytes; 0 elsewhere."""
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


class Memory:
    """Counters of this process on its device."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self.before = status_bytes("VmRSS")
        self._peak_of_step = 0

    def limit(self, gib: float) -> None:
        """Lets this process hold so much in all; beyond it allocation fails.

        On a CPU the limit counts private memory that is mapped (RLIMIT_DATA): what the process
        maps now beyond what is resident is not charged.
        """
        if gib <= 0:
            return
        if self._gpu:
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction(min(gib * GIB / total, 1.0))
            return
        left = int(gib * GIB) - status_bytes("VmRSS")
        allowed = max(status_bytes("VmData") + left, 0)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, resource.RLIM_INFINITY))

    def begin(self) -> None:
        """Forgets peaks before now: building a model is no training."""
        if self._gpu:
            torch.cuda.reset_peak_memory_stats()
        elif sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM (man 5 proc)

    def observe(self, step: Callable[[], object]) -> None:
        """Runs a step and keeps the peak of what the CPU allocator gave out beyond its start."""
        if self._gpu:
            step()
            return
        with torch.autograd.profiler.profile(profile_memory=True) as seen:
            step()
        events = [e for e in seen.kineto_results.events() if e.name() == "[memory]"]
        held, self._peak_of_step = 0, 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            held += event.nbytes()
            self._peak_of_step = max(self._peak_of_step, held)

    def mib(self, held_bytes: int) -> dict[str, float]:
        """Counters in MiB; ``held_bytes`` are the states that lived before the observed step."""
        if self._gpu:
            return {
                "allocated": torch.cuda.memory_allocated() / MIB,
                "max allocated": torch.cuda.max_memory_allocated() / MIB,
                "reserved": torch.cuda.memory_reserved() / MIB,
                "max reserved": torch.cuda.max_memory_reserved() / MIB,
            }
        return {
            "allocated": held_bytes / MIB,
            "max allocated": (held_bytes + self._peak_of_step) / MIB,
            "reserved": (status_bytes("VmRSS") - self.before) / MIB,
            "max reserved": (self.peak_resident - self.before) / MIB,
        }

    @property
    def peak_resident(self) -> int:
        """Highest resident set since ``begin``, bytes."""
        return status_bytes("VmHWM")
