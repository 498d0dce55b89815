"""Out-of-memory errors of the GPU: labelled points for the memory model."""

from __future__ import annotations

import re

from collectors.logs.reading import LineReader
from collectors.logs.run_log import OutOfMemory, RunLog
from collectors.text import Line, parsed_number

MAX_KEPT = 1000
_SIZE = r"(\d[\d.,]{0,20}) ([KMGT]i?B)"
_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 1024.0}


class OutOfMemoryErrors(LineReader):
    """PyTorch's errors for CUDA and HIP, old and new wording, and the bare runtime errors."""

    keywords = ("out of memory", "OutOfMemory", "oom-kill", "Out of memory")

    _of_gpu = re.compile(
        r"(?:CUDA|HIP|XPU)(?: error)?:? ?.{0,40}out of memory|OutOfMemoryError"
        r"|hipErrorOutOfMemory|cudaErrorMemoryAllocation"
    )
    _tried = re.compile(r"[Tt]ried to allocate " + _SIZE)
    _capacity = re.compile(rf"total capacity of {_SIZE}|{_SIZE} total capacity")
    _allocated = re.compile(rf"allocated memory {_SIZE} is allocated|{_SIZE} already allocated")
    _unallocated = re.compile(_SIZE + r" is reserved by PyTorch but unallocated")
    _reserved = re.compile(_SIZE + r" reserved in total by PyTorch")

    def read(self, line: Line, run: RunLog) -> None:
        text = line.text[:8192]
        if not self._of_gpu.search(text):
            if "oom-kill" in text or "Out of memory: Killed" in text:
                run.note("the host ran out of memory (oom-kill): no point for GPU memory")
            return
        allocated = _gib(self._allocated, text)
        reserved = _gib(self._reserved, text)
        unallocated = _gib(self._unallocated, text)
        if reserved is None and allocated is not None and unallocated is not None:
            reserved = allocated + unallocated
        capacity = _gib(self._capacity, text)
        error = OutOfMemory(
            line=line.number,
            rank=line.rank,
            tried_gib=_gib(self._tried, text) or 0.0,
            capacity_gib=capacity,
            allocated_gib=allocated,
            reserved_gib=reserved,
        )
        if capacity:
            run.capacity_gib = max(run.capacity_gib, capacity)
        if len(run.out_of_memory) < MAX_KEPT:
            run.out_of_memory.append(error)


def _gib(pattern: re.Pattern[str], text: str) -> float | None:
    """The size that a pattern finds, in GiB."""
    match = pattern.search(text)
    if match is None:
        return None
    number, unit = [group for group in match.groups() if group is not None][:2]
    size = parsed_number(number)
    return None if size is None else size * _GIB[unit[0]]
