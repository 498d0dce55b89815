"""TrainingConfig, one value for every tuned axis, and ConfigTable, many of them as numpy columns.

Everything is computed on ConfigTables; one config is a table of one row. Axis names are the column
names of the measured-runs format (tp, pp, vpp, cp, ep, etp, mbs ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.choices import (
    CpComm,
    MoeDispatcher,
    Overlap,
    Precision,
    Recompute,
    RecomputeMethod,
    RecomputeModules,
    Schedule,
    Sharding,
)
from specs.errors import InputError

Column = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """One value for every axis that is tuned.

    ``etp`` 0 means "as tp" in input only (Megatron: null); ``resolved`` replaces it. ``layout`` is
    empty for an even split, ``first=F``, ``last=L``, ``first=F,last=L`` for uneven ends,
    ``account=embedding``, ``account=loss`` or ``account=embedding+loss`` where those count as a
    layer, or a Megatron layout string (``Et*2|t*3|...|t*1,L``). ``recompute_layers`` is layers per
    model chunk for block, layers per checkpoint unit for uniform, 0 otherwise.
    ``microbatch_group`` 0 means Megatron's default (pp).
    """

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    layout: str = ""
    cp: int = 1
    cp_comm: CpComm = CpComm.P2P
    ep: int = 1
    etp: int = 1
    mbs: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    microbatch_group: int = 0
    sequence_parallel: bool = False
    recompute: Recompute = Recompute.NONE
    recompute_method: RecomputeMethod = RecomputeMethod.NONE
    recompute_layers: int = 0
    recompute_modules: RecomputeModules = RecomputeModules.NONE
    recompute_layer_ids: tuple[int, ...] = ()
    moe_dispatcher: MoeDispatcher = MoeDispatcher.ALLTOALL
    sync_free_stage: int = 0
    precision: Precision = Precision.BF16
    sharding: Sharding = Sharding.ZERO1
    replicate: int = 1
    cross_entropy_fusion: bool = False
    overlap: Overlap = Overlap.NONE

    def changed(self, **values: Any) -> TrainingConfig:
        """A copy with some axes changed."""
        return replace(self, **values)

    def as_labels(self) -> dict[str, str | int | bool]:
        """Axis -> value as it is written in files and on screen."""
        return {name: AXES[name].label(getattr(self, name)) for name in AXES}

    @classmethod
    def from_labels(cls, labels: Mapping[str, Any]) -> TrainingConfig:
        """A config from axis -> label; axes left out keep their default.

        Raises:
            InputError: an unknown axis or a value that the axis does not have.
        """
        values = {}
        for name, text in labels.items():
            if name not in AXES:
                raise InputError(f"there is no axis {name!r}; the axes are {', '.join(AXES)}.")
            values[name] = AXES[name].parse(text)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Axis:
    """One tuned axis: its name, what it holds and what it means."""

    name: str
    kind: type
    meaning: str
    dtype: Any

    def parse(self, value: Any) -> Any:
        """A value of this axis from a label, number or member.

        Raises:
            InputError: the value does not belong to this axis.
        """
        if self.name == "recompute_layer_ids":
            return _parse_layer_ids(value)
        if self.name == "layout":
            return "" if value in (None, "even", "") else str(value)
        if self.kind is bool:
            return _parse_bool(self.name, value)
        if self.kind is int:
            return _parse_positive(self.name, value, 0 if self.name in _ZERO_ALLOWED else 1)
        if isinstance(value, self.kind):
            return value
        parsed: Any = self.kind.parse(str(value))  # type: ignore[attr-defined]
        return parsed

    def label(self, value: Any) -> str | int | bool:
        """How a value of this axis is written."""
        if self.name == "layout":
            return str(value) or "even"
        if self.name == "recompute_layer_ids":
            return ",".join(map(str, value)) or "none"
        if self.kind in (int, bool):
            return self.kind(value)
        return str(self.kind(value).label)


TOO_LARGE = 2**31
"""No axis has as many: products of two values stay exact in the int64 of a table."""
_ZERO_ALLOWED = {"etp", "microbatch_group", "recompute_layers", "sync_free_stage"}
_INT, _CODE = np.int64, np.int64


def _axes() -> dict[str, Axis]:
    """Every axis in the order of TrainingConfig."""
    rows: list[tuple[str, type, str]] = [
        ("tp", int, "tensor parallel size"),
        ("pp", int, "pipeline parallel size"),
        ("vpp", int, "model chunks (virtual stages) per pipeline rank"),
        ("layout", str, "how layers are split over pipeline stages"),
        ("cp", int, "context parallel size"),
        ("cp_comm", CpComm, "how context parallelism communicates"),
        ("ep", int, "expert parallel size"),
        ("etp", int, "expert tensor parallel size (0: as tp)"),
        ("mbs", int, "micro-batch size in sequences"),
        ("schedule", Schedule, "pipeline schedule"),
        ("microbatch_group", int, "microbatches per virtual-stage group (0: as pp)"),
        ("sequence_parallel", bool, "sequence parallelism within the TP group"),
        ("recompute", Recompute, "recompute granularity"),
        ("recompute_method", RecomputeMethod, "how full recomputation picks layers"),
        ("recompute_layers", int, "layers per chunk (block) or per unit (uniform)"),
        ("recompute_modules", RecomputeModules, "modules of selective recomputation"),
        ("recompute_layer_ids", tuple, "global ids of the layers that are recomputed"),
        ("moe_dispatcher", MoeDispatcher, "MoE token dispatcher"),
        ("sync_free_stage", int, "Primus sync-free MoE stage"),
        ("precision", Precision, "number format of the GEMMs"),
        ("sharding", Sharding, "what data parallelism shards"),
        ("replicate", int, "replicas of the shards (HSDP, optimizer instances)"),
        ("cross_entropy_fusion", bool, "fused cross-entropy"),
        ("overlap", Overlap, "which communication is overlapped"),
    ]
    dtypes = {bool: np.bool_, str: np.int64, tuple: np.int64}
    return {name: Axis(name, kind, meaning, dtypes.get(kind, _INT)) for name, kind, meaning in rows}


AXES: dict[str, Axis] = _axes()


@dataclass(frozen=True)
class ConfigTable:
    """Many TrainingConfigs as columns of shape (n,).

    Enum axes hold their codes. ``layout`` holds indices into ``layouts`` and
    ``recompute_layer_ids`` indices into ``layer_id_sets``; index 0 is always the empty value.
    """

    tp: Column
    pp: Column
    vpp: Column
    layout: Column
    cp: Column
    cp_comm: Column
    ep: Column
    etp: Column
    mbs: Column
    schedule: Column
    microbatch_group: Column
    sequence_parallel: Column
    recompute: Column
    recompute_method: Column
    recompute_layers: Column
    recompute_modules: Column
    recompute_layer_ids: Column
    moe_dispatcher: Column
    sync_free_stage: Column
    precision: Column
    sharding: Column
    replicate: Column
    cross_entropy_fusion: Column
    overlap: Column
    layouts: tuple[str, ...] = ("",)
    layer_id_sets: tuple[tuple[int, ...], ...] = ((),)

    def __len__(self) -> int:
        return len(self.tp)

    def columns(self) -> dict[str, Column]:
        """Axis name -> column, in axis order."""
        return {name: getattr(self, name) for name in AXES}

    @classmethod
    def from_columns(
        cls,
        columns: Mapping[str, Any],
        layouts: Sequence[str] = ("",),
        layer_id_sets: Sequence[tuple[int, ...]] = ((),),
    ) -> ConfigTable:
        """A table from columns or scalars, broadcast together; axes left out keep their default."""
        defaults = TrainingConfig()
        values = {}
        for name, axis in AXES.items():
            default = 0 if axis.kind in (str, tuple) else getattr(defaults, name)
            values[name] = np.asarray(columns.get(name, default), dtype=axis.dtype)
        shape = np.broadcast_shapes((1,), *(v.shape for v in values.values()))
        full = {name: np.broadcast_to(v, shape) for name, v in values.items()}
        return cls(**full, layouts=tuple(layouts), layer_id_sets=tuple(layer_id_sets))

    @classmethod
    def from_configs(cls, configs: Iterable[TrainingConfig]) -> ConfigTable:
        """A table with one row a config, in order."""
        rows = list(configs)
        layouts, layer_id_sets = [""], [()]
        columns: dict[str, list[Any]] = {name: [] for name in AXES}
        for config in rows:
            for name in AXES:
                value = getattr(config, name)
                if name == "layout":
                    value = _index_of(layouts, value)
                elif name == "recompute_layer_ids":
                    value = _index_of(layer_id_sets, tuple(value))
                columns[name].append(value)
        arrays = {name: np.asarray(v, dtype=AXES[name].dtype) for name, v in columns.items()}
        return cls(**arrays, layouts=tuple(layouts), layer_id_sets=tuple(layer_id_sets))

    def config(self, row: int) -> TrainingConfig:
        """Row ``row`` as a TrainingConfig."""
        values: dict[str, Any] = {}
        for name, axis in AXES.items():
            value = getattr(self, name)[row]
            if name == "layout":
                values[name] = self.layouts[int(value)]
            elif name == "recompute_layer_ids":
                values[name] = self.layer_id_sets[int(value)]
            else:
                values[name] = axis.kind(value)
        return TrainingConfig(**values)

    def configs(self) -> Iterator[TrainingConfig]:
        """The rows as TrainingConfigs."""
        return (self.config(row) for row in range(len(self)))

    def take(self, rows: Any) -> ConfigTable:
        """The rows selected by indices, a mask or a slice."""
        picked = {name: column[rows] for name, column in self.columns().items()}
        return ConfigTable(**picked, layouts=self.layouts, layer_id_sets=self.layer_id_sets)

    def changed(self, **columns: Any) -> ConfigTable:
        """A copy with some columns replaced (broadcast to the length of the table)."""
        new = {
            name: np.broadcast_to(np.asarray(value, dtype=AXES[name].dtype), (len(self),))
            for name, value in columns.items()
        }
        return replace(self, **new)  # type: ignore[arg-type]

    def axes_changed(self, config: TrainingConfig) -> NDArray[np.int64]:
        """How many axes of every row differ from ``config``, shape (n,)."""
        held = ConfigTable.concat([ConfigTable.from_configs([config]), self])
        count = np.zeros(len(self), dtype=np.int64)
        for column in held.columns().values():
            count += column[1:] != column[0]
        return count

    def chunks(self, size: int) -> Iterator[ConfigTable]:
        """Consecutive slices of at most ``size`` rows (views, no copy)."""
        return (self.take(slice(start, start + size)) for start in range(0, len(self), size))

    @classmethod
    def concat(cls, tables: Sequence[ConfigTable]) -> ConfigTable:
        """The rows of several tables, in order; their layouts and layer sets are merged."""
        layouts, layer_id_sets = [""], [()]
        parts: dict[str, list[Column]] = {name: [] for name in AXES}
        for table in tables:
            layout_map = np.array([_index_of(layouts, text) for text in table.layouts])
            set_map = np.array([_index_of(layer_id_sets, ids) for ids in table.layer_id_sets])
            for name, column in table.columns().items():
                if name == "layout":
                    column = layout_map[column]
                elif name == "recompute_layer_ids":
                    column = set_map[column]
                parts[name].append(column)
        merged = {name: np.concatenate(columns) for name, columns in parts.items()}
        return cls(**merged, layouts=tuple(layouts), layer_id_sets=tuple(layer_id_sets))

    def data_parallel(self, num_gpus: Any) -> Column:
        """Data-parallel size of the dense part: world / (tp*pp*cp); exact for legal rows."""
        return np.asarray(num_gpus // (self.tp * self.pp * self.cp))

    def expert_data_parallel(self, num_gpus: Any) -> Column:
        """Data-parallel size of the experts: world / (etp*ep*pp); exact for legal rows."""
        return np.asarray(num_gpus // (self.etp * self.ep * self.pp))

    def microbatches(self, num_gpus: Any, global_batch_size: Any) -> Column:
        """Micro-batches a step runs through the pipeline: gbs / (mbs*dp), at least 1."""
        sequences = self.mbs * self.data_parallel(num_gpus)
        microbatches: Column = np.maximum(global_batch_size // np.maximum(sequences, 1), 1)
        return microbatches


_CONFIG_FIELDS = tuple(field.name for field in fields(TrainingConfig))
assert tuple(AXES) == _CONFIG_FIELDS, "AXES and TrainingConfig must list the same axes"


def _index_of(values: list[Any], value: Any) -> int:
    """Index of ``value`` in ``values``, appended where it is new."""
    if value not in values:
        values.append(value)
    return values.index(value)


def _parse_bool(name: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", "none", ""):
        return False
    raise InputError(f"{name} is {value!r}; use true or false.")


def _parse_positive(name: str, value: Any, smallest: int) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        raise InputError(f"{name} is {value!r}; use a whole number.") from None
    if number < smallest:
        raise InputError(f"{name} is {number}; use a whole number of at least {smallest}.")
    if number >= TOO_LARGE:
        raise InputError(f"{name} is {number}; use a whole number below {TOO_LARGE:,}.")
    return number


def _parse_layer_ids(value: Any) -> tuple[int, ...]:
    if value in (None, "", "none"):
        return ()
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(sorted({_parse_positive("recompute_layer_ids", part, 0) for part in parts}))
