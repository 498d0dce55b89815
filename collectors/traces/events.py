"""Kineto traces (``torch.profiler``) into columns: device events, the operators behind them, steps.

Read in one pass with memory for a few numbers an event. Only the header members that are needed
are kept: a trace may carry the environment of its author, with secrets.
"""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from collectors.text import Truncation
from collectors.traces.json_stream import JsonStream
from specs.errors import InputError

MAX_EVENTS = 20_000_000
MAX_NAMES = 200_000
MAX_STEPS = 10_000
MAX_NAME_LETTERS = 1000
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
STEP_CATEGORIES = ("gpu_user_annotation", "user_annotation")
_STEP = re.compile(r"ProfilerStep#?\s?(\d{1,9})")


class Names:
    """Each different text once, as a number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text; texts beyond MAX_NAMES share that of ``(others)``."""
        place = self._places.get(text)
        if place is None:
            if len(self.texts) >= MAX_NAMES:
                text = "(others)"
                if text in self._places:
                    return self._places[text]
            place = self._places[text] = len(self.texts)
            self.texts.append(text)
        return place


@dataclass
class Trace:
    """Device events of a trace as columns of equal length, times in microseconds.

    ``name`` and ``stream`` index ``names`` and ``streams``; ``operator`` columns hold the CPU
    operators by external id, ``steps`` the windows of profiler steps: (number, on_device, start,
    stop).
    """

    device_name: str = ""
    world_size: int = 0
    rank: int = -1
    versions: dict[str, str] = field(default_factory=dict)
    names: Names = field(default_factory=Names)
    streams: Names = field(default_factory=Names)
    name: array[int] = field(default_factory=lambda: array("l"))
    stream: array[int] = field(default_factory=lambda: array("l"))
    device: array[int] = field(default_factory=lambda: array("l"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    start_us: array[float] = field(default_factory=lambda: array("d"))
    duration_us: array[float] = field(default_factory=lambda: array("d"))
    external_id: array[int] = field(default_factory=lambda: array("q"))
    operators: Names = field(default_factory=Names)
    operator_id: array[int] = field(default_factory=lambda: array("q"))
    operator: array[int] = field(default_factory=lambda: array("l"))
    steps: list[tuple[int, bool, float, float]] = field(default_factory=list)
    events: int = 0
    malformed: int = 0
    notes: list[str] = field(default_factory=list)


def read_trace(path: Path) -> Trace:
    """The device events of a profiler trace (.json or .json.gz).

    Raises:
        InputError: the file is no JSON trace, or holds no device event.
    """
    trace, truncation = Trace(), Truncation()
    stream = JsonStream(path, truncation)
    for name, value in stream.members("traceEvents", lambda event: _event(trace, event)):
        _header(trace, name, value)
    if truncation.reason:
        trace.notes.append(f"{truncation.reason}; the events before count")
    if trace.malformed:
        trace.notes.append(f"{trace.malformed} malformed events were left out")
    if not len(trace.start_us):
        damage = f" ({truncation.reason})" if truncation.reason else ""
        raise InputError(
            f"{path} holds {trace.events:,} trace events but none of a GPU{damage}; record the "
            "trace with the CUDA activity switched on (ROCm too)."
        )
    if len(trace.start_us) >= MAX_EVENTS:
        trace.notes.append(f"only the first {MAX_EVENTS:,} device events count")
    return trace


def _header(trace: Trace, name: str, value: Any) -> None:
    """Device name, versions and the process group; nothing else of the header is kept."""
    if name == "deviceProperties" and isinstance(value, list) and value:
        first = value[0]
        if isinstance(first, dict) and isinstance(first.get("name"), str):
            trace.device_name = first["name"][:100]
    elif name == "distributedInfo" and isinstance(value, dict):
        world, rank = value.get("world_size"), value.get("rank")
        trace.world_size = world if _is_whole(world) else 0
        trace.rank = rank if _is_whole(rank) else -1
    elif name.endswith("_version") and isinstance(value, str | int):
        trace.versions[name[:40]] = str(value)[:40]


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _event(trace: Trace, event: Any) -> None:
    """Keeps one event, if it is of a device, an operator or a step."""
    trace.events += 1
    if not isinstance(event, dict) or event.get("ph") != "X":
        return
    category = event.get("cat")
    if category in DEVICE_CATEGORIES:
        _device_event(trace, event, DEVICE_CATEGORIES.index(category))
    elif category == "cpu_op":
        _operator(trace, event)
    elif category in STEP_CATEGORIES and str(event.get("name", "")).startswith("ProfilerStep"):
        _step(trace, event, category == "gpu_user_annotation")


def _time(value: Any) -> float | None:
    """A finite time in microseconds; Kineto writes numbers, some tools texts."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if -1e18 < number < 1e18 else None


def _device_event(trace: Trace, event: dict[str, Any], kind: int) -> None:
    start, duration = _time(event.get("ts")), _time(event.get("dur"))
    if start is None or duration is None or duration < 0:
        trace.malformed += 1
        return
    if len(trace.start_us) >= MAX_EVENTS:
        return
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
    device = device if _is_whole(device) else 0
    identity = args.get("External id", args.get("external id"))
    trace.name.append(trace.names.number(str(event.get("name", ""))[:MAX_NAME_LETTERS]))
    trace.stream.append(trace.streams.number(f"{device}/{str(stream)[:40]}"))
    trace.device.append(device)
    trace.kind.append(kind)
    trace.start_us.append(start)
    trace.duration_us.append(duration)
    trace.external_id.append(identity if _is_whole(identity) else -1)


def _operator(trace: Trace, event: dict[str, Any]) -> None:
    """A CPU operator with its input shapes and types, where it launched something by id."""
    args = event.get("args")
    if not isinstance(args, dict) or len(trace.operator_id) >= MAX_EVENTS:
        return
    identity = args.get("External id", args.get("external id"))
    if not _is_whole(identity):
        return
    shapes = args.get("Input Dims", args.get("Input dims", []))
    types = args.get("Input type", [])
    text = f"{str(event.get('name', ''))[:200]}\t{str(shapes)[:400]}\t{str(types)[:200]}"
    trace.operator_id.append(identity)
    trace.operator.append(trace.operators.number(text))


def _step(trace: Trace, event: dict[str, Any], on_device: bool) -> None:
    match = _STEP.match(str(event["name"])[:60])
    start, duration = _time(event.get("ts")), _time(event.get("dur"))
    if match and start is not None and duration and duration > 0 and len(trace.steps) < MAX_STEPS:
        trace.steps.append((int(match[1]), on_device, start, start + duration))
