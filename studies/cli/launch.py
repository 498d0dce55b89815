"""``foretune launch``: runs what was asked, here or through Slurm, and tells the study."""

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
    OutOption,
    Output,
    SetOption,
    StorageOption,
    axis_values,
)

if TYPE_CHECKING:
    from collectors.launchers.launch import Launcher

PLACES = ("local", "slurm")


def launch_command(
    source: InputArgument,
    on: Annotated[str, typer.Option("--on", metavar="PLACE", help="Where: local or slurm.")],
    run: Annotated[
        list[int] | None,
        typer.Option("--run", min=0, help="Number of a run; all that wait without it."),
    ] = None,
    write_only: Annotated[
        bool, typer.Option("--write-only", help="Write the files for review; start nothing.")
    ] = False,
    command: Annotated[
        str,
        typer.Option("--command", metavar="CMD", help="Run this on every node, not launch.sh."),
    ] = "",
    workdir: Annotated[
        Path | None,
        typer.Option("--workdir", metavar="DIR", help="Where it runs, such as a checkout."),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option("--time-limit", metavar="TIME", help="Of a run (twice what is expected)."),
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option("--sbatch", metavar="OPTION=VALUE", help="Option of sbatch; repeatable."),
    ] = None,
    srun: Annotated[
        list[str] | None,
        typer.Option("--srun", metavar="ARGUMENT", help="Argument of srun; repeatable."),
    ] = None,
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    storage: StorageOption = None,
    out: OutOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Run for real what foretune ask asked, watch it, and tell the study what came back."""
    import shlex

    from studies.files import checked_folder, name_from
    from studies.inputs import resolve
    from studies.launching import LaunchOptions, launch_of, launch_runs, outstanding
    from studies.real_runs import RealRuns
    from studies.run_requests import duration_s
    from studies.storage import storage_address

    output = Output(as_json)
    launcher = _launcher(on, sbatch or [], srun or [])
    job = resolve(source, cluster, gpu, axis_values(settings or [], "--set"), gpu_file)
    name = name_from(job.experiment.name)
    checked_folder(out)
    address = storage_address(storage, out / "foretune.db")
    runs = RealRuns.open(job, address, name, create=False)
    output.notes([note for note in (*job.notes, runs.note) if note])
    asked = outstanding(runs, run or [])
    options = LaunchOptions(
        folder=out / runs.name,
        command=tuple(shlex.split(command)),
        workdir=workdir,
        time_limit_s=duration_s(time_limit, "--time-limit") if time_limit else None,
    )
    if write_only:
        files = [path for a in asked for path in launcher.write(launch_of(runs, a, options))]
        output.say(*map(str, files))
        output.result({"study_name": runs.name, "files": [str(path) for path in files]})
        return
    launched = []
    with output.progress(f"runs on {on}", len(asked)) as advance:
        for done in launch_runs(runs, asked, launcher, options, address):
            launched.append(done)
            output.say(f"run {done.run} {done.ending}: {done.reason}", f"  {done.told}")
            advance(1)
    output.result({"study_name": runs.name, "runs": [done.as_json() for done in launched]})


def _launcher(place: str, sbatch: list[str], srun: list[str]) -> Launcher:
    """The launcher that ``--on`` names."""
    from collectors.launchers.local import Local
    from collectors.launchers.slurm import Slurm
    from specs.errors import InputError

    if place not in PLACES:
        raise InputError(f"--on {place!r} is no place; use one of {', '.join(PLACES)}.")
    if place == "slurm":
        return Slurm(axis_values(sbatch, "--sbatch"), tuple(srun))
    if sbatch or srun:
        raise InputError("--sbatch and --srun are for --on slurm.")
    return Local()
