"""Any input file to an Experiment: the format is told from the content, not from the name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from specs.config import TrainingConfig
from specs.errors import InputError
from specs.files import input_file, is_folder
from specs.formats.cluster import is_cluster
from specs.formats.experiment import Experiment
from specs.formats.huggingface import is_huggingface, model_of, read_huggingface
from specs.formats.primus import is_primus, read_primus
from specs.formats.primus.reader import gpu_of_path
from specs.formats.study import is_study, read_study
from specs.formats.yaml_files import read_chain
from specs.gpu import Gpu
from specs.stack import Stack
from specs.workload import Workload

DEFAULT_SEQ_LEN = 4096
DEFAULT_TOKENS_PER_STEP = 4 * 2**20
NO_WORKLOAD = "a model config names no workload"


def read_experiment(path: Path, gpus: Mapping[str, Gpu] | None = None) -> Experiment:
    """The training job of a Primus YAML, a study YAML or a Hugging Face ``config.json``.

    ``gpus`` are GPUs beside the catalog's, by name, that a study may name.

    Raises:
        InputError: the file cannot be read or is none of these.
    """
    if is_folder(path):
        path = path / "config.json"
    if path.suffix == ".json":
        return _of_model(path)
    content = read_chain(input_file(path, again=True))
    if is_primus(content):
        return read_primus(path)
    if is_study(content):
        return read_study(path, gpus)
    if is_huggingface(content):
        return _experiment(model_of(content, str(path), path.stem), path)
    if is_cluster(content):
        raise InputError(f"{path} describes a cluster, not a training job; give it as --cluster.")
    raise InputError(
        f"{path} is neither a Primus experiment (modules:), a study (model:) nor a Hugging Face "
        "config (model_type)."
    )


def default_workload(stated: Collection[str]) -> tuple[str, ...]:
    """The note on the defaults of a model config; none where all are stated.

    Args:
        stated: names of ``--set`` that need no default.
    """
    batch = DEFAULT_TOKENS_PER_STEP // DEFAULT_SEQ_LEN
    values = {"seq_len": DEFAULT_SEQ_LEN, "gbs": batch}
    assumed = {name: value for name, value in values.items() if name not in stated}
    if not assumed:
        return ()
    defaults = " and ".join(f"{name} {value}" for name, value in assumed.items())
    options = " and ".join(f"--set {name}=..." for name in assumed)
    state = "state them" if len(assumed) > 1 else "states another"
    return (f"{NO_WORKLOAD}: {defaults.replace(' ', ' is ', 1)} unless {options} {state}.",)


def _of_model(path: Path) -> Experiment:
    return _experiment(read_huggingface(path), path)


def _experiment(model: Any, path: Path) -> Experiment:
    """A job that pretrains ``model`` with a usual sequence length and batch, which are noted."""
    batch = DEFAULT_TOKENS_PER_STEP // DEFAULT_SEQ_LEN
    return Experiment(
        name=model.name,
        workload=Workload(model=model, seq_len=DEFAULT_SEQ_LEN, global_batch_size=batch),
        stack=Stack(),
        baseline=TrainingConfig(),
        stated=frozenset(),
        gpu=gpu_of_path(path),
        notes=default_workload(()),
        framework_assumed=True,
        source=path,
    )
