"""From a laptop to a launch file: what a planner asks before a cluster is bought or booked."""

from __future__ import annotations

import sys
from pathlib import Path

import foretune


def main(folder: Path) -> None:
    """Projects, searches and tells what was found; results go to ``folder``."""
    # What is trained, and where.
    what = foretune.workload("llama3.1-8b", seq_len=8192, global_batch_size=128)
    where = foretune.cluster("2x8xMI300X")

    # One config: does it fit, and how fast is it?
    found = foretune.project(what, where, tp=2, mbs=1, sharding="zero1")
    low, high = found.interval90
    print(f"{found.tokens_per_s_per_gpu:,.0f} tokens/s/GPU (90%: {low:,.0f} to {high:,.0f})")
    print(f"{found.peak_gib:.0f} of {found.capacity_gib:.0f} GiB on the fullest stage")
    print(f"P(fits) {found.fit_probability:.0%}, trust: {found.trust}")

    # The best config of a space that is narrowed to what the team is willing to run.
    result = foretune.tune(
        what,
        where,
        out=folder,
        trials=12,
        narrow={
            "tp": [1, 2, 4],
            "pp": [1, 2],
            "cp": 1,
            "mbs": [1, 2],
            "vpp": 1,
            "schedule": "1f1b",
            "recompute": ["none", "selective"],
            "precision": "bf16",
            "sharding": "zero1",
        },
        sharding="zero1",
    )
    print(f"best: {result.best.text}")
    print(f"{result.best.speed:,.0f} tokens/s/GPU, P(best) {result.best.probability_best:.0%}")
    print(f"launch files are in {result.study.folder}")

    # What the tool must refuse, it refuses in one sentence.
    try:
        foretune.project(what, where, tp=3)
    except foretune.InputError as error:
        print(f"tp=3 is refused: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "results"))
