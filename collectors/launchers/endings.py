"""How a run ended, as its exit code and its log tell."""

from __future__ import annotations

import re
from pathlib import Path

from collectors.launchers.launch import Ended, Ending

_OUT_OF_MEMORY = re.compile(
    rb"(?:CUDA|HIP|XPU)(?: error)?:? ?.{0,40}out of memory|OutOfMemoryError"
    rb"|hipErrorOutOfMemory|cudaErrorMemoryAllocation"
)
"""PyTorch's words for a GPU without memory; the same as of ``collectors.logs.out_of_memory``."""
_PIECE_BYTES = 1 << 20
_OVERLAP_BYTES = 256
CANNOT_START = {
    126: "the command is not executable",
    127: "the command was not found",
}
"""Exit codes of a shell that could not start the command: nothing was learned about the config."""


def ended(exit_code: int, wall_s: float, log: Path) -> Ended:
    """How a command ended that exited with this code and printed this log."""
    if says_out_of_memory(log) and exit_code != 0:
        return Ended(Ending.OUT_OF_MEMORY, exit_code, wall_s, log, f"out of memory, see {log}.")
    if exit_code == 0:
        return Ended(Ending.FINISHED, 0, wall_s, log, f"finished in {wall_s:.0f} s.")
    why = CANNOT_START.get(exit_code)
    if why is None:
        why = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    return Ended(Ending.CRASHED, exit_code, wall_s, log, f"{why} after {wall_s:.0f} s, see {log}.")


def says_out_of_memory(log: Path) -> bool:
    """Whether the log tells of a GPU that ran out of memory; False where there is no log."""
    if not log.is_file():
        return False
    kept = b""
    with log.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            if _OUT_OF_MEMORY.search(kept + piece):
                return True
            kept = piece[-_OVERLAP_BYTES:]
    return False
