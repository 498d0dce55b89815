"""The command ``foretune``: one file a command in this folder, each imported light."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from studies.cli.ask import ask_command
from studies.cli.bench import bench_app
from studies.cli.calibrate import calibrate_command
from studies.cli.common import Output, run
from studies.cli.compare import compare_command
from studies.cli.dashboard import dashboard_command
from studies.cli.export import export_command
from studies.cli.ingest import ingest_command
from studies.cli.launch import launch_command
from studies.cli.llm import llm_app
from studies.cli.plan import plan_command
from studies.cli.profile import profile_command
from studies.cli.project import project_command
from studies.cli.report import report_command
from studies.cli.space import space_command
from studies.cli.tell import tell_command
from studies.cli.toolbox import toolbox_command
from studies.cli.tune import tune_command
from studies.cli.validate import validate_command
from studies.cli.worker import worker_command

app = typer.Typer(
    name="foretune",
    help="Finds the training configuration that gives an LLM the most tokens/s/GPU on a cluster, "
    "before the cluster is used.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No notes and no progress bars, results only.")
    ] = False,
) -> None:
    """Exit codes: 0 done, 2 bad input, 3 nothing feasible, 1 a bug."""
    Output.quiet = quiet


app.command("tune")(tune_command)
app.command("project")(project_command)
app.command("space")(space_command)
app.command("validate")(validate_command)
app.command("calibrate")(calibrate_command)
app.command("export")(export_command)
app.command("ask")(ask_command)
app.command("launch")(launch_command)
app.command("tell")(tell_command)
app.command("report")(report_command)
app.command("compare")(compare_command)
app.command("dashboard")(dashboard_command)
app.command("ingest")(ingest_command)
app.command("profile")(profile_command)
app.command("plan")(plan_command)
app.command("toolbox")(toolbox_command)
app.command("worker")(worker_command)
app.add_typer(bench_app, name="bench")
app.add_typer(llm_app, name="llm")


QUIET = "--quiet"


def call(arguments: Sequence[str]) -> int:
    """Runs ``foretune`` with these arguments and returns its exit code."""
    # Python sets a closed stream (``>&-``) to None.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    code = 0
    # An option of all commands, which people write behind the command.
    if QUIET in arguments:
        arguments = [QUIET, *(word for word in arguments if word != QUIET)]

    def command() -> None:
        nonlocal code
        try:
            app(list(arguments), prog_name="foretune")
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1

    return run(command) or code
