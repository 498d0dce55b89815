"""``foretune bench``: what foretune's own parts achieve, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from studies.cli.bench_clients import clients_command
from studies.cli.bench_durability import durability_command
from studies.cli.bench_search import search_command
from studies.cli.bench_toolbox import bench_toolbox_command
from studies.cli.common import JsonOption, Output

bench_app = typer.Typer(no_args_is_help=True, help="Measure foretune itself on this machine.")


@bench_app.command("speed")
def speed_command(
    rows: Annotated[
        int, typer.Option("--rows", min=1000, help="Legal configs of each of four models.")
    ] = 100_000,
    as_json: JsonOption = False,
) -> None:
    """Configs a second on one core, the slowest steps, memory of the process."""
    from dataclasses import asdict

    from studies.speed import (
        CLUSTERS,
        MODELS,
        core_space_s,
        help_cpu_s,
        measure_speeds,
        peak_rss_gib,
        slowest_steps,
        summary,
    )

    output = Output(as_json)
    with output.progress("measuring", len(CLUSTERS) * len(MODELS)) as advance:
        speeds = measure_speeds(rows, advance)
    legal, core_s = core_space_s()
    steps = slowest_steps(rows)
    content = {
        **summary(speeds),
        "core_space": {"configs": legal, "cpu_s": core_s},
        "help_cpu_s": help_cpu_s(),
        "peak_rss_gib_per_1e6_rows": peak_rss_gib(),
        "slowest_steps": [{"step": name, "share": share} for name, share in steps],
        "cases": [asdict(speed) for speed in speeds],
    }
    if as_json:
        output.result(content)
        return
    output.table(
        "configs/s on one core (CPU time)",
        ("model", "GPUs", "configs", "memory", "memory + time", "scattered"),
        [
            (s.model, s.num_gpus, s.rows, s.memory_per_s, s.project_per_s, s.scattered_per_s)
            for s in speeds
        ],
    )
    output.say(
        f"all {content['rows']:,}: memory {content['memory_per_s']:,.0f}/s, memory and time "
        f"{content['memory_and_time_per_s']:,.0f}/s (scattered: "
        f"{content['scattered_per_s']:,.0f}/s)",
        f"core space of the Mixtral study: {legal:,} configs ranked in {core_s:.2f} s",
        f"foretune --help: {content['help_cpu_s']:.2f} s; 10^6 configs at once: "
        f"{content['peak_rss_gib_per_1e6_rows']:.2f} GiB",
    )
    output.table(
        "slowest steps (share of a projection)",
        ("step", "share"),
        [(name, f"{share:.1%}") for name, share in steps],
    )


@bench_app.command("surrogate")
def surrogate_command(
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Folder with measured/ and profiles/.")
    ],
    page: Annotated[
        Path | None,
        typer.Option(
            "--page", metavar="FILE", help="Write the accuracy page (Markdown).", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Accuracy on runs, models, sources and kernels that were left out (minutes)."""
    from datetime import date

    from studies.accuracy_page import accuracy_page, summary_rows
    from studies.files import checked_file, write_atomically
    from studies.surrogate_bench import STEPS, surrogate_bench

    output = Output(as_json)
    if page is not None:
        checked_file(page, "--page", (data / "measured").glob("*"))
    with output.progress("leaving out and learning again", STEPS) as advance:
        content = surrogate_bench(data, advance)
    if page is not None:
        write_atomically(page, accuracy_page(content, date.today().isoformat()))
        output.say(f"written to {page}")
    if as_json:
        output.result(content)
    else:
        output.table("accuracy on what was left out", ("line", "value"), summary_rows(content))


bench_app.command("search")(search_command)
bench_app.command("durability")(durability_command)
bench_app.command("clients")(clients_command)
bench_app.command("toolbox")(bench_toolbox_command)
