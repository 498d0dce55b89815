"""What the ground truth was measured on, as JSON beside it."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from benchmarks.measured.truth import ENVIRONMENT


def written(path: Path = ENVIRONMENT) -> Path:
    """Describes this machine and its PyTorch."""
    import torch

    model = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    )
    kib = Path("/proc/meminfo").read_text(encoding="ascii").split()[1]
    content = {
        "machine": f"{os.cpu_count()} cores of {model} (virtual machine)",
        "memory_gib": round(int(kib) / 2**20, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads_per_process": 1,
        "backend": "gloo over the loopback interface",
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    print(written())
