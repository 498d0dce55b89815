"""``foretune export``: launch files of a config, or of a trial of a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from studies.cli.common import (
    ClusterOption,
    GpuFileOption,
    GpuOption,
    InputArgument,
    JsonOption,
    Output,
    SetOption,
    StorageOption,
    axis_values,
)

if TYPE_CHECKING:
    from specs.config import TrainingConfig

TrialOption = Annotated[
    int | None,
    typer.Option(
        "--trial",
        min=0,
        metavar="N",
        help="Export trial N of the study of this input instead of its own config.",
        show_default=False,
    ),
]
StudyNameOption = Annotated[
    str | None,
    typer.Option(
        "--study",
        metavar="NAME",
        help="Study that --trial counts in; the name of the input without it.",
        show_default=False,
    ),
]
FolderOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder for the files, made when needed.")
]


def export_command(
    source: InputArgument,
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    trial: TrialOption = None,
    study: StudyNameOption = None,
    storage: StorageOption = None,
    out: FolderOption = Path("export"),
    as_json: JsonOption = False,
) -> None:
    """Write launch files (Primus YAML, Megatron-LM arguments) that reproduce a config."""
    from specs.errors import InputError
    from studies.files import checked_folder, keep_inputs, name_from
    from studies.inputs import find_input, resolve
    from studies.launch import LAUNCH_FILES, write_launch_files
    from studies.wording import config_line

    output = Output(as_json)
    job = resolve(source, cluster, gpu, axis_values(settings or [], "--set"), gpu_file)
    checked_folder(out)
    name = study or name_from(job.experiment.name)
    config, stem = job.baseline, name_from(job.experiment.name)
    if trial is not None:
        config, stem = _config_of_trial(storage, name, trial), f"{name}_trial_{trial}"
    reasons = job.why_illegal(config)
    if reasons:
        raise InputError(f"the config cannot run on {job.cluster.name}: {' '.join(reasons)}")
    written = [out / f"{stem}{ending}" for ending in LAUNCH_FILES]
    keep_inputs(written, [find_input(source), cluster, gpu_file])
    files, refusals = write_launch_files(job, config, out, stem)
    output.notes((*job.notes, *(f"no {name}: {reason}" for name, reason in refusals.items())))
    if as_json:
        output.result({"config": config.as_labels(), "files": files, "not_written": refusals})
    else:
        output.say(config_line("", config), *(f"  {path}" for path in files))


def _config_of_trial(storage: str | None, name: str, number: int) -> TrainingConfig:
    from specs.errors import InputError
    from studies.ledger import read_trials
    from studies.storage import storage_address

    address = storage_address(storage, Path("results") / "foretune.db")
    trials = {trial.number: trial for trial in read_trials(address, name)}
    if number not in trials:
        raise InputError(
            f"the study {name!r} in {address.shown} has {len(trials)} trials, 0 to "
            f"{len(trials) - 1}, and none with the number {number}."
        )
    return trials[number].config
