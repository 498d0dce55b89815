"""Our own study YAML: what to train, on what, from which baseline, and what may change.

One page with every field: docs/study_yaml.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from specs import catalog
from specs.choices import Schedule, TrainingKind
from specs.cluster import Cluster, UsdPerGpuHour
from specs.config import AXES, TrainingConfig
from specs.errors import InputError
from specs.files import is_file
from specs.formats.cluster import cluster_of, read_cluster, validated
from specs.formats.experiment import Experiment, StudySettings
from specs.formats.huggingface import read_huggingface
from specs.formats.primus import read_primus
from specs.formats.yaml_files import as_mapping, fill_environment, read_chain
from specs.gpu import Gpu
from specs.layout import is_explicit, layout_vpp
from specs.model import Model
from specs.names import Name
from specs.numbers import Number, Whole
from specs.stack import Framework, Stack
from specs.workload import Workload

MAX_TOKENS = 2**40


class StackFile(BaseModel):
    """The software of a study; what is left out keeps the default of ``specs.stack.Stack``."""

    model_config = ConfigDict(extra="forbid")

    framework: Name | None = None
    version: Name | None = None
    gradient_bytes: Number | None = Field(None, ge=0, le=8)
    optimizer_bytes: Number | None = Field(None, ge=0, le=32)
    weight_bytes: Number | None = Field(None, gt=0, le=8)
    flash_attention: bool | None = None
    fused_rope: bool | None = None
    expandable_segments: bool | None = None
    cuda_graphs: bool | None = None
    full_iteration_graphs: bool | None = None
    compiled: bool | None = None
    compiled_loss: bool | None = None
    gradient_accumulation_fusion: bool | None = None
    grouped_gemm: bool | None = None
    one_peer_exchange: bool | None = None
    coarse_gathers: bool | None = None
    turbo: bool | None = None
    optimizer_offload_fraction: Number | None = Field(None, ge=0, le=1)
    runtime_gib: Number | None = Field(None, ge=0, le=1024)
    vocab_divisible_by: Whole | None = Field(None, gt=0, le=1 << 20)


class StudyFile(BaseModel):
    """The fields of a study YAML."""

    model_config = ConfigDict(extra="forbid")

    name: Name = ""
    model: str | dict[str, Any]
    seq_len: Whole | None = Field(None, gt=0, lt=MAX_TOKENS)
    global_batch_size: Whole | None = Field(None, gt=0, lt=MAX_TOKENS)
    kind: Literal["pretrain", "finetune", "lora"] | None = None
    lora_rank: Whole | None = Field(None, gt=0, lt=1 << 20)
    routing_imbalance: Number | None = Field(None, ge=1, le=1e6)
    capacity_factor: Number | None = Field(None, ge=0, le=1e6)
    target_tokens: Number | None = Field(None, gt=0, allow_inf_nan=False)
    cluster: str | dict[str, Any] | None = None
    gpus: dict[str, Any] = Field(default_factory=dict)
    sources: dict[str, Any] = Field(default_factory=dict)
    stack: StackFile = StackFile()
    baseline: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, Any] = Field(default_factory=dict)
    precision: str | list[str] | None = None
    objective: Literal["tokens_per_s_per_gpu", "usd_per_token", "step_time_s"] | None = None
    trials: Whole | None = Field(None, gt=0, le=10_000_000)
    seed: Whole | None = Field(None, ge=0, lt=2**32)
    price_usd_per_gpu_hour: UsdPerGpuHour | None = None


def is_study(content: Mapping[str, Any]) -> bool:
    """Whether a YAML mapping looks like a study."""
    return "model" in content


def read_study(path: Path, gpus: Mapping[str, Gpu] | None = None) -> Experiment:
    """The experiment of a study YAML. Paths in it are relative to the file.

    ``gpus`` are GPUs beside the catalog's, by name; they take the place of the study's own.

    Raises:
        InputError: a field is missing, unknown or out of range, or what it names cannot be used.
    """
    content = as_mapping(fill_environment(read_chain(path), str(path)), str(path))
    return study_of(content, path, gpus=gpus)


def study_of(
    content: Mapping[str, Any],
    path: Path,
    placed: Cluster | None = None,
    where: str = "",
    gpus: Mapping[str, Gpu] | None = None,
) -> Experiment:
    """The experiment of a study's fields; ``path`` is the file that they stand in.

    ``placed`` takes the place of the study's own cluster; ``where`` is what errors name instead of
    the file; ``gpus`` take the place of the study's own.

    Raises:
        InputError: as for ``read_study``.
    """
    where = where or str(path)
    study = validated(StudyFile, content, where)
    own = catalog.gpus_of(study.gpus, study.sources, where) if study.gpus else {}
    known = {**own, **(gpus or {})}
    below = _below(study, path, where)
    cluster = placed or _cluster(study, path, known)
    notes = list(below.notes) if isinstance(below, Experiment) else []
    found = Experiment(
        name=study.name or path.stem,
        workload=_workload(study, below, where),
        stack=_stack(study, below),
        framework_assumed=study.stack.framework is None and isinstance(below, Model),
        baseline=_baseline(study, below, where),
        stated=frozenset(study.baseline) if isinstance(below, Model) else None,
        cluster=cluster,
        gpus=known,
        gpu=below.gpu if isinstance(below, Experiment) else "",
        notes=tuple(notes),
        settings=StudySettings(
            axes=_axes(study, where),
            objective=study.objective,
            trials=study.trials,
            seed=study.seed,
        ),
        source=below.source if isinstance(below, Experiment) else None,
    )
    return found if cluster is None or not found.framework_assumed else found.on(cluster)


def _below(study: StudyFile, path: Path, where: str) -> Experiment | Model:
    """What ``model`` names: a Primus experiment, or a model."""
    where = f"{where}: model"
    if isinstance(study.model, dict):
        name = str(study.model.get("name") or study.name or path.stem)
        fields = {key: value for key, value in study.model.items() if key != "name"}
        return catalog.models_of({name: fields}, where)[catalog.normalised(name)]
    file = path.parent / study.model
    if study.model.endswith((".yaml", ".yml", ".json")):
        if not is_file(file):
            raise InputError(f"{where} names {study.model}, which is not beside {path}.")
        if study.model.endswith(".json"):
            return read_huggingface(file)
        return read_primus(file)
    return catalog.model(study.model)


def _cluster(study: StudyFile, path: Path, gpus: Mapping[str, Gpu]) -> Cluster | None:
    """The cluster, with the study's price where it states one."""
    if study.cluster is None:
        return None
    if isinstance(study.cluster, dict):
        cluster = cluster_of(study.cluster, f"{path}: cluster", gpus)
    elif study.cluster.endswith((".yaml", ".yml")):
        cluster = read_cluster(str(path.parent / study.cluster), gpus)
    else:
        cluster = read_cluster(study.cluster, gpus)
    if study.price_usd_per_gpu_hour is None:
        return cluster
    return cluster.model_copy(update={"price_usd_per_gpu_hour": study.price_usd_per_gpu_hour})


def _workload(study: StudyFile, below: Experiment | Model, where: str) -> Workload:
    """The workload: that of a Primus experiment with the study's fields, or the study's own."""
    fields = {
        name: getattr(study, name)
        for name in (
            "seq_len",
            "global_batch_size",
            "lora_rank",
            "routing_imbalance",
            "capacity_factor",
            "target_tokens",
        )
        if getattr(study, name) is not None
    }
    if study.kind is not None:
        fields["kind"] = TrainingKind.parse(study.kind)
    if isinstance(below, Experiment):
        workload = below.workload.model_copy(update=fields)
    else:
        for name in ("seq_len", "global_batch_size"):
            if name not in fields:
                raise InputError(f"{where}: {name} is missing; add it.")
        workload = Workload(model=below, **fields)
    _check_kind(workload, where)
    return workload


LEAST_CAPACITY = 0.1
"""Below it nine in ten tokens skip their experts (assumed: nobody trains so)."""


def _check_kind(workload: Workload, where: str) -> None:
    """Refuses adapters without a rank or wider than the model, a rank without adapters, and a
    capacity that drops nearly all.

    Raises:
        InputError: one of them.
    """
    rank, hidden = workload.lora_rank, workload.model.hidden_size
    if workload.kind is TrainingKind.LORA and not rank:
        raise InputError(f"{where}: lora_rank is missing for kind lora; add it.")
    if rank and workload.kind is not TrainingKind.LORA:
        raise InputError(f"{where}: lora_rank is for kind lora; add kind: lora, or leave it out.")
    if rank > hidden:
        raise InputError(
            f"{where}: lora_rank {rank} is more than the hidden size {hidden} of "
            f"{workload.model.name}; use a smaller rank."
        )
    if 0 < workload.capacity_factor < LEAST_CAPACITY:
        raise InputError(
            f"{where}: capacity_factor {workload.capacity_factor:g} drops nearly all tokens; use 0 "
            f"(dropless) or at least {LEAST_CAPACITY:g}."
        )


def _stack(study: StudyFile, below: Experiment | Model) -> Stack:
    """The stack of a Primus experiment, or the usual one, with changes."""
    changes = study.stack.model_dump(exclude_none=True)
    name = changes.pop("framework", None)
    if name is not None:
        changes |= {"framework": Framework.parse(name), "framework_name": name}
    if isinstance(below, Experiment):
        return Stack.model_validate(below.stack.model_dump() | changes)
    return Stack(**changes)


def _baseline(study: StudyFile, below: Experiment | Model, where: str) -> TrainingConfig:
    """The baseline config; what follows from other axes is filled in where it is not stated."""
    values = {name: _parsed(name, value, where) for name, value in study.baseline.items()}
    start = below.baseline if isinstance(below, Experiment) else TrainingConfig()
    config = start.changed(**values)
    follows: dict[str, Any] = {}
    if "sequence_parallel" not in values and "tp" in values:
        follows["sequence_parallel"] = config.tp > 1
    if is_explicit(config.layout) and "vpp" not in values:
        follows["vpp"] = layout_vpp(config.layout, config.pp)
    if "schedule" not in values and config.schedule in (
        Schedule.ONE_F_ONE_B,
        Schedule.INTERLEAVED,
    ):
        chunks = follows.get("vpp", config.vpp)
        follows["schedule"] = Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B
    return config.changed(**follows)


def _axes(study: StudyFile, where: str) -> dict[str, tuple[Any, ...]]:
    """Axis -> values it may take, in the order written, each once."""
    written = dict(study.axes)
    if study.precision is not None:
        if "precision" in written:
            raise InputError(f"{where}: precision is given twice, keep it or axes.precision.")
        written["precision"] = study.precision
    axes: dict[str, tuple[Any, ...]] = {}
    for name, values in written.items():
        choices = values if isinstance(values, list) else [values]
        if not choices:
            raise InputError(f"{where}: axes.{name} is empty; give a value or leave it out.")
        axes[name] = tuple(dict.fromkeys(_parsed(name, choice, where) for choice in choices))
    return axes


def _parsed(name: str, value: Any, where: str) -> Any:
    """One value of an axis.

    Raises:
        InputError: there is no such axis, or it does not have the value.
    """
    if name not in AXES:
        raise InputError(f"{where}: there is no axis {name!r}; the axes are {', '.join(AXES)}.")
    if value is None or isinstance(value, dict):
        raise InputError(f"{where}: axis {name} is {value!r}; give a value.")
    try:
        return AXES[name].parse(value)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
