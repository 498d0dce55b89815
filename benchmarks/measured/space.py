"""Which configs the ground truth holds: the legal space of the two studies, each behaviour once."""

from __future__ import annotations

from pathlib import Path

from search.space import Space
from specs.choices import Sharding
from specs.config import ConfigTable, TrainingConfig
from studies.job import Job

ROOT = Path(__file__).resolve().parents[2]
STUDIES = {
    "cpu_two_process": ROOT / "studies" / "cpu_two_process.yaml",
    "cpu_two_process_moe": ROOT / "studies" / "cpu_two_process_moe.yaml",
}


def ground_truth(job: Job) -> list[TrainingConfig]:
    """Legal configs of a study; where there is one replica, sharding is nothing and stated so."""
    space = Space.of(job.experiment, job.cluster, full=True)
    table = ConfigTable.concat([*space.chunks()])
    gpus = job.cluster.num_gpus
    return [
        config
        for config in table.configs()
        if gpus // (config.tp * config.pp) > 1 or config.sharding is Sharding.NONE
    ]
