"""A worker whose oracle takes its time: ``python slow_worker.py STUDY SECONDS`` (FORETUNE_STORAGE).

What is killed or cut off in tests is then in the midst of an evaluation, as real runs are.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from specs.config import TrainingConfig
from studies.job import Job
from studies.oracles import Crash, Evaluation, SurrogateOracle
from studies.storage import storage_address
from studies.worker import WorkerOptions, join

BEGUN = "an evaluation has begun"


class Slow(SurrogateOracle):
    """The surrogate after a pause."""

    def evaluate(self, config: TrainingConfig) -> Evaluation | Crash:
        """As the surrogate."""
        print(BEGUN, flush=True)
        time.sleep(float(sys.argv[2]))
        return super().evaluate(config)


def slow(_name: str, job: Job) -> Slow:
    """The oracle of the study, slowed down."""
    return Slow(job)


if __name__ == "__main__":
    address = storage_address(os.environ["FORETUNE_STORAGE"], Path("foretune.db"))
    options = WorkerOptions(idle_s=120, patience_s=120, poll_s=0.1)
    print(join(address, sys.argv[1], options, oracle_of=slow).run())
