"""What the commands share: their options, their output and how a failure becomes an exit code.

Only light modules are imported here: ``foretune --help`` must not wait for numpy.
"""

from __future__ import annotations

import errno
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 80
"""Columns of output that no terminal shows: a file or a pipe."""
EXIT_DONE, EXIT_BUG, EXIT_BAD_INPUT, EXIT_INFEASIBLE, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""Errors of the file system that are no bug: a full disk, a quota, no permission."""

InputArgument = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="Primus YAML, study YAML, HF config.json, or the name of a shipped study.",
        show_default=False,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="C",
        help="Cluster: a YAML, 64xMI355X (GPUs) or 8x8xMI355X (nodes x GPUs).",
        show_default=False,
    ),
]
GpuOption = Annotated[
    str | None,
    typer.Option("--gpu", metavar="GPU", help="GPU of the catalog, where no cluster is given."),
]
GpuFileOption = Annotated[
    Path | None,
    typer.Option(
        "--gpu-file",
        metavar="FILE",
        help="YAML with GPUs that the catalog does not know (gpus: {NAME: fields}).",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="AXIS=VALUE",
        help="Change an axis of the config (or seq_len, gbs); repeat for more.",
        show_default=False,
    ),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="Where trials are kept: file.db (SQLite), file.journal, or postgresql://...; "
        "OUT/foretune.db without it.",
        show_default=False,
    ),
]
WhyOption = Annotated[
    str | None,
    typer.Option(
        "--why",
        metavar="AXIS=VALUE,...",
        help="Say why a config is illegal, does not fit or is slower.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print pure JSON to stdout; words go to stderr.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random draw.")]
OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="Folder of results, made when needed.")
]


class Output:
    """Where a command's words and its result go.

    Without ``--json`` words and tables go to stdout. With it stdout carries one JSON document and
    words go to stderr. Progress bars always go to stderr. ``foretune --quiet`` leaves out notes and
    bars, and under ``--json`` all words.
    """

    quiet = False

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The rich console for words."""
        if self._console is None:
            from rich.console import Console

            width = None if sys.stdout.isatty() and not self.as_json else PLAIN_WIDTH
            self._console = Console(
                stderr=self.as_json, highlight=False, soft_wrap=True, width=width
            )
        return self._console

    def say(self, *lines: str) -> None:
        """Prints lines for a person, as they are."""
        if self.quiet and self.as_json:
            return
        for line in lines:
            self.console.print(line, markup=False)

    def step(self, line: str) -> None:
        """Prints at once, to stderr, what long work has begun or found."""
        if not self.quiet:
            print(line, file=sys.stderr, flush=True)

    def notes(self, notes: Iterable[str]) -> None:
        """Prints what the reader of a file assumed or found odd."""
        for note in () if self.quiet else notes:
            self.console.print(f"note: {note}", markup=False, style="yellow")

    def table(self, title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Prints a table; numbers are aligned right."""
        if self.quiet and self.as_json:
            return
        from rich.table import Table
        from rich.text import Text

        body = [list(row) for row in rows]
        table = Table(
            title=title,
            title_justify="left",
            header_style="bold",
            box=None,
            pad_edge=False,
            collapse_padding=True,
        )
        for index, name in enumerate(header):
            numeric = bool(body) and all(
                isinstance(row[index], int | float) or row[index] in ("", None) for row in body
            )
            table.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for row in body:
            table.add_row(*(Text(number(cell)) for cell in row))
        self.console.print(table)

    def result(self, content: Any) -> None:
        """Prints the JSON document under ``--json``; does nothing otherwise."""
        if self.as_json:
            from studies.files import to_json

            sys.stdout.write(to_json(content) + "\n")

    @contextmanager
    def progress(self, text: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """A progress bar on stderr (shown on a terminal); yields ``advance(steps)``."""
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        hidden = self.quiet or not console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
            task = bar.add_task(text, total=total)
            yield lambda steps: bar.advance(task, steps)


def number(value: Any) -> str:
    """A cell of a table: four significant digits, thousands separated."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value:,}"
    magnitude = abs(value)
    if magnitude >= 1000:
        return f"{value:,.0f}"
    if magnitude >= 100:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 1 else f"{value:z.4g}"


def axis_values(pairs: Iterable[str], option: str) -> dict[str, str]:
    """``axis=value`` texts as a dict, the last one winning.

    Raises:
        InputError: a text has no ``=`` or no name.
    """
    from specs.errors import InputError

    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{option} {pair!r} is not axis=value, for example {option} tp=2.")
        values[name.strip()] = value.strip()
    return values


def why_values(text: str) -> dict[str, str]:
    """The pairs of ``--why tp=2,layout=Et*2|t*2,L``: a part without ``=`` continues its value.

    Raises:
        InputError: the text does not begin with ``axis=value``.
    """
    parts: list[str] = []
    for part in text.split(","):
        if parts and "=" not in part:
            parts[-1] += "," + part
        else:
            parts.append(part)
    return axis_values(parts, "--why")


def run(command: Callable[..., Any]) -> int:
    """Runs ``command`` and turns its outcome into an exit code, with one sentence on stderr."""
    from specs.errors import InfeasibleError, InputError

    try:
        command()
    except InputError as error:
        _complain(str(error))
        return EXIT_BAD_INPUT
    except InfeasibleError as error:
        _complain(str(error))
        return EXIT_INFEASIBLE
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted; run the same command again to go on.")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_DONE
    except OSError as error:
        if error.errno not in CANNOT_WRITE:
            raise
        where = error.filename or "a file of the results"
        _complain(f"cannot write {where}: {error.strerror}; mend it and run the same again.")
        return EXIT_BAD_INPUT
    return EXIT_DONE


def _complain(sentence: str) -> None:
    """One line on stderr."""
    print("foretune: " + " ".join(sentence.split()), file=sys.stderr)
