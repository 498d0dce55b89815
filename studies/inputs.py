"""From what a person names (a file or a shipped study, a cluster, some axes) to a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from search.axes import parsed
from search.companions import with_companions
from specs import catalog
from specs.choices import TrainingKind
from specs.cluster import Cluster
from specs.config import AXES, ConfigTable
from specs.errors import InputError
from specs.files import path_exists
from specs.formats.cluster import read_cluster
from specs.formats.experiment import Experiment
from specs.formats.reader import NO_WORKLOAD, default_workload, read_experiment
from specs.gpu import Gpu
from studies.job import Job
from studies.start import started
from surrogate.memory import memory

WORKLOAD_KEYS = {
    "seq_len": "seq_len",
    "gbs": "global_batch_size",
    "kind": "kind",
    "lora_rank": "lora_rank",
    "routing_imbalance": "routing_imbalance",
    "capacity_factor": "capacity_factor",
}
"""``--set`` names that belong to the workload, not to the config."""


def shipped_studies() -> dict[str, Path]:
    """Name -> file of the training studies that come with foretune."""
    folder = Path(str(resources.files("studies")))
    # Those of ``foretune toolbox`` and ``plan`` lie beside them and have formats of their own.
    other = ("toolbox_", "plan_")
    paths = [path for path in folder.glob("*.yaml") if not path.stem.startswith(other)]
    return {path.stem: path for path in sorted(paths)}


def find_input(text: str) -> Path:
    """The file that ``text`` names: a path, or a shipped study.

    Raises:
        InputError: it is neither.
    """
    path = Path(text)
    if path_exists(path):
        return path
    studies = shipped_studies()
    if text in studies:
        return studies[text]
    raise InputError(
        f"{text} is neither a file nor a shipped study; the shipped studies are "
        f"{', '.join(studies)}."
    )


def resolve(
    text: str,
    cluster: str | None = None,
    gpu: str | None = None,
    settings: Mapping[str, str] | None = None,
    gpu_file: Path | None = None,
    pins: Mapping[str, Sequence[Any]] | None = None,
    as_stated: bool = False,
) -> Job:
    """The job that a command line describes.

    Without a cluster (given or in the file) it is the fewest whole nodes on which the baseline is
    legal, and fits where more nodes make it fit. The baseline of an input that states no layout is
    the usual start (``studies.start``); with ``as_stated`` axes that it leaves out are at their
    default.

    Args:
        text: a file or a shipped study.
        cluster, gpu: where, or on what.
        settings: axis or workload field -> value.
        gpu_file: GPUs beside the catalog.
        pins: axis -> the only labels that the study may give it.
        as_stated: see above.

    Raises:
        InputError: a part cannot be used.
    """
    given = catalog.read_gpus(gpu_file)
    experiment = changed(read_experiment(find_input(text), given), settings or {})
    gpus = {**experiment.gpus, **given}
    experiment = pinned(experiment, pins or {})
    place = unchanged if as_stated else started
    no_notes: tuple[str, ...] = ()
    if cluster is not None:
        if gpu is not None:
            raise InputError("--cluster already names the GPU; leave out --gpu.")
        chosen, notes = read_cluster(cluster, gpus), no_notes
    elif experiment.cluster is not None and gpu is None:
        chosen, notes = experiment.cluster, no_notes
    else:
        chosen, notes = smallest_cluster(experiment, gpu, gpus, place)
    placed = experiment.on(chosen)
    return place(Job(placed, chosen, (*placed.notes, *notes)))


def changed(experiment: Experiment, settings: Mapping[str, str]) -> Experiment:
    """The experiment with axes of its baseline, or workload fields, set to other values.

    Raises:
        InputError: a name or a value is not known.
    """
    axes: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        if name in AXES:
            axes[name] = AXES[name].parse(value)
        elif name in WORKLOAD_KEYS:
            fields[WORKLOAD_KEYS[name]] = _workload_value(name, value)
        else:
            known = ", ".join((*AXES, *WORKLOAD_KEYS))
            raise InputError(f"there is no axis {name!r}; --set takes {known}.")
    baseline = with_companions(experiment.baseline, axes)
    workload = experiment.workload.model_copy(update=fields)
    per_rank = 0 if "global_batch_size" in fields else experiment.sequences_per_data_parallel
    notes = tuple(
        kept
        for note in experiment.notes
        for kept in (default_workload(settings) if note.startswith(NO_WORKLOAD) else (note,))
    )
    return replace(
        experiment,
        baseline=baseline,
        workload=workload,
        notes=notes,
        sequences_per_data_parallel=per_rank,
        stated=None if experiment.stated is None else experiment.stated | frozenset(axes),
    )


def unchanged(job: Job) -> Job:
    """The job with the baseline as it is stated."""
    return job


def pinned(experiment: Experiment, values: Mapping[str, Sequence[Any]]) -> Experiment:
    """The experiment with axes narrowed further: axis -> the only labels it may take.

    Raises:
        InputError: an axis or a value is not known.
    """
    settings = experiment.settings
    axes = {**settings.axes, **parsed(values)}
    return replace(experiment, settings=replace(settings, axes=axes))


def _workload_value(name: str, value: str) -> Any:
    if name == "kind":
        return TrainingKind.parse(value)
    try:
        number = float(value) if name in ("routing_imbalance", "capacity_factor") else int(value)
    except ValueError:
        kind = "a number" if name in ("routing_imbalance", "capacity_factor") else "a whole number"
        raise InputError(f"--set {name}={value}: use {kind}.") from None
    smallest = {"routing_imbalance": 1.0, "capacity_factor": 0.0, "lora_rank": 0}.get(name, 1)
    if not smallest <= number < 2**40:
        raise InputError(f"--set {name}={value}: use a number of at least {smallest}, below 2^40.")
    return number


MOST_GPUS = 2**18


def smallest_cluster(
    experiment: Experiment,
    gpu: str | None,
    gpus: Mapping[str, Gpu],
    place: Callable[[Job], Job],
) -> tuple[Cluster, tuple[str, ...]]:
    """The fewest whole nodes on which the baseline is legal, and fits if any size makes it fit.

    ``place`` gives a job the baseline that it has on its cluster.

    Raises:
        InputError: no GPU is named, or the baseline is legal on no number of nodes.
    """
    name = gpu or experiment.gpu
    if not name:
        raise InputError(
            "neither the input nor its path names a GPU; give --gpu MI355X or --cluster 8xMI355X."
        )
    chip = catalog.gpu(name, gpus)
    legal: list[Cluster] = []
    for count in _node_counts(experiment, chip.gpus_per_node):
        cluster = _nodes(chip, count)
        placed = place(Job(experiment.on(cluster), cluster, ()))
        if placed.why_illegal(placed.baseline):
            continue
        legal.append(cluster)
        if _fits(placed):
            why = "the fewest nodes on which the config is legal and fits"
            return cluster, (_assumed(cluster, gpu, why),)
    if legal:
        why = "the fewest nodes on which the config is legal; no number of nodes makes it fit"
        return legal[0], (_assumed(legal[0], gpu, why),)
    smallest = _nodes(chip, -(-experiment.min_gpus // chip.gpus_per_node))
    placed = place(Job(experiment.on(smallest), smallest, ()))
    because = placed.why_illegal(placed.baseline)
    raise InputError(
        f"the config is legal on no number of {chip.name} nodes; on {smallest.num_nodes}: "
        f"{because[0] if because else 'its batch divides over none of them.'}"
    )


def _node_counts(experiment: Experiment, gpus_per_node: int) -> list[int]:
    """Whole nodes that hold whole replicas and divide the global batch, fewest first."""
    config, batch = experiment.baseline, experiment.workload.global_batch_size
    replica = config.tp * config.pp * config.cp
    if experiment.sequences_per_data_parallel:
        sizes = [replica * ranks for ranks in (2**power for power in range(19))]
    else:
        sizes = [replica * ranks for ranks in _divisors(max(batch // config.mbs, 1))]
    fitting = [size for size in sizes if size % gpus_per_node == 0 and size <= MOST_GPUS]
    return [size // gpus_per_node for size in sorted(fitting)]


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def _nodes(gpu: Gpu, count: int) -> Cluster:
    return Cluster(
        name="",
        gpu=gpu,
        num_nodes=count,
        gpus_per_node=gpu.gpus_per_node,
        price_usd_per_gpu_hour=None,
    )


def _fits(job: Job) -> bool:
    cases = job.cases(ConfigTable.from_configs([job.baseline]))
    return bool(memory(cases).device_gib[0] <= job.cluster.gpu.hbm_gib.value)


def _assumed(cluster: Cluster, gpu: str | None, why: str) -> str:
    source = "--gpu" if gpu else "the path of the input"
    return (
        f"no cluster was given: {cluster.num_nodes} x {cluster.gpus_per_node} "
        f"{cluster.gpu.name} ({why}; the GPU is from {source})."
    )
