"""Writes, starts and watches runs until each has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from collectors.launchers.launch import Ended, Launch, Launcher

POLL_S = 1.0


def run(launcher: Launcher, launch: Launch, poll_s: float = POLL_S) -> Ended:
    """Runs one launch to its end; an exception or Ctrl-C ends the run as well.

    Raises:
        InputError: it cannot be started; says why.
    """
    launcher.write(launch)
    job = launcher.start(launch)
    try:
        while (end := launcher.poll(launch, job)) is None:
            time.sleep(poll_s)
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
    open_jobs = list(jobs)
    while open_jobs:
        for launch, job in tuple(open_jobs):
            if (end := launcher.poll(launch, job)) is not None:
                open_jobs.remove((launch, job))
                yield launch, end
        if open_jobs:
            sleep(poll_s)
