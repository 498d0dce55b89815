"""The front door: ``import foretune`` offers what the command line does, as typed functions.

    import foretune

    what = foretune.workload("llama3.1-8b", seq_len=8192, global_batch_size=256)
    where = foretune.cluster("2x8xMI300X")
    found = foretune.project(what, where, tp=2, mbs=2)
    print(found.tokens_per_s_per_gpu, found.interval90, found.peak_gib, found.fits)

``workload``, ``cluster``, ``project``, ``tune``, ``plan``, ``validate`` and ``calibrate`` are in
``studies.api``; ``PoolSampler`` and ``pool_of`` bring the search to any Optuna study. Everything is
imported when it is first used.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.pool import pool_of
    from search.pool_sampler import PoolSampler
    from specs.errors import InfeasibleError, InputError
    from studies.api import Projection, calibrate, cluster, plan, project, tune, validate, workload

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


_OFFERED = {
    "workload": "studies.api",
    "cluster": "studies.api",
    "project": "studies.api",
    "tune": "studies.api",
    "plan": "studies.api",
    "validate": "studies.api",
    "calibrate": "studies.api",
    "Projection": "studies.api",
    "PoolSampler": "search.pool_sampler",
    "pool_of": "search.pool",
    "InputError": "specs.errors",
    "InfeasibleError": "specs.errors",
}
"""Name -> the module that it is imported from when it is first used."""

__all__ = [
    "InfeasibleError",
    "InputError",
    "PoolSampler",
    "Projection",
    "calibrate",
    "cluster",
    "plan",
    "pool_of",
    "project",
    "tune",
    "validate",
    "workload",
]


def __getattr__(name: str) -> object:
    """What is offered is imported when it is first used."""
    if name not in _OFFERED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OFFERED[name]), name)


def __dir__() -> list[str]:
    """The names that are offered."""
    return sorted({*globals(), *_OFFERED})


def main() -> None:
    """Entry point of the command ``foretune``."""
    command = importlib.import_module("studies.cli.main")
    sys.exit(command.call(sys.argv[1:]))


if __name__ == "__main__":
    main()
