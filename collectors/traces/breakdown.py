"""Where the time of a trace went: compute, communication, exposed and idle."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from collectors.logs.steady_state import steady_state
from collectors.traces.events import Trace
from collectors.traces.intervals import clipped, common, length, union
from collectors.traces.kernels import COMMUNICATION, category_of

_Intervals = tuple[Any, Any]


@dataclass(frozen=True)
class Breakdown:
    """Times in microseconds on one device between two moments.

    ``total`` = ``compute`` + ``exposed_communication`` + ``exposed_copy`` + ``idle``: compute is
    the time in which any kernel that does not communicate runs, communication and copies are
    exposed where no compute hides them (copies also not communication). Overlapping streams count
    once.
    """

    total_us: float
    compute_us: float
    communication_us: float
    exposed_communication_us: float
    copy_us: float
    exposed_copy_us: float
    idle_us: float

    def as_json(self) -> dict[str, float]:
        """The times and their fractions of the total."""
        times = asdict(self)
        names = ("compute", "exposed_communication", "exposed_copy", "idle")
        shares = {f"{n}_fraction": times[f"{n}_us"] / self.total_us for n in names}
        return times | (shares if self.total_us > 0 else {})


@dataclass(frozen=True)
class DeviceTime:
    """The breakdown of one device: over the whole trace, and of each profiler step.

    ``steady`` are the numbers of the steps that count, ``median_step`` the step of median length
    among them (None without steps).
    """

    device: int
    kernels: int
    streams: int
    whole: Breakdown
    steps: dict[int, Breakdown]
    steady: tuple[int, ...]
    median_step: int | None


def device_times(trace: Trace) -> list[DeviceTime]:
    """One entry a device that ran anything."""
    device = np.array(trace.device)
    communicates = np.array(
        [category_of(n) == COMMUNICATION for n in trace.names.texts], dtype=bool
    )
    name, kind = np.array(trace.name), np.array(trace.kind)
    start = np.array(trace.start_us)
    stop = start + np.array(trace.duration_us)
    found = []
    for index in np.unique(device):
        here = device == index
        copies = here & (kind > 0)
        kernels = here & (kind == 0)
        talk = kernels & communicates[name]
        parts = [union(start[mask], stop[mask]) for mask in (kernels & ~talk, talk, copies)]
        streams = len(np.unique(np.array(trace.stream)[here]))
        whole = _breakdown(parts, float(start[here].min()), float(stop[here].max()))
        steps = _steps(trace, parts, float(start[here].min()), float(stop[here].max()))
        steady, median = _steady(steps)
        count = int(kernels.sum())
        found.append(DeviceTime(int(index), count, streams, whole, steps, steady, median))
    return found


def _breakdown(parts: list[_Intervals], start: float, stop: float) -> Breakdown:
    """Times between two moments from the unions of compute, communication and copies."""
    compute, talk, copies = (clipped(part, start, stop) for part in parts)
    kernels = union(*(np.concatenate(pair) for pair in zip(compute, talk, strict=True)))
    compute_us, talk_us, copy_us = length(compute), length(talk), length(copies)
    exposed_talk = talk_us - common(compute, talk)
    exposed_copy = copy_us - common(kernels, copies)
    busy = compute_us + exposed_talk + exposed_copy
    return Breakdown(
        total_us=stop - start,
        compute_us=compute_us,
        communication_us=talk_us,
        exposed_communication_us=max(exposed_talk, 0.0),
        copy_us=copy_us,
        exposed_copy_us=max(exposed_copy, 0.0),
        idle_us=max(stop - start - busy, 0.0),
    )


def _steps(
    trace: Trace, parts: list[_Intervals], start: float, stop: float
) -> dict[int, Breakdown]:
    """Breakdown of each profiler step: windows of the device where the trace has them, else of the
    CPU from one step to the next."""
    on_device = [s for s in trace.steps if s[1]]
    windows = sorted(on_device or trace.steps, key=lambda s: s[2])
    found = {}
    for number, _, begin, end in windows:
        begin, end = max(begin, start), min(end, stop)
        if end > begin and number not in found:
            found[number] = _breakdown(parts, begin, end)
    return found


def _steady(steps: dict[int, Breakdown]) -> tuple[tuple[int, ...], int | None]:
    """Steps that count, and the one of median length."""
    if not steps:
        return (), None
    numbers = list(steps)
    lengths = np.array([steps[number].total_us for number in numbers])
    state = steady_state(lengths)
    kept = [numbers[i] for i in np.flatnonzero(state.keep)]
    ordered = sorted(kept, key=lambda number: steps[number].total_us)
    return tuple(kept), ordered[len(ordered) // 2]
