"""The front door: ``import foretune`` offers what the command line does, as functions.

>>> import foretune
>>> foretune.__version__  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

_ROOMS = ("specs", "surrogate", "collectors", "search", "studies")


def _refuse_hidden_rooms() -> None:
    """Our packages have plain names, so another package of that name may hide one: say so."""
    here = Path(__file__).resolve().parent
    for room in _ROOMS:
        spec = importlib.util.find_spec(room)
        if spec is None:
            raise ImportError(f"foretune is not whole: its package {room!r} is missing in {here}.")
        found = [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
        if here / room not in found:
            raise ImportError(
                f"foretune cannot work: its package {room!r} is hidden by "
                f"{found[0] if found else spec.origin}; run it where that package is not installed "
                "or not in the current folder."
            )


_refuse_hidden_rooms()

try:
    __version__ = metadata.version("foretune")
except metadata.PackageNotFoundError:
    __version__ = "0+checkout"


_OFFERED = {"PoolSampler": "search.pool_sampler", "pool_of": "search.pool"}


def __getattr__(name: str) -> object:
    """What is offered is imported when it is first used."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OFFERED[name]), name)


def main() -> None:
    """Entry point of the command ``foretune``."""
    command = importlib.import_module("studies.cli.main")
    sys.exit(command.call(sys.argv[1:]))


if __name__ == "__main__":
    main()
