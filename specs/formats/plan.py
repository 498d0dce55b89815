"""Plan YAML: workloads and clusters to weigh against each other; one page: docs/planning.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specs import catalog
from specs.cluster import Cluster, UsdPerGpuHour
from specs.errors import InputError
from specs.files import is_file
from specs.formats.cluster import MAX_GPUS, cluster_of, read_cluster, validated
from specs.formats.experiment import Experiment
from specs.formats.reader import read_experiment
from specs.formats.study import is_study, study_of
from specs.formats.yaml_files import as_mapping, fill_environment, read_chain
from specs.gpu import Gpu
from specs.names import Name
from specs.numbers import Number

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell of a CSV must not begin with: spreadsheets would run it."""
MAX_PAIRS = 100_000
MAX_SIZES = 10_000
_RANGE = re.compile(r"(?P<first>\d{1,8})\s*\.\.\s*(?P<last>\d{1,8})")

Tokens = Annotated[Number, Field(gt=0, le=1e18)]
Days = Annotated[Number, Field(gt=0, le=1e6)]


class PlanFile(BaseModel):
    """The fields of a plan YAML."""

    model_config = ConfigDict(extra="forbid")

    name: Name = ""
    tokens: Tokens | None = None
    deadline_days: Days | None = None
    goodput: Number = Field(1.0, gt=0, le=1)
    pue: Number = Field(1.0, ge=1, le=10)
    price_usd_per_gpu_hour: UsdPerGpuHour | None = None
    space: Literal["core", "full"] = "full"
    gpus: dict[str, Any] = Field(default_factory=dict)
    sources: dict[str, Any] = Field(default_factory=dict)
    workloads: dict[Name, Any] = Field(min_length=1)
    clusters: dict[Name, Any] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class PlanWorkload:
    """What is trained: fields of a study, or a file, with what it says of tokens and deadline."""

    name: str
    content: Mapping[str, Any] | None
    path: Path
    where: str
    tokens: float | None = None
    deadline_days: float | None = None

    def on(self, cluster: Cluster) -> Experiment:
        """The job on a cluster.

        Raises:
            InputError: what the workload names cannot be used.
        """
        if self.content is None:
            return read_experiment(self.path).on(cluster)
        return study_of(self.content, self.path, cluster, self.where).on(cluster)


@dataclass(frozen=True, kw_only=True)
class PlanCluster:
    """One size of a cluster; the sizes of one entry of ``clusters`` share its ``name``.

    ``hypothetical`` says in words what differs from the GPU of the catalog; empty where nothing.
    """

    name: str
    cluster: Cluster
    hypothetical: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a plan YAML asks; ``tokens`` and ``deadline_days`` hold where a workload has none."""

    name: str
    path: Path
    settings: PlanFile
    workloads: tuple[PlanWorkload, ...]
    clusters: tuple[PlanCluster, ...]

    def __len__(self) -> int:
        return len(self.workloads) * len(self.clusters)


def is_plan(content: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping looks like a plan."""
    return "workloads" in content and "clusters" in content


def read_plan(path: Path, extra: Mapping[str, Gpu] | None = None) -> Plan:
    """The plan of a YAML file. Paths in it are relative to the file.

    ``extra`` are GPUs beside the catalog's, by name; they take the place of the plan's own.

    Raises:
        InputError: a field is missing, unknown or out of range, or a cluster cannot be used. What
            is wrong with a workload on one cluster alone is told when that pair is projected.
    """
    content = as_mapping(fill_environment(read_chain(path), str(path)), str(path))
    file = validated(PlanFile, content, str(path))
    for name in (*file.workloads, *file.clusters):
        if name[:1] in FORMULA:
            raise InputError(
                f"{path}: the name {name[:40]!r} would be a formula in a spreadsheet; begin it "
                "with another character."
            )
    own = catalog.gpus_of(file.gpus, file.sources, str(path)) if file.gpus else {}
    gpus = {**own, **(extra or {})}
    workloads = tuple(_workload(name, value, path) for name, value in file.workloads.items())
    clusters = tuple(
        size for name, value in file.clusters.items() for size in _sizes(name, value, path, gpus)
    )
    pairs = len(workloads) * len(clusters)
    if pairs > MAX_PAIRS:
        raise InputError(
            f"{path} has {pairs:,} pairs of workload and cluster; a plan has at most "
            f"{MAX_PAIRS:,}, so split it."
        )
    return Plan(
        name=file.name or path.stem,
        path=path,
        settings=file,
        workloads=workloads,
        clusters=clusters,
    )


class _Own(BaseModel):
    """What a workload of a plan may say beside the fields of a study."""

    tokens: Tokens | None = None
    deadline_days: Days | None = None


def _workload(name: str, value: Any, path: Path) -> PlanWorkload:
    """A workload: the fields of a study, or ``file:`` (or just the name) of an input."""
    where = f"{path}: workloads.{name}"
    fields = {"file": value} if isinstance(value, str) else as_mapping(value, where)
    own = validated(_Own, {k: fields[k] for k in ("tokens", "deadline_days") if k in fields}, where)
    rest = {k: v for k, v in fields.items() if k not in ("tokens", "deadline_days")}
    if "file" in rest:
        if set(rest) != {"file"} or not isinstance(rest["file"], str):
            raise InputError(f"{where}: file takes the name of an input and nothing beside it.")
        found = path.parent / rest["file"]
        if not is_file(found):
            raise InputError(f"{where} names {rest['file']}, which is not beside {path}.")
        content = _study_fields(found)
        return PlanWorkload(
            name=name, content=content, path=found, where=str(found), **own.model_dump()
        )
    for key in ("cluster", "gpus"):
        if key in rest:
            raise InputError(f"{where}: {key} does not belong to a workload; put it in the plan.")
    if not is_study(rest):
        raise InputError(f"{where} names no model; write model: NAME, or file: INPUT.")
    return PlanWorkload(name=name, content=rest, path=path, where=where, **own.model_dump())


def _study_fields(path: Path) -> dict[str, Any] | None:
    """The fields of a study YAML; None where the file is another kind of input."""
    if path.suffix == ".json":
        return None
    content = as_mapping(fill_environment(read_chain(path), str(path)), str(path))
    return content if is_study(content) else None


def _sizes(name: str, value: Any, path: Path, gpus: Mapping[str, Gpu]) -> Iterator[PlanCluster]:
    """The clusters of one entry: a shorthand, a file, or fields with one or more ``num_nodes``."""
    where = f"{path}: clusters.{name}"
    if isinstance(value, str):
        named = path.parent / value if value.endswith((".yaml", ".yml")) else value
        yield PlanCluster(name=name, cluster=read_cluster(str(named), gpus), hypothetical="")
        return
    fields = as_mapping(value, where)
    for nodes in _node_counts(fields.get("num_nodes", 1), where):
        cluster = cluster_of({**fields, "num_nodes": nodes, "name": ""}, where, gpus)
        yield PlanCluster(name=name, cluster=cluster, hypothetical=_differs(fields))


def _differs(fields: Mapping[str, Any]) -> str:
    """Which properties are stated by the plan, in words."""
    stated = [f"{k} {v}" for k, v in (fields.get("overrides") or {}).items() if v is not None]
    scaled = (fields.get("scaled") or {}).items()
    factors = [f"{float(factor):g}x {key}" for key, factor in scaled if factor is not None]
    return ", ".join((*stated, *factors))


def _node_counts(value: Any, where: str) -> list[int]:
    """Node counts: a number, a list of them, or ``first..last`` for every count between.

    Raises:
        InputError: it is none of these.
    """
    match = _RANGE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is not None:
        first, last = int(match["first"]), int(match["last"])
        counts: list[Any] = list(range(first, min(last, first + MAX_SIZES) + 1))
    else:
        counts = value if isinstance(value, list) else [value]
    whole = all(type(count) is int and 0 < count <= MAX_GPUS for count in counts)
    if not counts or not whole or len(counts) > MAX_SIZES:
        raise InputError(
            f"{where}: num_nodes {str(value)[:60]} is no number of nodes; write 8, [8, 16, 32] or "
            "8..32 (every count between)."
        )
    return sorted(set(counts))
