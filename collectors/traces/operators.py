"""Operator rows of a trace: the kernels, grouped by what launched them and with which shapes."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np

from collectors.traces.events import DEVICE_CATEGORIES, Trace
from collectors.traces.kernels import DATA_MOVEMENT, category_of

COLUMNS = (
    *("gpu", "kernel", "dtype", "shape", "time_us", "tflops", "source", "note"),
    *("category", "operator", "calls", "total_us", "min_us", "max_us", "share"),
)
"""The published columns of kernel tables first, then what a trace adds."""


class OperatorRow(NamedTuple):
    """One operator with one set of shapes: its kernel calls.

    ``time_us`` is the median of a call, ``share`` the part of all device time, ``tflops`` the rate
    of a GEMM whose shape the trace holds (None elsewhere).
    """

    kernel: str
    category: str
    operator: str
    shape: str
    dtype: str
    calls: int
    time_us: float
    total_us: float
    min_us: float
    max_us: float
    share: float
    tflops: float | None

    def as_row(self, gpu: str, source: str) -> dict[str, str]:
        """The row as text, by column of ``COLUMNS``."""
        return {
            "gpu": gpu,
            "kernel": self.kernel,
            "dtype": self.dtype,
            "shape": self.shape,
            "time_us": f"{self.time_us:.6g}",
            "tflops": "" if self.tflops is None else f"{self.tflops:.4g}",
            "source": source,
            "category": self.category,
            "operator": self.operator,
            "calls": str(self.calls),
            "total_us": f"{self.total_us:.6g}",
            "min_us": f"{self.min_us:.6g}",
            "max_us": f"{self.max_us:.6g}",
            "share": f"{self.share:.4g}",
        }


def operator_rows(trace: Trace) -> list[OperatorRow]:
    """Rows in order of their total time."""
    operator = _operator_of_events(trace)
    name, kind = np.array(trace.name), np.array(trace.kind)
    duration = np.array(trace.duration_us)
    everything = float(duration.sum())
    keys, group = np.unique(np.stack([name, operator, kind]), axis=1, return_inverse=True)
    order = np.lexsort((duration, group.ravel()))
    borders = np.searchsorted(group.ravel()[order], np.arange(keys.shape[1] + 1))
    rows = []
    for place in range(keys.shape[1]):
        times = duration[order[borders[place] : borders[place + 1]]]
        kernel, launched, what = (int(value) for value in keys[:, place])
        rows.append(_row(trace, kernel, launched, what, times, everything))
    return sorted(rows, key=lambda row: -row.total_us)


def _operator_of_events(trace: Trace) -> Any:
    """Index of the CPU operator of each device event, -1 where the trace does not tell."""
    events = np.array(trace.external_id)
    if not len(trace.operator_id):
        return np.full(len(events), -1)
    ids, operators = np.array(trace.operator_id), np.array(trace.operator)
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids[order], events)
    place = np.minimum(place, len(ids) - 1)
    return np.where((events >= 0) & (ids[order][place] == events), operators[order][place], -1)


def _row(
    trace: Trace, kernel: int, launched: int, kind: int, times: Any, everything: float
) -> OperatorRow:
    """One group of events; ``times`` are sorted."""
    name = trace.names.texts[kernel]
    category = category_of(name) if DEVICE_CATEGORIES[kind] == "kernel" else DATA_MOVEMENT
    operator, shapes, types = "", "", ""
    if launched >= 0:
        operator, shapes, types = (*trace.operators.texts[launched].split("\t"), "", "")[:3]
    gemm = gemm_shape(operator, shapes)
    time_us = float(np.median(times))
    tflops = None
    if gemm is not None and category in ("gemm", "grouped_gemm") and time_us > 0:
        batch, m, n, k = gemm
        tflops = 2.0 * batch * m * n * k / time_us / 1e6
    return OperatorRow(
        kernel=name,
        category=category,
        operator=operator,
        shape=_gemm_text(gemm) if gemm is not None else shapes,
        dtype=_dtype(types),
        calls=len(times),
        time_us=time_us,
        total_us=float(times.sum()),
        min_us=float(times[0]),
        max_us=float(times[-1]),
        share=float(times.sum()) / everything if everything > 0 else 0.0,
        tflops=tflops,
    )


# Place of the first matrix among the inputs of ATen's matrix products.
_FIRST_MATRIX = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
    "aten::_addmm_activation": 1,
}


def gemm_shape(operator: str, shapes: str) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k) of a matrix product of ATen; None for anything else."""
    place = _FIRST_MATRIX.get(operator)
    if place is None or len(shapes) >= 400:
        return None
    try:
        inputs = ast.literal_eval(shapes)
        first, second = inputs[place], inputs[place + 1]
    except (ValueError, SyntaxError, IndexError, TypeError, KeyError, RecursionError, MemoryError):
        return None
    if not all(isinstance(s, list) and all(isinstance(d, int) for d in s) for s in (first, second)):
        return None
    if len(first) == len(second) == 2 and first[1] == second[0]:
        return 1, first[0], second[1], first[1]
    if len(first) == len(second) == 3 and first[0] == second[0] and first[2] == second[1]:
        return first[0], first[1], second[2], first[2]
    return None


def _gemm_text(gemm: tuple[int, int, int, int]) -> str:
    batch, m, n, k = gemm
    return (f"b={batch}," if batch > 1 else "") + f"m={m},n={n},k={k}"


_DTYPES = (
    *(("bfloat16", "bf16"), ("float8", "fp8"), ("half", "fp16"), ("float", "fp32")),
    *(("double", "fp64"), ("long", "int64"), ("int", "int32")),
)


def _dtype(types: str) -> str:
    """The number format of the first tensor."""
    lower = types.lower()
    places = [(lower.find(word), label) for word, label in _DTYPES if word in lower]
    return min(places)[1] if places else ""
