"""``foretune bench search``: PoolSampler against simpler searches, with a JSON of every number."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from studies.cli.common import JsonOption, Output

PARTS = ("landscape", "hidden-truth", "replay")


def search_command(
    part: Annotated[
        list[str] | None,
        typer.Option("--part", help=f"Only this part; repeat for more: {', '.join(PARTS)}."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Seeds of the landscape.")] = 24,
    draws: Annotated[int, typer.Option("--draws", min=2, help="Draws of the hidden truth.")] = 50,
    runs: Annotated[
        Path | None,
        typer.Option("--runs", metavar="CSV", help="Measured runs to replay.", show_default=False),
    ] = None,
    models: Annotated[
        Path | None,
        typer.Option("--models", metavar="JSON", help="Their models; models.json beside the runs."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--method", help="Only this method; repeat for more.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", metavar="FILE", help="Write the numbers as a page.")
    ] = None,
    saved: Annotated[
        Path | None,
        typer.Option("--from", metavar="JSON", help="Take the numbers of an earlier --json run."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare searches on synthetic tasks, a hidden truth and measured tables."""
    from specs.errors import InputError
    from studies.files import checked_file

    output = Output(as_json)
    if page is not None:
        checked_file(page, "--page", [runs, models, saved])
    if saved is not None:
        _finish(output, _saved(saved), page)
        return
    wanted = tuple(part or PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        raise InputError(f"there is no part {unknown[0]!r}; use {', '.join(PARTS)}.")
    if "replay" in wanted and runs is None:
        if part:
            raise InputError("name the measured runs to replay with --runs.")
        output.notes(["no --runs were given: the replay of measured tables is left out."])
        wanted = tuple(name for name in wanted if name != "replay")
    report = _benchmark("report")
    _benchmark("methods").quiet()
    methods = tuple(only or ())
    content: dict[str, Any] = {}
    with output.progress("comparing searches", None) as step:

        def advance(text: str) -> None:
            step(1)
            print(text, file=sys.stderr)

        if "landscape" in wanted:
            content["landscape"] = report.landscapes(range(seeds), advance, methods)
        if "hidden-truth" in wanted:
            content["hidden_truth"] = report.hidden(draws, advance, methods)
        if "replay" in wanted and runs is not None:
            from benchmarks.search.replay import replays

            problems = replays(runs, models or runs.parent / "models.json")
            content["replay"] = report.replayed(problems, range(20), advance, methods)
    content["targets"] = report.verdicts(content)
    _finish(output, content, page)


def _finish(output: Output, content: dict[str, Any], path: Path | None) -> None:
    """Writes the page where one is asked for, and prints JSON or tables."""
    if path is not None:
        from datetime import UTC, datetime

        from studies.files import write_atomically

        module = _benchmark("page")
        command = "foretune bench search --runs RUNS.csv --page PAGE.md"
        write_atomically(path, module.page(content, command, f"{datetime.now(UTC):%Y-%m-%d}"))
    if output.as_json:
        output.result(content)
        return
    show(output, content)


def _saved(path: Path) -> dict[str, Any]:
    """The JSON of an earlier run."""
    import json

    from specs.errors import InputError
    from specs.files import input_file

    try:
        content = json.loads(input_file(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}; give the JSON of a run.") from None
    if not isinstance(content, dict) or "targets" not in content:
        raise InputError(f"{path} is not the JSON of foretune bench search.")
    return content


def _benchmark(module: str) -> Any:
    """A module of the benchmark, which comes with a checkout and not with the package."""
    import importlib

    from specs.errors import InputError

    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.append(root)
    try:
        return importlib.import_module(f"benchmarks.search.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "benchmarks":
            raise
        raise InputError("the benchmark comes with a checkout of foretune; run it there.") from None


def show(output: Output, content: dict[str, Any]) -> None:
    """Prints a table a part and what targets are met."""
    for name in ("landscape", "hidden_truth"):
        for kind in ("memory_filter", "black_box"):
            if name in content and content[name][kind]:
                _show_regrets(output, f"{name}, {kind.replace('_', ' ')}", content[name][kind])
    if "replay" in content:
        for kind, by in content["replay"]["evaluations"].items():
            rows = [(method, _percent(v, 1.0)) for method, v in by.items()]
            title = f"replay, {kind.replace('_', ' ')}: evaluations until within 2% of the best"
            output.table(title, ("method", "mean"), rows)
    for target, met in content["targets"].items():
        output.say(f"{'met' if met else 'MISSED'}: {target}")


def _show_regrets(output: Output, title: str, by: dict[str, Any]) -> None:
    columns = [key for key in next(iter(by.values())) if key.startswith("regret@")]
    rows = [
        (
            method,
            *(_percent(found[column], 100.0) for column in columns),
            f"{found[columns[-1]]['median']:.1%}",
            f"{found['within']['2%']:.0%}",
            f"{found['oom_share']:.0%}",
            f"{found['cpu_s']:.2f}",
        )
        for method, found in by.items()
    ]
    header = ("method", *columns, "median", "within 2%", "OOM", "CPU s")
    output.table(title, header, rows)


def _percent(value: dict[str, Any], scale: float) -> str:
    sign = "%" if scale == 100.0 else ""
    return f"{scale * value['mean']:.1f}{sign} ± {scale * value['se']:.1f}"
