"""``foretune tell``: what came back from real runs, and what the ranking is now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from studies.cli.ask import StorageOption
from studies.cli.common import (
    ClusterOption,
    GpuFileOption,
    GpuOption,
    InputArgument,
    JsonOption,
    OutOption,
    Output,
    SetOption,
    axis_values,
)
from studies.cli.validate import CalibrationOption


def tell_command(
    source: InputArgument,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Result files of measure.sh, or one log (--run)."),
    ] = None,
    run: Annotated[int | None, typer.Option("--run", min=0, help="Number of the run.")] = None,
    speed: Annotated[
        float | None, typer.Option("--speed", metavar="X", help="Measured tokens/s/GPU.")
    ] = None,
    peak: Annotated[
        float | None, typer.Option("--peak", metavar="GIB", help="Measured peak of a GPU, GiB.")
    ] = None,
    counter: Annotated[
        str, typer.Option("--counter", help="What --peak counts: device, reserved or allocated.")
    ] = "device",
    oom: Annotated[bool, typer.Option("--oom", help="The run ran out of memory.")] = False,
    crash: Annotated[
        str, typer.Option("--crash", metavar="WHY", help="The run crashed, and why.")
    ] = "",
    lost: Annotated[bool, typer.Option("--lost", help="Nothing will be heard of the run.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Keep another result of a told run as a repeat.")
    ] = False,
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    calibration: CalibrationOption = None,
    storage: StorageOption = None,
    out: OutOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Tell what came back from runs that were asked, in any order; the ranking follows."""
    from specs.errors import InputError
    from studies.calibrating import calibrated_job
    from studies.files import checked_folder, name_from
    from studies.inputs import resolve
    from studies.real_runs import Outcome, RealRuns
    from studies.run_ranking import ranking_after, show_ranking, write_calibrated
    from studies.run_results import read_result
    from studies.showcase import show_told
    from studies.storage import storage_address
    from studies.turns import TELLING_S, only_driver

    output = Output(as_json)
    by_hand = speed is not None or oom or bool(crash) or lost
    if bool(files) == by_hand:
        raise InputError("tell either files, or --run N with --speed, --oom, --crash or --lost.")
    if by_hand and run is None:
        raise InputError("say with --run N which run this is of.")
    job = resolve(source, cluster, gpu, axis_values(settings or [], "--set"), gpu_file)
    job = calibrated_job(job, calibration)
    name = name_from(job.experiment.name)
    checked_folder(out)
    address = storage_address(storage, out / "foretune.db")
    with only_driver(address, out / name, f"{name}/measured", TELLING_S):
        measured = RealRuns.open(job, address, name, create=False)
        told: list[tuple[int, Outcome]] = []
        if by_hand:
            assert run is not None
            outcome = Outcome(speed, peak, counter, oom, crash, lost)
            told.append((run, outcome))
        else:
            # Every file is read before anything is written: all are told, or none.
            configs = {asked.number: asked.config for asked in measured.runs()}
            told += [read_result(job, measured.name, path, run, configs) for path in files or ()]
        for number, outcome in told:
            measured.check(number, outcome, again)
        sentences = [measured.tell(number, outcome, again) for number, outcome in told]
        # Still in turn: what is written last must be what was told last.
        after = ranking_after(measured)
        paths = write_calibrated(measured, out / measured.name)
        show_told(address, out, measured, after)
    output.notes([note for note in (*job.notes, measured.note, measured.refutations) if note])
    if as_json:
        content: dict[str, Any] = {
            "study_name": measured.name,
            "told": sentences,
            "runs": [asked.as_json() for asked in measured.runs()],
            "ranking": [entry.as_json() for entry in after],
            "files": [str(path) for path in paths],
        }
        output.result(content)
        return
    output.say(*sentences)
    show_ranking(output, measured, after)
    output.say("", *(str(path) for path in paths))
