"""``python -m benchmarks.fuzz``: every reader, over all cores, within a time cap.

python -m benchmarks.fuzz --inputs 100000 --minutes 40 --out fuzz.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from benchmarks.fuzz.readers import READERS
from benchmarks.fuzz.run import Outcome, fuzz

SLICE, SERVED = 2500, 8
"""Inputs of one task, and tasks of one process: peaks of memory are those of fresh ones."""


def main() -> int:
    """Prints a table; exit code 1 where a reader has a fault."""
    names = [reader.name for reader in READERS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of each reader")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after these")
    parser.add_argument("--reader", action="append", choices=names, help="only this one; repeat")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--out", type=Path, help="Markdown table; .json beside it")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    found = {name: Outcome(name) for name in given.reader or names}
    starts = range(given.first, given.first + given.inputs, SLICE)
    slices = [
        (name, start, min(SLICE, given.first + given.inputs - start))
        for start in starts
        for name in found
    ]
    for begin in range(0, len(slices), SERVED * given.jobs):
        # A pool of its own for each batch: with max_tasks_per_child one pool may wait for ever
        # (github.com/python/cpython/issues/115634).
        with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
            batch = slices[begin : begin + SERVED * given.jobs]
            tasks = [pool.submit(fuzz, *task, until, True) for task in batch]
            for done in as_completed(tasks):
                outcome = done.result()
                found[outcome.reader].add(outcome)
                for seed, what in outcome.faults[:3]:
                    print(f"{outcome.reader}, seed {seed}: {what}", file=sys.stderr, flush=True)
        inputs = sum(outcome.inputs for outcome in found.values())
        print(f"{inputs:,} inputs", file=sys.stderr, flush=True)
        if time.monotonic() > until:
            break
    text = table(list(found.values()))
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
        content = [asdict(outcome) for outcome in found.values()]
        given.out.with_suffix(".json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return int(any(outcome.faults for outcome in found.values()))


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as Markdown."""
    lines = [
        "| reader | inputs | accepted | refused | faults | slowest, ms | peak, MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {o.reader} | {o.inputs:,} | {o.accepted:,} | {o.refused:,} | {len(o.faults):,} | "
        f"{1000 * o.slowest_s:,.0f} | {o.peak_mib:,.0f} |"
        for o in outcomes
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
