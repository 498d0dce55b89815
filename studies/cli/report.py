"""``foretune report``: a study as one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.cli.common import JsonOption, Output, StorageOption

StudyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[STUDY]",
        help="Name of the study; the only one of the storage without it.",
        show_default=False,
    ),
]
ReportOption = Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")]
TokensOption = Annotated[
    float | None,
    typer.Option("--tokens", metavar="N", help="Tokens that costs are told for.", min=1.0),
]
PriceOption = Annotated[
    float | None,
    typer.Option("--price", metavar="USD", help="Price of a GPU-hour.", min=0.0),
]


def report_command(
    study: StudyArgument = None,
    storage: StorageOption = None,
    out: ReportOption = Path("report.html"),
    tokens: TokensOption = None,
    price: PriceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a study as one HTML file: what to run, how sure, why; works offline and prints."""
    from studies.files import checked_file, write_atomically
    from studies.report.facts import NoteKind, chosen_study, read_facts
    from studies.report.report import report
    from studies.storage import storage_address

    output = Output(as_json)
    address = storage_address(storage, Path("results") / "foretune.db")
    checked_file(out, "--out", [address.path])
    facts = read_facts(address, chosen_study(address, study))
    write_atomically(out, report(facts, tokens, price))
    told = facts.result.get("told")
    output.notes(note.sentence for note in facts.notes if note.kind is NoteKind.TOLD)
    if as_json:
        output.result({"study_name": facts.name, "files": [str(out)], "told": told})
    else:
        output.say(f"report of {facts.name!r}: {out}")
