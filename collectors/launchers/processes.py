"""The processes of a run, found by a mark in their environment, wherever they were moved to.

torchrun starts every worker in a session of its own, and a worker whose parent died belongs to
init: neither the process group nor the tree of parents finds them all. What a process inherits from
the command is its environment, so that is where the mark is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "FORETUNE_LAUNCH"
GRACE_S = 10.0
"""Seconds between SIGTERM and SIGKILL: torchrun takes a moment to end its workers."""
_PAUSE_S = 0.05


def marked(token: str) -> list[int]:
    """Ids of the live processes of this user that carry the mark, this process left out."""
    wanted = f"{MARK}={token}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
        except (OSError, IndexError):
            continue  # it ended meanwhile, or belongs to somebody else
        if wanted in environment.split(b"\0") and state not in (b"Z", b"X"):
            found.append(int(entry.name))
    return found


def end_marked(token: str, grace_s: float = GRACE_S) -> None:
    """Ends every process that carries the mark: asks, waits ``grace_s``, then kills until none.

    A process that one of them started meanwhile is asked as well. None is left once two looks in a
    row find none: a process that is just starting a program shows no environment for a moment.
    """
    deadline = time.monotonic() + grace_s
    asked: set[int] = set()
    looks_without = 0
    while looks_without < 2:
        found = marked(token)
        looks_without = 0 if found else looks_without + 1
        if time.monotonic() >= deadline:
            _signal(found, signal.SIGKILL)
        else:
            _signal([process for process in found if process not in asked], signal.SIGTERM)
        asked.update(found)
        time.sleep(_PAUSE_S)


def _signal(processes: Iterable[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue
