"""Clusters: the shorthand ``8x8xMI355X``, own YAML, Primus target-cluster and hardware YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specs import catalog
from specs.cluster import SHORTHAND, Cluster, UsdPerGpuHour
from specs.errors import InputError
from specs.files import is_file
from specs.formats.yaml_files import as_mapping, fill_environment, read_yaml
from specs.gpu import LARGEST, Gpu
from specs.names import Name
from specs.numbers import Number, Whole
from specs.provenance import Quantity

MAX_GPUS = 2**20
"""Ten times the largest training clusters of 2026; beyond it is a typing error (chosen)."""
_YAML_ENDINGS = (".yaml", ".yml")

Schema = TypeVar("Schema", bound=BaseModel)
Positive = Field(None, gt=0, lt=LARGEST)
Factor = Field(None, ge=1e-3, le=1e3)


Peak = Annotated[Number, Field(gt=0, lt=LARGEST)]


class Overrides(BaseModel):
    """Properties of the GPU and its network that differ in this cluster, per GPU.

    ``peak_flops`` is by GEMM format; formats that it leaves out stay.
    """

    model_config = ConfigDict(extra="forbid")

    hbm_gib: Number | None = Positive
    hbm_bytes_per_s: Number | None = Positive
    peak_flops: dict[str, Peak] | None = None
    power_w: Number | None = Positive
    link_bytes_per_s: Number | None = Positive
    link_latency_s: Number | None = Positive
    link_topology: Literal["mesh", "switch"] | None = None
    scale_up_gpus: Whole | None = Field(None, gt=0, le=MAX_GPUS)
    nic_bytes_per_s: Number | None = Positive
    nic_latency_s: Number | None = Positive


class Scaled(BaseModel):
    """Hardware that does not exist (yet): factors on properties of the GPU and its network.

    ``peak_flops`` scales the peak of every GEMM format.
    """

    model_config = ConfigDict(extra="forbid")

    hbm_gib: Number | None = Factor
    hbm_bytes_per_s: Number | None = Factor
    peak_flops: Number | None = Factor
    power_w: Number | None = Factor
    link_bytes_per_s: Number | None = Factor
    link_latency_s: Number | None = Factor
    nic_bytes_per_s: Number | None = Factor
    nic_latency_s: Number | None = Factor


class ClusterFile(BaseModel):
    """A cluster of a user's YAML: a GPU of the catalog, counts, price and what differs.

    ``overrides`` state other values and ``scaled`` factors on them; values come first.
    """

    model_config = ConfigDict(extra="forbid")

    name: Name = ""
    gpu: Name
    num_nodes: Whole = Field(1, gt=0, le=MAX_GPUS)
    gpus_per_node: Whole | None = Field(None, gt=0, le=MAX_GPUS)
    price_usd_per_gpu_hour: UsdPerGpuHour | None = None
    overrides: Overrides = Overrides()
    scaled: Scaled = Scaled()


class _HardwareConfig(BaseModel):
    """``hardware_config`` of a Primus hardware YAML: rates in GB/s, latencies in microseconds."""

    model_config = ConfigDict(extra="ignore")

    node_bw: Number | None = Positive
    node_lat: Number | None = Positive
    pod_bw: Number | None = Positive
    pod_lat: Number | None = Positive
    node_size: Whole | None = Field(None, gt=0, le=MAX_GPUS)
    nics_per_node: Whole | None = Field(None, gt=0, le=MAX_GPUS)
    node_topology: Literal["mesh", "switch"] | None = None


class _TargetCluster(BaseModel):
    """``target_cluster`` of a Primus tuning-agent YAML."""

    model_config = ConfigDict(extra="ignore")

    name: Name = ""
    num_nodes: Whole = Field(gt=0, le=MAX_GPUS)
    gpus_per_node: Whole = Field(8, gt=0, le=MAX_GPUS)
    gpu_arch: Name
    hardware_config: str | None = None


def is_cluster(content: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping describes a cluster and not a training job."""
    return any(key in content for key in ("target_cluster", "hardware_config", "num_nodes"))


def read_cluster(text: str, gpus: Mapping[str, Gpu] | None = None) -> Cluster:
    """The cluster of a shorthand or of a YAML file; ``gpus`` are GPUs beside the catalog's.

    Raises:
        InputError: the text is neither, or the file contradicts itself or names an unknown GPU.
    """
    text = text.strip()
    match = SHORTHAND.match(text)
    path = Path(text)
    if match is None or path.suffix in _YAML_ENDINGS:
        if is_file(path):
            return _read_file(path, gpus)
        raise InputError(
            f"cluster {text[:80]!r} is neither a YAML file nor like 64xMI355X or 8x8xMI355X."
        )
    gpu = catalog.gpu(match["gpu"], gpus)
    count = int(match["gpus"][:12])
    if match["nodes"]:
        return _built("", gpu, int(match["nodes"][:12]), count, None)
    per_node = min(gpu.gpus_per_node, count)
    if per_node and count % per_node:
        raise InputError(
            f"cluster {text}: {count} GPUs are no whole nodes of {per_node} {gpu.name}; write "
            f"NODESxGPUSx{gpu.name} for other nodes."
        )
    return _built("", gpu, count // max(per_node, 1), per_node, None)


def cluster_of(
    content: Mapping[str, Any], where: str, gpus: Mapping[str, Gpu] | None = None
) -> Cluster:
    """The cluster of a mapping in our own format (a file, or ``cluster:`` of a study).

    Raises:
        InputError: a field is missing, unknown or out of range, or the GPU is not known.
    """
    fields = validated(ClusterFile, content, where)
    gpu = _overridden(catalog.gpu(fields.gpu, gpus), fields.overrides, where)
    gpu = _scaled(gpu, fields.scaled, where)
    per_node = fields.gpus_per_node or gpu.gpus_per_node
    return _built(fields.name, gpu, fields.num_nodes, per_node, fields.price_usd_per_gpu_hour)


def validated(schema: type[Schema], content: Mapping[str, Any], where: str) -> Schema:
    """``content`` in a schema; the first fault as one sentence.

    Raises:
        InputError: the content does not follow the schema.
    """
    try:
        return schema.model_validate(dict(content))
    except ValidationError as error:
        raise InputError(f"{where}: {first_fault(error)}.") from None


def first_fault(error: ValidationError) -> str:
    """The first fault of a validation as a sentence without its full stop."""
    fault = error.errors()[0]
    field = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        return f"there is no field {field!r} here"
    if fault["type"] == "missing":
        return f"{field} is missing; add it"
    problem = " ".join(fault["msg"].removeprefix("Value error, ").split())
    return f"{field}: {problem}" if field else problem


def _built(name: str, gpu: Gpu, nodes: int, per_node: int, price: float | None) -> Cluster:
    """A cluster of a size that can exist."""
    if not 0 < nodes * per_node <= MAX_GPUS:
        raise InputError(
            f"a cluster of {nodes:,} nodes with {per_node:,} GPUs is not possible; use 1 to "
            f"{MAX_GPUS:,} GPUs."
        )
    return Cluster(
        name=name,
        gpu=gpu,
        num_nodes=nodes,
        gpus_per_node=per_node,
        price_usd_per_gpu_hour=price,
    )


def _read_file(path: Path, gpus: Mapping[str, Gpu] | None) -> Cluster:
    """The cluster of a YAML file in any of the three formats."""
    content = as_mapping(fill_environment(read_yaml(path), str(path)), str(path))
    if "target_cluster" in content:
        return _target_cluster(content, path, gpus)
    if "hardware_config" in content:
        gpu = catalog.gpu(path.stem, gpus)
        gpu, size = _with_hardware(gpu, content, path, gpu.gpus_per_node)
        return _built("", gpu, 1, size, None)
    return cluster_of(content, str(path), gpus)


def _target_cluster(
    content: Mapping[str, Any], path: Path, gpus: Mapping[str, Gpu] | None
) -> Cluster:
    """A Primus target cluster with the network of its hardware YAML."""
    body = as_mapping(content["target_cluster"], f"{path}: target_cluster")
    target = validated(_TargetCluster, body, f"{path}: target_cluster")
    gpu = catalog.gpu(target.gpu_arch, gpus)
    if target.hardware_config:
        hardware = _find_beside(path, target.hardware_config)
        network = as_mapping(fill_environment(read_yaml(hardware), str(hardware)), str(hardware))
        gpu, size = _with_hardware(gpu, network, hardware, target.gpus_per_node)
        if size != target.gpus_per_node:
            raise InputError(
                f"{path} has {target.gpus_per_node} GPUs a node, but node_size of {hardware} is "
                f"{size}; make them agree."
            )
    optimization = as_mapping(content.get("optimization"), f"{path}: optimization")
    capacity = optimization.get("hbm_capacity_gb")
    if capacity is not None:
        fields = validated(Overrides, {"hbm_gib": capacity}, f"{path}: hbm_capacity_gb")
        gpu = _overridden(gpu, fields, str(path))
    return _built(target.name, gpu, target.num_nodes, target.gpus_per_node, None)


def _find_beside(path: Path, name: str) -> Path:
    """The file ``name`` seen from the folder of ``path`` or from one above it.

    Raises:
        InputError: no folder has it.
    """
    for folder in path.resolve().parents:
        if is_file(folder / name):
            return folder / name
    raise InputError(f"{path} names hardware_config {name}, which no folder above it holds.")


def _with_hardware(
    gpu: Gpu, content: Mapping[str, Any], path: Path, per_node: int
) -> tuple[Gpu, int]:
    """The GPU with the network of a Primus hardware YAML, and GPUs a node."""
    body = as_mapping(content.get("hardware_config"), f"{path}: hardware_config")
    fields = validated(_HardwareConfig, body, f"{path}: hardware_config")
    size = fields.node_size or per_node
    nics = fields.nics_per_node or size
    stated = {
        "link_bytes_per_s": fields.node_bw and fields.node_bw * 1e9,
        "link_latency_s": fields.node_lat and fields.node_lat * 1e-6,
        "link_topology": fields.node_topology,
        "nic_bytes_per_s": fields.pod_bw and fields.pod_bw * 1e9 * nics / size,
        "nic_latency_s": fields.pod_lat and fields.pod_lat * 1e-6,
    }
    overrides = validated(Overrides, stated, f"{path}: hardware_config")
    return _overridden(gpu, overrides, str(path)), size


def _overridden(gpu: Gpu, overrides: Overrides, where: str) -> Gpu:
    """The GPU with some properties replaced, which name the file as their source."""
    changes: dict[str, Any] = {}
    for name, value in overrides.model_dump(exclude_none=True).items():
        old = getattr(gpu, name)
        if isinstance(old, dict):
            unknown = set(value) - set(old)
            if unknown:
                raise InputError(
                    f"{where}: {name}: {gpu.name} has no format {min(unknown)!r}; it has "
                    f"{', '.join(old)}."
                )
            changes[name] = old | {key: _stated(new, where) for key, new in value.items()}
        elif not isinstance(old, Quantity):
            changes[name] = value
        elif old.value != value:
            changes[name] = _stated(value, where)
    return gpu.model_copy(update=changes)


def _scaled(gpu: Gpu, factors: Scaled, where: str) -> Gpu:
    """The GPU with some properties multiplied."""
    changes: dict[str, Any] = {}
    for name, factor in factors.model_dump(exclude_none=True).items():
        old = getattr(gpu, name)
        source = f"{factor:g} times the value of {gpu.name}, {where}"
        if isinstance(old, dict):
            changes[name] = {
                key: _stated(quantity.value * factor, source) for key, quantity in old.items()
            }
        else:
            changes[name] = _stated(old.value * factor, source)
    return _checked(gpu.model_copy(update=changes), where)


def _checked(gpu: Gpu, where: str) -> Gpu:
    """The GPU if all of its numbers can be.

    Raises:
        InputError: a number is not above 0 or not of this world.
    """
    try:
        return Gpu.model_validate(gpu.model_dump())
    except ValidationError as error:
        raise InputError(f"{where}: {first_fault(error)}.") from None


def _stated(value: float, where: str) -> Quantity:
    return Quantity(value=value, kind="assumed", source=where)
