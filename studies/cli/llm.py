"""``foretune llm compile``: better prompts from recorded studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.cli.common import (
    ClusterOption,
    GpuFileOption,
    InputArgument,
    JsonOption,
    Output,
    SetOption,
    axis_values,
)
from studies.cli.llm_options import LlmDeadlineOption, LlmOption, LlmUrlOption, llm_options

llm_app = typer.Typer(name="llm", help="Work on how a language model is asked.")


@llm_app.callback()
def _llm() -> None:
    """Work on how a language model is asked."""


@llm_app.command("compile")
def compile_command(
    source: InputArgument,
    recordings: Annotated[
        list[Path],
        typer.Argument(metavar="RECORDING...", help="llm.jsonl of studies of INPUT."),
    ],
    program: Annotated[
        Path, typer.Option("--program", metavar="FILE", help="Where the program is written.")
    ] = Path("program.json"),
    good: Annotated[
        float,
        typer.Option(
            "--good",
            metavar="REGRET",
            min=0.0,
            max=1.0,
            help="Regret up to which an answer is an example to follow.",
        ),
    ] = 0.05,
    llm: LlmOption = None,
    llm_url: LlmUrlOption = None,
    llm_deadline: LlmDeadlineOption = None,
    cluster: ClusterOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile the program on recorded studies: answers with little regret become examples."""
    from search.llm.client import check_installed
    from studies.files import checked_file, to_json, write_atomically
    from studies.inputs import find_input, resolve
    from studies.llm_compile import compile_program

    output = Output(as_json)
    check_installed()
    checked_file(program, "--program", [find_input(source), cluster, gpu_file, *recordings])
    job = resolve(source, cluster, None, axis_values(settings or [], "--set"), gpu_file)
    options = llm_options(llm, llm_url, deadline=llm_deadline)
    content = compile_program(job, recordings, good, options)
    write_atomically(program, to_json(content) + "\n")
    if as_json:
        output.result({k: v for k, v in content.items() if k != "examples"} | {
            "examples": len(content["examples"]), "program": str(program),
        })  # fmt: skip
        return
    output.say(
        f"{len(content['examples'])} examples by {content['optimizer']}; the recorded answers had "
        f"a mean regret of {content['mean_regret_of_recorded']:.1%}",
        f"wrote {program}; use it with --llm-program {program}",
    )
