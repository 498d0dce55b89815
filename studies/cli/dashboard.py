"""``foretune dashboard``: optuna-dashboard on a storage, constraints understood."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.cli.common import Output, StorageOption
from studies.cli.report import StudyArgument

PortOption = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes any.")]


def dashboard_command(
    study: StudyArgument = None, storage: StorageOption = None, port: PortOption = 8080
) -> None:
    """Open the studies of a storage in optuna-dashboard, on this machine only."""
    from studies.boards import artifact_folder
    from studies.dashboard import application, installed_version, serve, untried
    from studies.report.facts import chosen_study, load, study_names
    from studies.storage import open_storage, storage_address

    output = Output(False)
    warning = untried(installed_version())
    output.notes([warning] if warning else [])
    address = storage_address(storage, Path("results") / "foretune.db")
    names = study_names(address)
    page = ""
    if study is not None:
        page = f"studies/{load(address, chosen_study(address, study))._study_id}"
    app = application(open_storage(address), artifact_folder(address.path, Path("results")))

    def ready(url: str) -> None:
        output.say(f"{len(names)} studies of {address.shown}: {url}{page}", "Ctrl-C ends it.")

    serve(app, port, ready)
