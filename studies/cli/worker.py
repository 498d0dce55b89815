"""``foretune worker``: evaluates trials that a driver queued, on any machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from studies.cli.common import JsonOption, Output

StorageOption = Annotated[
    str,
    typer.Option(
        "--storage",
        metavar="URL",
        envvar="FORETUNE_STORAGE",
        help="Where the study is: postgresql://user@host/database, or a file of this machine.",
        show_default=False,
    ),
]
IdleOption = Annotated[
    str, typer.Option("--idle", metavar="TIME", help="How long to wait for the study or a trial.")
]


def worker_command(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="Name of the study.", show_default=False)
    ],
    storage: StorageOption,
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Trials to evaluate at most.")
    ] = None,
    idle: IdleOption = "10m",
    patience: Annotated[
        str,
        typer.Option("--patience", metavar="TIME", help="How long to wait for a dead storage."),
    ] = "10m",
    as_json: JsonOption = False,
) -> None:
    """Evaluate trials of a study that foretune tune --workers drives; stops when it is complete."""
    from dataclasses import asdict

    from studies.run_requests import duration_s
    from studies.storage import storage_address
    from studies.worker import WorkerOptions, join

    signal.signal(signal.SIGTERM, _leave)
    output = Output(as_json)
    address = storage_address(storage, Path("foretune.db"))
    options = WorkerOptions(
        trials=trials,
        idle_s=duration_s(idle, "--idle"),
        patience_s=duration_s(patience, "--patience"),
    )

    def told(sentence: str) -> None:
        output.notes([sentence])

    worked = join(address, study, options, told).run()
    if as_json:
        output.result(asdict(worked) | {"study_name": study, "storage": address.shown})
        return
    late = f", {worked.late} of them after another worker" if worked.late else ""
    output.say(
        f"{worked.worker} told {worked.told + worked.late} trials of {study!r}{late}: "
        f"{worked.why_stopped}."
    )


def _leave(_number: int, _frame: object) -> None:
    """Lets SIGTERM end the worker as Ctrl-C does: its trial is given back."""
    raise KeyboardInterrupt
