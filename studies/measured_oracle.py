"""The oracle that really runs a config here, with the reference trainer, and reads its log."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import collectors.trainer
from collectors.launchers.launch import Ending, Launch
from collectors.launchers.local import Local
from collectors.launchers.watching import run
from collectors.trainer.from_config import settings_of
from collectors.trainer.settings import flags
from search.distributions import config_key
from specs.config import TrainingConfig
from specs.errors import InputError
from studies.job import Job
from studies.oracles import UNKNOWN_OVER_GIB, Crash, Evaluation
from studies.real_runs import Outcome
from studies.run_results import log_outcome

STEPS = 10
"""Steps of a run: the first are warm-up, the median of the rest is stable to a few percent."""
TIME_LIMIT_S = 900.0
POLL_S = 0.2
_NO_THREAD = b"cannot allocate memory for thread-local data"
"""Last words of glibc where memory is at its limit as a thread starts: no exception is raised."""


@dataclass(frozen=True)
class MeasuredOracle:
    """Runs configs of a job on this node, one at a time, each in a folder of its own.

    ``limit_memory`` makes the GPU's stated memory real: an allocation beyond it fails. ``python``
    is the interpreter whose PyTorch trains; it must see this package.
    """

    job: Job
    folder: Path
    steps: int = STEPS
    limit_memory: bool = True
    python: str = sys.executable
    name: str = "measure"

    @property
    def fingerprint(self) -> str:
        """Changes with the trainer's code, its steps and the machine."""
        digest = hashlib.sha256(f"{self.steps} {self.limit_memory} {platform.node()}".encode())
        for path in sorted(Path(collectors.trainer.__path__[0]).glob("*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def check(self) -> None:
        """Refuses a job that cannot run on this node.

        Raises:
            InputError: it has several nodes.
        """
        if self.job.cluster.num_nodes > 1:
            raise InputError(
                f"{self.job.cluster.name} has {self.job.cluster.num_nodes} nodes and this machine "
                "is one; --oracle measure runs on one node: use foretune ask and tell."
            )

    def evaluate(self, config: TrainingConfig) -> Evaluation | Crash:
        """What the config is worth; memory is GiB above what the GPU holds."""
        started = time.monotonic()
        try:
            outcome = self.measure(config, self.folder / f"run_{config_key(config)}")
        except InputError as error:
            return Crash(str(error), time.monotonic() - started)
        cost_s = time.monotonic() - started
        if outcome.crash:
            return Crash(outcome.crash, cost_s)
        over = UNKNOWN_OVER_GIB if outcome.out_of_memory else 0.0
        details = {"peak_gib": outcome.peak_gib, "counter": outcome.counter, "log": outcome.source}
        speed = outcome.tokens_per_s_per_gpu or 0.0
        return Evaluation(speed, over, float(not outcome.out_of_memory), details, cost_s)

    def measure(self, config: TrainingConfig, folder: Path) -> Outcome:
        """Runs a config to its end and reads its log.

        Raises:
            InputError: the reference trainer does not have the config.
        """
        job = self.job
        limit = job.cluster.gpu.hbm_gib.value if self.limit_memory else 0.0
        gpus = job.cluster.num_gpus
        settings = settings_of(config, job.experiment.workload, gpus, self.steps, limit)
        folder.mkdir(parents=True, exist_ok=True)
        start = (self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
        launch = Launch(
            name=folder.name,
            folder=folder.absolute(),
            command=(*start, str(gpus), "-m", "collectors.trainer", *flags(settings)),
            gpus_per_node=gpus,
            time_limit_s=TIME_LIMIT_S,
            environment={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
        )
        ended = run(Local(), launch, POLL_S)
        if ended.ending is Ending.FINISHED:
            return log_outcome(job, ended.log)
        if ended.ending is Ending.OUT_OF_MEMORY or (limit and _was_refused_a_thread(ended.log)):
            return Outcome(out_of_memory=True, source=str(ended.log))
        return Outcome(crash=ended.reason, source=str(ended.log))


def _was_refused_a_thread(log: Path) -> bool:
    """Whether a run under a limit of memory ended because a thread found none."""
    return _NO_THREAD in log.read_bytes()
