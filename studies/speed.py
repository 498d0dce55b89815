"""How fast the surrogate is: configs a second on one core, its slowest steps, and its memory.

CPU seconds of this process are counted, not wall time, so that a busy machine does not blur them.
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from search.ranking import rank
from search.space import Space
from specs import catalog
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.formats.experiment import Experiment
from specs.stack import Framework, Stack
from specs.workload import Workload
from studies.inputs import resolve
from studies.job import Job

REPEATS = 3
RUN_ROWS = 4096
"""Consecutive configs taken at one place of the space."""
CLUSTERS = (8, 64, 1024, 16_384, 131_072)
MODELS = {
    "mixtral-8x22b": ("MI355X", Framework.PRIMUS),
    "gpt3-175b": ("A100-80GB", Framework.MEGATRON),
    "llama3.1-70b": ("H100", Framework.MEGATRON),
    "deepseek-v3": ("MI355X", Framework.PRIMUS),
}
"""Models with the GPU and the framework that they are projected on."""
PACKAGES = ("surrogate", "specs", "search")


@dataclass(frozen=True, slots=True)
class Speed:
    """Configs a second of one model on one cluster: memory, memory and time, and both scattered.

    The first two are of runs of consecutive configs, as a ranking meets them; the last is of
    configs drawn one by one from the whole space, which share least.
    """

    model: str
    num_gpus: int
    rows: int
    memory_per_s: float
    project_per_s: float
    scattered_per_s: float


def measure_speeds(rows: int, advance: Callable[[int], None]) -> list[Speed]:
    """Speeds over at least ``rows`` legal configs of every model, spread over the clusters."""
    speeds = []
    for model in MODELS:
        for num_gpus in CLUSTERS:
            count = -(-rows // len(CLUSTERS))
            job, table = benchmark_table(model, num_gpus, count)
            _, scattered = benchmark_table(model, num_gpus, count, scattered=True)
            speeds.append(
                Speed(
                    model=model,
                    num_gpus=num_gpus,
                    rows=len(table),
                    memory_per_s=_rows_per_s(job.device_gib, table),
                    project_per_s=_rows_per_s(job.project, table),
                    scattered_per_s=_rows_per_s(job.project, scattered),
                )
            )
            advance(1)
    return speeds


def benchmark_table(
    model: str, num_gpus: int, rows: int, scattered: bool = False
) -> tuple[Job, ConfigTable]:
    """``rows`` legal configs of a model on ``num_gpus`` GPUs, and their job.

    They are runs of consecutive configs from all over the space, or seeded single ones.
    """
    name, framework = MODELS[model]
    gpu = catalog.gpu(name)
    cluster = Cluster(
        name="",
        gpu=gpu,
        num_nodes=num_gpus // gpu.gpus_per_node,
        gpus_per_node=gpu.gpus_per_node,
        price_usd_per_gpu_hour=None,
    )
    workload = Workload(
        model=catalog.model(model), seq_len=4096, global_batch_size=max(8 * num_gpus, 512)
    )
    stack = Stack(framework=framework, framework_name=framework.name.title())
    experiment = Experiment(
        name=model, workload=workload, stack=stack, baseline=TrainingConfig(), cluster=cluster
    )
    space = Space.of(experiment, cluster, full=True)
    job = Job(experiment, cluster, ())
    if scattered:
        return job, space.sample(rows, seed=0)
    runs = -(-rows // RUN_ROWS)
    starts = np.linspace(0, max(len(space) - RUN_ROWS, 0), runs).astype(np.int64)
    positions = np.unique(starts[:, None] + np.arange(min(RUN_ROWS, len(space))))
    return job, space.rows(positions[:rows])


def core_space_s() -> tuple[int, float]:
    """(configs, CPU seconds) to enumerate and rank the core space of the Mixtral study."""
    job = resolve("mixtral_8x22b_mi355x")
    started = time.process_time()
    space = Space.of(job.experiment, job.cluster, full=False)
    ranking = rank(space, job, job.cluster.gpu.hbm_gib.value, keep=4096)
    return ranking.legal, time.process_time() - started


def slowest_steps(rows: int, top: int = 12) -> list[tuple[str, float]]:
    """(function, fraction of the time spent in itself) of a projection of Mixtral 8x22B."""
    job, table = benchmark_table("mixtral-8x22b", 1024, rows)
    profile = cProfile.Profile()
    profile.runcall(job.project, table)
    stats: Any = pstats.Stats(profile)
    total = stats.total_tt
    own: dict[str, float] = {}
    for (file, _, function), (_, _, own_s, _, callers) in stats.stats.items():
        if _package(file):
            name = f"{Path(file).stem}.{function}"
            own[name] = own.get(name, 0.0) + own_s
            continue
        # numpy's own functions count for the step that called them.
        for (caller_file, _, caller), (_, _, part_s, _) in callers.items():
            if _package(caller_file):
                name = f"{Path(caller_file).stem}.{caller}"
                own[name] = own.get(name, 0.0) + part_s
    ranked = sorted(own.items(), key=lambda item: -item[1])[:top]
    return [(name, float(seconds / total)) for name, seconds in ranked]


def _package(file: str) -> bool:
    return Path(file).parent.name in PACKAGES


def help_cpu_s() -> float:
    """CPU seconds of ``foretune --help`` in a process of its own, the best of three."""
    return min(_child_cpu_s(["-m", "foretune", "--help"])[0] for _ in range(REPEATS))


def peak_rss_gib(rows: int = 1_000_000) -> float:
    """Peak memory of a process that projects ``rows`` configs of DeepSeek-V3 at once."""
    script = (
        "from studies.speed import benchmark_table, rss_gib; "
        f"job, table = benchmark_table('deepseek-v3', 1024, {rows}); "
        f"assert len(table) == {rows}; job.project(table); print(rss_gib())"
    )
    return float(_child_cpu_s(["-c", script])[1])


def rss_gib() -> float:
    """Peak resident memory of this process so far."""
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def _child_cpu_s(arguments: list[str]) -> tuple[float, str]:
    """(CPU seconds, stdout) of a Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, cwd=folder
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def _rows_per_s(work: Callable[[ConfigTable], object], table: ConfigTable) -> float:
    """Rows a CPU second, the best of some repeats after one that warms up."""
    work(table)
    taken = []
    for _ in range(REPEATS):
        started = time.process_time()
        work(table)
        taken.append(time.process_time() - started)
    return len(table) / min(taken)


def summary(speeds: list[Speed]) -> dict[str, Any]:
    """Rows and configs a second over everything, by model and by cluster size."""

    def mean(picked: list[Speed], name: str) -> float:
        """Rows over the sum of their seconds."""
        seconds = sum(speed.rows / getattr(speed, name) for speed in picked)
        return float(sum(speed.rows for speed in picked) / seconds)

    def both(picked: list[Speed]) -> dict[str, float]:
        return {
            "memory_per_s": mean(picked, "memory_per_s"),
            "memory_and_time_per_s": mean(picked, "project_per_s"),
            "scattered_per_s": mean(picked, "scattered_per_s"),
        }

    return {
        "rows": int(np.sum([speed.rows for speed in speeds])),
        **both(speeds),
        "by_model": {m: both([s for s in speeds if s.model == m]) for m in MODELS},
        "by_num_gpus": {str(n): both([s for s in speeds if s.num_gpus == n]) for n in CLUSTERS},
    }
