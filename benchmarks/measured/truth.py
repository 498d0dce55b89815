"""The ground truth as a file and in memory: every config that was measured, with its rounds.

``runs.csv`` has the columns of tables of measured runs and one for every axis: one row a round, its
step time being the median of the steps behind the first. A row whose id ends in ``-oom`` is a run
under the memory limit that ran out of it. ``python -m benchmarks.measured.truth LINES.jsonl``
writes it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measured.space import STUDIES
from specs.config import AXES, ConfigTable, TrainingConfig
from studies.inputs import resolve
from studies.job import Job
from studies.real_runs import AskedRun, run_table

Floats = NDArray[np.float64]

DATA = Path(__file__).parent / "data"
RUNS, ENVIRONMENT = DATA / "runs.csv", DATA / "environment.json"
WARM_UP = 1
"""Steps at the start of a run that do not count."""
FIELDS = (
    *("run_id", "source", "source_date", "gpu", "gpus_per_node", "num_gpus", "framework"),
    *("framework_version", "model", "seq_len", "gbs", "dp", *AXES),
    *("tokens_per_s_per_gpu", "step_time_s", "peak_mem_gb", "memory_unit", "memory_counter"),
    *("reserved_gib", "step_times_s", "round", "limit_gib", "notes"),
)
_MILLISECONDS = re.compile(r"elapsed time per iteration \(ms\): ([\d.]+)")
_PEAKS = re.compile(r"max (allocated|reserved): ([\d.]+)")


@dataclass(frozen=True)
class Truth:
    """n configs of one study, r rounds each.

    ``speed`` is tokens/s/GPU of each round, (n, r), NaN where a round is missing; peaks are of the
    fullest rank in GiB, (n,); ``out_of_memory`` says what ran out under the memory limit, (n,).
    """

    job: Job
    configs: tuple[TrainingConfig, ...]
    speed: Floats
    allocated_gib: Floats
    reserved_gib: Floats
    out_of_memory: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.configs)

    @property
    def table(self) -> ConfigTable:
        """The configs as columns."""
        return ConfigTable.from_configs(self.configs)

    @property
    def mean(self) -> Floats:
        """Tokens/s/GPU of each config, mean of its rounds, (n,)."""
        means: Floats = np.nanmean(self.speed, axis=1)
        return means

    @property
    def spread(self) -> Floats:
        """(highest - lowest) / mean of the rounds of each config, (n,)."""
        width = np.nanmax(self.speed, axis=1) - np.nanmin(self.speed, axis=1)
        share: Floats = width / self.mean
        return share

    @property
    def baseline(self) -> int:
        """The row of the study's baseline."""
        return self.configs.index(self.job.baseline)

    def runs(self) -> Any:
        """All configs with their mean as a table of measured runs."""
        asked = [
            AskedRun(n, config, "measured", "", float(speed), float(peak), {})
            for n, (config, speed, peak) in enumerate(
                zip(self.configs, self.mean, self.allocated_gib, strict=True)
            )
        ]
        return run_table(self.job, asked)


@cache
def truths(path: Path = RUNS) -> dict[str, Truth]:
    """The ground truth of each study."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {name: _truth(resolve(str(STUDIES[name])), name, rows) for name in STUDIES}


def _truth(job: Job, name: str, rows: Sequence[Mapping[str, str]]) -> Truth:
    mine = [row for row in rows if row["model"] == name]
    oom = {_key(row) for row in mine if row["run_id"].endswith("-oom")}
    by_config: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in mine:
        if row["step_time_s"]:
            by_config.setdefault(_key(row), []).append(row)
    rounds = max(len(group) for group in by_config.values())
    complete = {key: group for key, group in by_config.items() if len(group) == rounds}
    speed = [[float(row["tokens_per_s_per_gpu"]) for row in group] for group in complete.values()]
    firsts = [group[0] for group in complete.values()]
    return Truth(
        job=job,
        configs=tuple(
            TrainingConfig.from_labels({axis: row[axis] for axis in AXES}) for row in firsts
        ),
        speed=np.array(speed),
        allocated_gib=_highest(complete.values(), "peak_mem_gb"),
        reserved_gib=_highest(complete.values(), "reserved_gib"),
        out_of_memory=np.array([key in oom for key in complete]),
    )


def _highest(groups: Any, column: str) -> Floats:
    """The highest reading of each config; a round that did not look has none."""
    return np.array([max(float(row[column] or 0.0) for row in group) for group in groups])


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[axis] for axis in AXES)


def write_truth(measured: Path, path: Path = RUNS) -> int:
    """Writes ``runs.csv`` from the lines of ``benchmarks.measured.measure``; gives its rows."""
    jobs = {name: resolve(str(study)) for name, study in STUDIES.items()}
    lines = [json.loads(line) for line in measured.read_text(encoding="utf-8").splitlines()]
    rows = [row for line in lines for row in _rows(line, jobs[line["study"]])]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def _rows(line: Mapping[str, Any], job: Job) -> Iterator[dict[str, Any]]:
    """The row of one run; none where it neither ran nor ran out of memory."""
    from datetime import UTC, datetime

    labels, limit = json.loads(line["config"]), float(line["limit_gib"])
    config = TrainingConfig.from_labels(labels)
    gpus, workload = job.cluster.num_gpus, job.experiment.workload
    began = datetime.fromtimestamp(line["started"], UTC)
    row: dict[str, Any] = {
        "run_id": f"{line['study']}-{int(line['started'] * 10) % 10**9}",
        "source": "foretune benchmarks.measured.measure",
        "source_date": f"{began:%Y-%m-%d}",
        "gpu": job.cluster.gpu.name,
        "gpus_per_node": job.cluster.gpus_per_node,
        "num_gpus": gpus,
        "framework": job.experiment.stack.framework_name,
        "model": line["study"],
        "seq_len": workload.seq_len,
        "gbs": workload.global_batch_size,
        "dp": gpus // (config.tp * config.pp),
        **{axis: labels[axis] for axis in AXES},
        "round": line["round"],
        "limit_gib": limit or "",
    }
    text = "\n".join(line["log"])
    times = [float(found) / 1e3 for found in _MILLISECONDS.findall(text)]
    if limit:
        if 3 in line["exit_codes"] and "can't allocate memory" in text:
            yield row | {"run_id": row["run_id"] + "-oom"}
        return
    if any(line["exit_codes"]) or len(times) <= WARM_UP:
        return
    step_s = float(np.median(times[WARM_UP:]))
    row |= {
        "tokens_per_s_per_gpu": f"{workload.tokens_per_step / gpus / step_s:.6g}",
        "step_time_s": f"{step_s:.6g}",
        "step_times_s": " ".join(f"{time:.4f}" for time in times),
    }
    peaks: dict[str, float] = {}
    for counter, mib in _PEAKS.findall(text):
        peaks[counter] = max(peaks.get(counter, 0.0), float(mib) / 1024)
    if peaks:
        row["reserved_gib"] = f"{peaks['reserved']:.5g}"
    if line["round"] == 0 and peaks:  # the other rounds did not count tensors
        row |= {"peak_mem_gb": f"{peaks['allocated']:.5g}", "memory_unit": "GiB"}
        row["memory_counter"] = "allocated"
    yield row


if __name__ == "__main__":
    import sys

    print(f"{write_truth(Path(sys.argv[1]))} rows in {RUNS}")
