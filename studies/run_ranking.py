"""What told runs make of the ranking: the asked configs and the best others, projected anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search.ranking import rank
from search.shortlist import shortlist
from search.space import Space
from specs.config import ConfigTable, TrainingConfig
from studies.files import to_json, write_atomically
from studies.real_runs import CalibratedJob, RealRuns
from surrogate.calibration import write_calibration

if TYPE_CHECKING:
    from studies.cli.common import Output

SHOWN = 10
KEPT = 512


@dataclass(frozen=True)
class Ranked:
    """A config after calibration: measured throughput where it ran, else what is projected now."""

    config: TrainingConfig
    run: int | None
    state: str
    before: float
    now: float
    interval90: tuple[float, float]
    fit_probability: float
    trust: str

    def as_json(self) -> dict[str, Any]:
        """The entry as JSON."""
        return {
            "config": self.config.as_labels(),
            "run": self.run,
            "state": self.state,
            "projected_before": self.before,
            "tokens_per_s_per_gpu": self.now,
            "interval90": list(self.interval90),
            "fit_probability": self.fit_probability,
            "trust": self.trust,
        }


def ranking_after(runs: RealRuns, size: int = SHOWN) -> list[Ranked]:
    """The runs and the best configs of the core space, best first; failed runs stand last."""
    job, asked = runs.job, runs.runs()
    calibrated = CalibratedJob(job, runs.learned())
    space = Space.of(job.experiment, job.cluster)
    capacity = job.cluster.gpu.hbm_gib.value
    best = rank(space, _Ranking(calibrated, job), capacity, KEPT)
    others = [best.table.config(row) for row in shortlist(best, size, within=1.0)]
    configs = list(dict.fromkeys([*(run.config for run in asked), *others]))
    table = ConfigTable.from_configs(configs)
    before, now = job.project(table), calibrated.project(table)
    of_config = {run.config: run for run in asked}
    measured: dict[TrainingConfig, list[float]] = {}
    for run in asked:
        if run.tokens_per_s_per_gpu is not None:
            measured.setdefault(run.config, []).append(run.tokens_per_s_per_gpu)
    entries = []
    for row, config in enumerate(configs):
        last = of_config.get(config)
        values = measured.get(config)
        speed = float(np.median(values)) if values else float(now.tokens_per_s_per_gpu[row])
        low, high = float(now.lo90[row]), float(now.hi90[row])
        entries.append(
            Ranked(
                config=config,
                run=last.number if last else None,
                state=last.state if last else "projected",
                before=float(before.tokens_per_s_per_gpu[row]),
                now=speed,
                interval90=(speed, speed) if values else (low, high),
                fit_probability=1.0 if values else float(now.fit_probability[row]),
                trust="measured" if values else str(now.trust[row]),
            )
        )
    failed = ("out of memory", "crashed")
    return sorted(entries, key=lambda e: (e.state in failed, -e.now * e.fit_probability))


@dataclass(frozen=True)
class _Ranking:
    """The calibrated job with the columns that ranking asks for apart."""

    calibrated: CalibratedJob
    job: Any

    def project(self, table: ConfigTable) -> Any:
        return self.calibrated.project(table)

    def tokens_per_s_per_gpu(self, table: ConfigTable) -> Any:
        return self.calibrated.project(table).tokens_per_s_per_gpu

    def device_gib(self, table: ConfigTable) -> Any:
        return self.job.device_gib(table)


def write_calibrated(runs: RealRuns, folder: Path) -> list[Path]:
    """Writes the calibration and the runs; nothing where no throughput was told."""
    learned = runs.learned()
    path = folder / "runs.json"
    write_atomically(path, to_json([run.as_json() for run in runs.runs()]) + "\n")
    if not len(learned.calibration):
        return [path]
    calibration = folder / "calibration.json"
    write_calibration(calibration, learned.calibration)
    return [calibration, path]


def show_ranking(output: Output, runs: RealRuns, entries: list[Ranked]) -> None:
    """Prints the ranking and the runs that are still out."""
    from studies.wording import describe

    rows = [
        (
            "" if entry.run is None else entry.run,
            entry.state,
            entry.before,
            entry.now,
            f"{entry.interval90[0]:,.0f} to {entry.interval90[1]:,.0f}",
            f"{entry.fit_probability:.0%}",
            describe(entry.config),
        )
        for entry in entries[:SHOWN]
    ]
    output.table("", ("run", "", "projected", "now", "90%", "P(fits)", "config"), rows)
    out = [run.number for run in runs.runs() if run.state == "running"]
    if out:
        output.say(f"still out: run {', '.join(map(str, out))}")
