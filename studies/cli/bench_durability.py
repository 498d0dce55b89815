"""``foretune bench durability``: kill -9 at random moments, on any storage."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.cli.common import JsonOption, Output, SeedOption


def durability_command(
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="WHERE",
            envvar="FORETUNE_STORAGE",
            help="sqlite, journal, or the URL of a PostgreSQL database.",
        ),
    ] = "sqlite",
    kills: Annotated[int, typer.Option("--kills", min=1, help="How often to kill.")] = 100,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Trials of each study.")] = 24,
    seed: SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Keep the files.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Kill studies at random moments; count trials lost, doubled or changed (minutes)."""
    import tempfile

    from studies.durability import measure_durability
    from studies.files import checked_folder

    output = Output(as_json)
    with tempfile.TemporaryDirectory(prefix="foretune-durability-") as scratch:
        folder = checked_folder(out) if out else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with output.progress("kills", kills) as advance:
            found = measure_durability(storage, folder, kills, seed, trials, advance)
    output.result(found.as_json())
    if not as_json:
        rows = [(key.replace("_", " "), value) for key, value in found.as_json().items()]
        output.table(f"kill -9 on {found.storage}", ("", ""), rows[1:])
    if not found.is_clean:
        raise typer.Exit(1)
