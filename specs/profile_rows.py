"""Profiles: what is to be measured on a node (plan) and what was measured (rows), as files.

The plan is JSON, rows are JSON lines while measuring and Parquet when closed. The program that
measures (``collectors/node_profile.py``) runs without this package: both formats are plain JSON.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specs.errors import InputError
from specs.files import input_file

SCHEMA_VERSION = 1
MAX_LINE = 2**16
MAX_ROWS = 1_000_000
MAX_PARQUET_BYTES = 2**30

KINDS: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "seq", "heads", "kv_heads", "head_dim_qk", "head_dim_v"),
    "grouped_gemm": ("experts", "rows", "hidden", "ffn", "gated"),
    "elementwise": ("elements",),
    "optimizer": ("parameters",),
    "collective": ("message_bytes", "ranks", "ranks_per_node"),
    "layer": (
        *("batch", "seq", "hidden", "heads", "kv_heads", "head_dim_qk", "head_dim_v", "ffn"),
        *("gated", "q_rank", "kv_rank", "rope_dim", "experts", "topk", "expert_ffn", "shared_ffn"),
    ),
}
"""Kind of measurement -> its sizes, whole numbers. Sizes of a layer that it lacks are 0."""

VARIANTS: dict[str, tuple[str, ...]] = {
    "collective": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"),
    "layer": ("dense", "moe"),
}
DTYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class PlanItem:
    """One thing to measure; ``why`` says what it teaches.

    ``sizes`` follow KINDS and are those of one rank; ``message_bytes`` is the whole tensor
    (gathered, before scattering, per rank for all-to-all). ``variant`` is the collective or the
    kind of layer.
    """

    kind: str
    sizes: Mapping[str, int]
    dtype: str = "bf16"
    variant: str = ""
    why: str = ""

    @property
    def key(self) -> str:
        """Name of the item: the same sizes have the same name in every plan."""
        sizes = ",".join(f"{name}={self.sizes[name]}" for name in KINDS[self.kind])
        return "/".join(part for part in (self.kind, self.variant, self.dtype, sizes) if part)


@dataclass(frozen=True)
class ProfileRow:
    """One item as measured: seconds of a pass, over all rounds.

    ``spread`` is the interquartile range of the rounds over their median; ``peak_bytes`` what the
    item allocated beyond its inputs (None on a CPU), ``saved_bytes`` what forward kept for
    backward.
    """

    item: PlanItem
    forward_s: float
    backward_s: float | None
    spread: float
    rounds: int
    samples: int
    peak_bytes: int | None
    saved_bytes: int | None


@dataclass(frozen=True)
class Profile:
    """What a node measured: rows, the items that failed (key -> reason) and its environment."""

    rows: tuple[ProfileRow, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def device_name(self) -> str:
        """The device as its driver calls it."""
        return str(self.environment.get("device_name", ""))


def checked_item(content: Mapping[str, Any], where: str) -> PlanItem:
    """An item from JSON.

    Raises:
        InputError: a kind, variant, dtype or size that does not exist.
    """
    kind = str(content.get("kind", ""))
    if kind not in KINDS:
        raise InputError(f"{where}: there is no kind {kind!r}; use {', '.join(KINDS)}.")
    variant = str(content.get("variant", ""))
    if variant not in VARIANTS.get(kind, ("",)):
        raise InputError(f"{where}: {kind} has no variant {variant!r}.")
    dtype = str(content.get("dtype", "bf16"))
    if dtype not in DTYPES:
        raise InputError(f"{where}: there is no dtype {dtype!r}; use {', '.join(DTYPES)}.")
    sizes = content.get("sizes")
    sizes = sizes if isinstance(sizes, Mapping) else {}
    checked = {}
    for name in KINDS[kind]:
        value = sizes.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**48:
            raise InputError(f"{where}: size {name} of {kind} is {value!r}; use a whole number.")
        checked[name] = value
    return PlanItem(kind, checked, dtype, variant, str(content.get("why", ""))[:500])


def plan_json(items: Sequence[PlanItem]) -> dict[str, Any]:
    """The plan as the program on the node reads it, most instructive item first."""
    return {
        "schema_version": SCHEMA_VERSION,
        "items": [
            {
                "key": item.key,
                "kind": item.kind,
                "variant": item.variant,
                "dtype": item.dtype,
                "sizes": dict(item.sizes),
                "why": item.why,
            }
            for item in items
        ],
    }


def read_profile(path: Path) -> Profile:
    """The rows of a JSON-lines file or of a closed Parquet file; a last line that was cut is left
    out.

    Raises:
        InputError: the file is missing, holds no measurement, or is of another version.
    """
    if path.suffix == ".parquet":
        return _of_lines(_parquet_lines(input_file(path, again=True)), path)
    try:
        with input_file(path).open(encoding="utf-8", errors="replace") as file:
            return _of_lines(iter(lambda: file.readline(MAX_LINE), ""), path)
    except OSError as error:
        raise InputError(f"cannot read the profile {path}: {error.strerror}.") from None


def _of_lines(lines: Iterable[str], path: Path) -> Profile:
    """Rows from the lines: one measurement of one round each, grouped by item."""
    environment: dict[str, Any] = {}
    items: dict[str, PlanItem] = {}
    measured: dict[str, list[Mapping[str, Any]]] = {}
    failed: dict[str, str] = {}
    broken = 0
    for number, line in enumerate(lines):
        if number >= MAX_ROWS:
            break
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            broken += bool(line.strip())
            continue
        if not isinstance(content, dict):
            broken += 1
        elif content.get("schema_version") not in (None, SCHEMA_VERSION):
            raise InputError(
                f"{path} is a profile of version {content['schema_version']}; this release reads "
                f"{SCHEMA_VERSION}: measure again."
            )
        elif isinstance(content.get("environment"), dict):
            environment.update(content["environment"])
        elif "kind" in content:
            item = checked_item(content, f"{path} line {number + 1}")
            items[item.key] = item
            if "error" in content:
                failed[item.key] = str(content["error"])[:300]
            elif _positive(content.get("forward_s")):
                measured.setdefault(item.key, []).append(content)
            else:
                broken += 1
    if not measured and not failed:
        raise InputError(f"{path} holds no measurement; run foretune profile again.")
    rows = tuple(_row(items[key], rounds) for key, rounds in measured.items())
    notes = (f"{broken} lines of {path} were cut or malformed and left out",) if broken else ()
    failures = {key: why for key, why in failed.items() if key not in measured}
    return Profile(rows, failures, environment, notes)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def _row(item: PlanItem, rounds: list[Mapping[str, Any]]) -> ProfileRow:
    """The median over rounds."""
    forward = [float(r["forward_s"]) for r in rounds]
    backward = [float(r["backward_s"]) for r in rounds if _positive(r.get("backward_s"))]
    middle = statistics.median(forward)
    spread = 0.0
    if len(forward) > 1:
        low, _, high = statistics.quantiles(forward, n=4, method="inclusive")
        spread = (high - low) / middle
    else:
        own = rounds[0].get("spread")
        spread = float(own) if isinstance(own, int | float) and _positive(own) else 0.0
    return ProfileRow(
        item=item,
        forward_s=middle,
        backward_s=statistics.median(backward) if backward else None,
        spread=spread,
        rounds=len(rounds),
        samples=sum(_count(r.get("samples", 1)) for r in rounds),
        peak_bytes=_largest(rounds, "peak_bytes"),
        saved_bytes=_largest(rounds, "saved_bytes"),
    )


def _count(value: Any) -> int:
    """A number of repetitions; 1 where none that makes sense is told."""
    return int(value) if _positive(value) and value >= 1 else 1


def _largest(rounds: list[Mapping[str, Any]], name: str) -> int | None:
    sizes = [r[name] for r in rounds if isinstance(r.get(name), int) and 0 <= r[name] < 2**60]
    return max(sizes) if sizes else None


def close_profile(lines: Path, parquet: Path) -> Path:
    """Writes the lines of a finished measurement as Parquet: one row a line, nested as JSON.

    Raises:
        InputError: the lines hold no measurement.
    """
    import pyarrow
    import pyarrow.parquet

    read_profile(lines)
    kept = []
    with lines.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                content = json.loads(line)
            except ValueError:
                continue
            if isinstance(content, dict):
                kept.append(content)
    columns = {
        "kind": [row.get("kind") for row in kept],
        "key": [row.get("key") for row in kept],
        "round": [row.get("round") for row in kept],
        "forward_s": [row.get("forward_s") for row in kept],
        "backward_s": [row.get("backward_s") for row in kept],
        "spread": [row.get("spread") for row in kept],
        "json": [json.dumps(row) for row in kept],
    }
    temporary = parquet.with_name(f".{parquet.name}.{os.getpid()}")
    pyarrow.parquet.write_table(pyarrow.table(columns), temporary)
    temporary.replace(parquet)
    return parquet


def _parquet_lines(path: Path) -> list[str]:
    """The lines that a Parquet profile was closed from."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            held = file.metadata
            size = sum(held.row_group(i).total_byte_size for i in range(held.num_row_groups))
            if held.num_rows > MAX_ROWS or size > MAX_PARQUET_BYTES:
                raise InputError(f"{path} is too large for a profile; measure again.")
            lines = file.read(columns=["json"]).column("json").to_pylist()
    except (OSError, pyarrow.ArrowException, KeyError, ValueError, TypeError, MemoryError) as error:
        raise InputError(f"cannot read the profile {path}: {error}.") from None
    return [str(line) for line in lines]
