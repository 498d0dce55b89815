"""Writes, starts and watches runs until each has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from collectors.launchers.launch import Ended, Launch, Launcher

POLL_S = 1.0
FIRST_PAUSE_S = 0.05
"""Before the second look: what cannot start ends at once; pauses double up to the one asked for."""


def run(launcher: Launcher, launch: Launch, poll_s: float = POLL_S) -> Ended:
    """Runs one launch to its end; an exception or Ctrl-C ends the run as well.

    Raises:
        InputError: it cannot be started; says why.
    """
    launcher.write(launch)
    job = launcher.start(launch)
    pauses = _pauses(poll_s)
    try:
        while (end := launcher.poll(launch, job)) is None:
            time.sleep(next(pauses))
        return end
    except BaseException:
        launcher.stop(launch, job)
        raise


def watch(
    launcher: Launcher,
    jobs: Sequence[tuple[Launch, str]],
    poll_s: float = POLL_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Launch, Ended]]:
    """Started jobs as they end, in the order of their ends. Stops none of them."""
    open_jobs, pauses = list(jobs), _pauses(poll_s)
    while open_jobs:
        for launch, job in tuple(open_jobs):
            if (end := launcher.poll(launch, job)) is not None:
                open_jobs.remove((launch, job))
                yield launch, end
        if open_jobs:
            sleep(next(pauses))


def _pauses(longest_s: float) -> Iterator[float]:
    """Seconds between looks, one pause after the other."""
    pause_s = min(FIRST_PAUSE_S, longest_s)
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, longest_s)
