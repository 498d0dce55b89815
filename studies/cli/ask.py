"""``foretune ask``: the next configs to run for real, with their launch files."""

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
    SeedOption,
    SetOption,
    axis_values,
)
from studies.cli.llm_options import (
    HintOption,
    LlmCostOption,
    LlmDeadlineOption,
    LlmOption,
    LlmProgramOption,
    LlmTokensOption,
    LlmUrlOption,
    llm_options,
)
from studies.cli.validate import CalibrationOption

if TYPE_CHECKING:
    from studies.run_requests import Asked

StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where runs are kept; OUT/foretune.db without it.",
        show_default=False,
    ),
]
SlotOption = Annotated[
    str, typer.Option("--slot", metavar="TIME", help="Cluster time to fill: 2h, 90m.")
]
FromStudyOption = Annotated[
    str | None,
    typer.Option(
        "--from-study",
        metavar="NAME",
        help="Learn from the measured runs of another study: NAME, or STORAGE#NAME.",
        show_default=False,
    ),
]
RunsOption = Annotated[int, typer.Option("--runs", min=1, help="Runs at most.")]
StepsOption = Annotated[int, typer.Option("--steps", min=3, help="Steps of each run.")]
OverheadOption = Annotated[
    str, typer.Option("--overhead", metavar="TIME", help="Start-up and teardown of a run.")
]


def ask_command(
    source: InputArgument,
    slot: SlotOption = "2h",
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    calibration: CalibrationOption = None,
    runs: RunsOption = 8,
    steps: StepsOption = 30,
    overhead: OverheadOption = "5m",
    core: Annotated[
        bool, typer.Option("--core", help="Vary the core axes only: a smaller, quicker space.")
    ] = False,
    from_study: FromStudyOption = None,
    storage: StorageOption = None,
    seed: SeedOption = 0,
    llm: LlmOption = None,
    llm_url: LlmUrlOption = None,
    llm_budget_tokens: LlmTokensOption = None,
    llm_cost: LlmCostOption = None,
    llm_deadline: LlmDeadlineOption = None,
    hint: HintOption = None,
    llm_program: LlmProgramOption = None,
    out: OutOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Ask which configs to run for real: the baseline first, then what is worth most per time."""
    from search.space import Space
    from studies.calibrating import calibrated_job
    from studies.files import checked_folder, name_from
    from studies.inputs import resolve
    from studies.llm import notes_on
    from studies.llm_runs import advisor_of
    from studies.real_runs import RealRuns
    from studies.run_requests import Slot, ask_runs, duration_s
    from studies.storage import storage_address
    from studies.transfer import other_study
    from studies.turns import TELLING_S, only_driver

    output = Output(as_json)
    wanted = Slot(duration_s(slot), duration_s(overhead, "--overhead"), steps)
    model = llm_options(llm, llm_url, llm_budget_tokens, llm_cost, llm_deadline, hint, llm_program)
    job = resolve(source, cluster, gpu, axis_values(settings or [], "--set"), gpu_file)
    job = calibrated_job(job, calibration)
    name = name_from(job.experiment.name)
    checked_folder(out)
    address = storage_address(storage, out / "foretune.db")
    space = Space.of(job.experiment, job.cluster, full=not core)
    other = other_study(from_study, address) if from_study else None
    with only_driver(address, out / name, f"{name}/measured", TELLING_S):
        measured = RealRuns.open(job, address, name, other.source if other else None)
        folder = out / measured.name
        with advisor_of(model, measured, space, folder) as advisor:
            asked = ask_runs(measured, space, wanted, folder, runs, seed, advisor)
            said = advisor.summary() if advisor else None
    notes = [note for note in (*job.notes, measured.note, *asked.notes) if note]
    notes += notes_on(said) if said else []
    if other is not None and other.source is None:
        notes.append(f"{other.name!r} has no measured runs: there is nothing to learn from it yet.")
    elif other is not None:
        notes.append(
            f"{other.name!r} decides what is asked; the numbers are projections calibrated on the "
            "runs of this study alone."
        )
    output.notes(notes)
    if as_json:
        output.result(
            {
                "study_name": measured.name,
                "storage": address.shown,
                "runs": [request.as_json() for request in asked.requests],
                "outstanding": [r.number for r in measured.runs() if r.state == "running"],
                "left_s": asked.left_s,
                "why_stopped": asked.why_stopped,
                "notes": notes,
                **({"llm": said} if said else {}),
            }
        )
        return
    show_asked(output, asked)
    output.say(
        "",
        f"{asked.left_s / 60:.0f} min of the slot are left: {asked.why_stopped}.",
        f"Run measure.sh of each, then: foretune tell {source} RESULT.json ...",
    )


def show_asked(output: Output, asked: Asked) -> None:
    """Prints the runs and where their files are."""
    from studies.wording import config_line

    rows = [
        (
            request.number,
            request.expected["tokens_per_s_per_gpu"],
            "{:,.0f} to {:,.0f}".format(*request.expected["interval90"]),
            f"{request.expected['fit_probability']:.0%}",
            f"{request.expected['run_s'] / 60:.0f} min",
            request.reason,
        )
        for request in asked.requests
    ]
    output.table("", ("run", "tokens/s/GPU", "90%", "P(fits)", "takes", "why"), rows)
    for request in asked.requests:
        output.say(config_line(f"  {request.number}  ", request.config))
        output.say(f"     {request.files[0].parent}")
        for name, reason in request.refused.items():
            output.say(f"     no {name}: {reason}")
