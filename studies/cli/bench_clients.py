"""``foretune bench clients``: many clients on one storage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.cli.common import JsonOption, Output


def clients_command(
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="URL",
            envvar="FORETUNE_STORAGE",
            help="URL of a PostgreSQL database, or a file.",
            show_default=False,
        ),
    ],
    clients: Annotated[int, typer.Option("--clients", min=1, max=1000, help="Processes.")] = 100,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials to share.")] = 400,
    as_json: JsonOption = False,
) -> None:
    """Let many clients claim and tell the trials of one study as fast as they can."""
    from studies.client_bench import measure_clients
    from studies.storage import storage_address

    output = Output(as_json)
    found = measure_clients(storage_address(storage, Path("foretune.db")), clients, trials)
    output.result(found.as_json())
    if not as_json:
        output.table("clients on one storage", ("", ""), _rows(found.as_json()))
    if found.lost or found.doubled or found.gave_up:
        raise typer.Exit(1)


def _rows(content: dict[str, object]) -> list[tuple[str, object]]:
    return [
        (key.replace("_", " "), " / ".join(f"{s:.3f}" for s in v) if isinstance(v, tuple) else v)
        for key, v in content.items()
    ]
