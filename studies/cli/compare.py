"""``foretune compare``: finished studies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specs.figures import percent
from studies.cli.common import JsonOption, Output, StorageOption

if TYPE_CHECKING:
    from studies.comparison import Row

StudiesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[STUDY]...", help="Studies; all finished ones without any.", show_default=False
    ),
]


def compare_command(
    studies: StudiesArgument = None,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare finished studies: another model size, cluster, proposer or seed."""
    from studies.comparison import compare, differences
    from studies.report.answer import chance
    from studies.storage import storage_address
    from studies.wording import short

    output = Output(as_json)
    address = storage_address(storage, Path("results") / "foretune.db")
    rows = compare(address, studies or [])
    if as_json:
        output.result({"storage": address.shown, "studies": [row.as_json() for row in rows]})
        return
    names = [str(number) for number in range(1, len(rows) + 1)]
    output.say(
        *(
            f"{n}: {row.study}, {row.model} on {row.gpus}"
            for n, row in zip(names, rows, strict=True)
        )
    )
    output.table(
        "",
        ("", *names),
        [
            ("best, tokens/s/GPU", *(f"{row.tokens_per_s_per_gpu:,.0f}" for row in rows)),
            ("  90%", *("{:,.0f} to {:,.0f}".format(*row.interval90) for row in rows)),
            ("baseline", *("" if r.baseline is None else f"{r.baseline:,.0f}" for r in rows)),
            ("peak GiB", *(f"{row.peak_gib:.1f}" for row in rows)),
            ("P(fits)", *(chance(row.fit_probability) for row in rows)),
            ("trials", *(str(row.trials) for row in rows)),
            ("  refused by memory", *(str(row.refused) for row in rows)),
            ("  until within 1% of best", *(str(row.found_after or "") for row in rows)),
            ("best proposed by", *(row.proposer for row in rows)),
            ("oracle", *(row.oracle for row in rows)),
            ("seed", *(str(row.seed) for row in rows)),
            *models_rows(rows),
        ],
    )
    output.table(
        "what each proposer contributed: trials, improvements, gain over the first",
        ("proposer", *names),
        contributions_rows(rows),
    )
    found = differences(rows)
    if found:
        output.table(
            "where the best configs differ",
            ("axis", *names),
            [(axis, *(short(value) for value in values)) for axis, values in found],
        )


def models_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Model, tokens and cost of each study; nothing where no study asked a model."""
    if not any(row.llm for row in rows):
        return []
    return [
        ("model asked", *(row.llm or "none" for row in rows)),
        ("  tokens", *("" if r.llm_tokens is None else f"{r.llm_tokens:,}" for r in rows)),
        ("  cost", *(_cost(row) for row in rows)),
    ]


def _cost(row: Row) -> str:
    if not row.llm:
        return ""
    return "unknown" if row.llm_cost_usd is None else f"${row.llm_cost_usd:.4f}"


def contributions_rows(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """What each proposer contributed to each study."""
    proposers = dict.fromkeys(name for row in rows for name in row.contributions)
    return [(name, *(_contribution(row, name) for row in rows)) for name in proposers]


def _contribution(row: Row, proposer: str) -> str:
    held = row.contributions.get(proposer)
    if held is None:
        return ""
    return f"{held['trials']:.0f}, {held['improved']:.0f}, {percent(held['gain'], signed=True)}"
