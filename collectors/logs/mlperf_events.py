"""MLLOG events of MLPerf training submissions (mlcommons/logging): ``:::MLLOG {json}``."""

from __future__ import annotations

import json
from typing import Any

from collectors.logs.reading import LineReader
from collectors.logs.run_log import RunLog
from collectors.text import Line

MARK = ":::MLLOG"
MAX_EVENTS = 2000


class MlperfEvents(LineReader):
    """Settings, throughput (``tracked_stats``) and blocks between evaluations."""

    keywords = (MARK,)

    def read(self, line: Line, run: RunLog) -> None:
        event = _event(line.text)
        if event is None:
            run.note("MLLOG events that were cut or malformed were left out")
            return
        key, value, metadata = event["key"], event.get("value"), event.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        time_ms = event.get("time_ms")
        if isinstance(time_ms, int) and 0 < time_ms < 2**45 and "mlperf time" not in run.facts:
            run.fact("mlperf time", str(time_ms))
        if key == "tracked_stats" and isinstance(value, dict):
            self._throughput(value, metadata, run)
        elif len(run.events) < MAX_EVENTS and isinstance(value, str | int | float):
            run.events.setdefault(key, value)

    def _throughput(self, value: dict[str, Any], metadata: dict[str, Any], run: RunLog) -> None:
        """Samples per second of the block that ends at ``step`` (samples or steps so far)."""
        rate = _positive(value.get("throughput"))
        if rate is None:
            return
        number = _positive(metadata.get("step")) or float(len(run.iterations) + 1)
        run.iterations.add(number, {"samples_per_s": rate})


def _event(text: str) -> dict[str, Any] | None:
    """The event of a line; None where it is none."""
    start = text.find("{", text.find(MARK))
    try:
        event, _ = json.JSONDecoder().raw_decode(text[start:]) if start >= 0 else (None, 0)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event, dict) or not isinstance(event.get("key"), str):
        return None
    return event


def _positive(value: object) -> float | None:
    """A positive finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e12 else None
