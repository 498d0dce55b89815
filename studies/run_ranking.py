"""What told runs make of the ranking: the asked configs and the best others, projected anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from search.ranking import FIT_PROBABILITY, Ranking
from search.shortlist import shortlist
from search.space import Space
from specs.config import TrainingConfig
from studies.files import to_json, write_atomically
from studies.real_runs import CRASHED, FINISHED, OUT_OF_MEMORY, AskedRun, RealRuns
from studies.run_beliefs import RunBeliefs, run_beliefs
from surrogate.calibration_file import write_calibration

if TYPE_CHECKING:
    from studies.cli.common import Output

SHOWN = 10
KEPT = 512
RANKED_BY = (
    "tokens/s/GPU, GiB and the probability to fit, before any run and now; ranked by tokens/s/GPU "
    "now times the probability to fit, failed runs last"
)


@dataclass(frozen=True)
class Ranked:
    """A config after the runs: measured where it ran, else what is projected now.

    ``before``, ``peak_gib_before`` and ``fit_probability_before`` are what was projected without
    any run. ``interval90`` of a measured config spans its repeats.
    """

    config: TrainingConfig
    run: int | None
    state: str
    before: float
    now: float
    interval90: tuple[float, float]
    peak_gib_before: float
    peak_gib: float
    fit_probability: float
    fit_probability_before: float
    trust: str

    @property
    def failed(self) -> bool:
        """Whether the config ran and gave no throughput."""
        return self.state in (OUT_OF_MEMORY, CRASHED)

    def as_json(self) -> dict[str, Any]:
        """The entry as JSON."""
        return {
            "config": self.config.as_labels(),
            "run": self.run,
            "state": self.state,
            "projected_before": self.before,
            "tokens_per_s_per_gpu": self.now,
            "interval90": list(self.interval90),
            "peak_gib_before": self.peak_gib_before,
            "peak_gib": self.peak_gib,
            "fit_probability": self.fit_probability,
            "fit_probability_before": self.fit_probability_before,
            "trust": self.trust,
        }


def ranking_after(runs: RealRuns, size: int = SHOWN) -> list[Ranked]:
    """The runs and the best configs of the core space, best first; failed runs stand last."""
    asked = runs.runs()
    configs = list(dict.fromkeys(run.config for run in asked))
    beliefs = run_beliefs(runs, Space.of(runs.job.experiment, runs.job.cluster), extra=configs)
    best = _best(beliefs, runs.job.cluster.gpu.hbm_gib.value)
    others = [best.table.config(row) for row in shortlist(best, size, within=1.0)]
    entries = [
        _ranked(beliefs, config, [run for run in asked if run.config == config])
        for config in dict.fromkeys([*configs, *others])
    ]
    return sorted(entries, key=lambda e: (e.failed, -e.now * e.fit_probability))


def _best(beliefs: RunBeliefs, capacity_gib: float) -> Ranking:
    """The configs that fit as likely as not, best first."""
    fits = np.flatnonzero(beliefs.fit_probability >= FIT_PROBABILITY)
    rows = fits[np.argsort(-beliefs.expected[fits], kind="stable")][:KEPT]
    return Ranking(
        table=beliefs.pool.table.take(rows),
        tokens_per_s_per_gpu=beliefs.now.tokens_per_s_per_gpu[rows],
        device_gib=beliefs.now.device_gib[rows],
        fit_probability=beliefs.fit_probability[rows],
        legal=len(beliefs.pool),
        projected=len(beliefs.pool),
        refused_by_memory=len(beliefs.pool) - len(fits),
        fastest=None,
        leanest=None,
        missing_gib=float(np.min(beliefs.now.device_gib)) - capacity_gib,
    )


def _ranked(beliefs: RunBeliefs, config: TrainingConfig, asked: list[AskedRun]) -> Ranked:
    """One config; ``asked`` are its runs."""
    row = beliefs.row(config)
    now, last = beliefs.now, asked[-1] if asked else None
    values = [run.tokens_per_s_per_gpu for run in asked if run.tokens_per_s_per_gpu is not None]
    fits, trust = float(beliefs.fit_probability[row]), str(now.trust[row])
    speed = float(now.tokens_per_s_per_gpu[row])
    interval = (float(now.lo90[row]), float(now.hi90[row]))
    if values:
        speed, fits, trust = float(np.median(values)), 1.0, "measured"
        interval = (min(values), max(values))
    elif last is not None and last.state == OUT_OF_MEMORY:
        fits = 0.0
    return Ranked(
        config=config,
        run=last.number if last else None,
        state=last.state if last else "projected",
        before=float(beliefs.before.tokens_per_s_per_gpu[row]),
        now=speed,
        interval90=interval,
        peak_gib_before=float(beliefs.before.device_gib[row]),
        peak_gib=beliefs.peak_gib(row, asked),
        fit_probability=fits,
        fit_probability_before=float(beliefs.before.fit_probability[row]),
        trust=trust,
    )


def write_calibrated(runs: RealRuns, folder: Path) -> list[Path]:
    """Writes the calibration (throughputs, peaks and OOMs) and the runs; no calibration of none."""
    learned = runs.taught()
    path = folder / "runs.json"
    write_atomically(path, to_json([run.as_json() for run in runs.runs()]) + "\n")
    if not len(learned.calibration) and learned.peaks().is_empty:
        return [path]
    calibration = folder / "calibration.json"
    write_calibration(calibration, learned.calibration)
    return [calibration, path]


def show_ranking(output: Output, runs: RealRuns, entries: list[Ranked]) -> None:
    """Prints the best configs, every run that was told, and the runs that are still out."""
    from studies.wording import config_line

    told = [e for e in entries[SHOWN:] if e.run is not None and e.state != "running"]
    shown = [*entries[:SHOWN], *told]
    rows = [
        (
            number,
            "" if entry.run is None else entry.run,
            _STATES.get(entry.state, entry.state),
            entry.before,
            None if entry.failed else entry.now,
            _interval(entry),
            f"{entry.peak_gib_before:.0f}",
            f"{entry.peak_gib:.0f}",
            f"{entry.fit_probability_before:.0%}",
            f"{entry.fit_probability:.0%}",
        )
        for number, entry in enumerate(shown, 1)
    ]
    header = (
        *("", "run", "", "before", "now", "90%"),
        *("GiB before", "GiB now", "fits before", "fits now"),
    )
    output.table(RANKED_BY, header, rows)
    for number, entry in enumerate(shown, 1):
        output.say(config_line(f"  {number}  ", entry.config))
    out = [run.number for run in runs.runs() if run.state == "running"]
    if out:
        output.say(f"still out: run {', '.join(map(str, out))}")


def _interval(entry: Ranked) -> str:
    """What the throughput of now is known to; a config that ran has no interval to be in."""
    if entry.failed:
        return ""
    low, high = entry.interval90
    if entry.state == FINISHED and low == high:
        return "measured"
    text = f"{low:,.0f} to {high:,.0f}"
    return f"measured {text}" if entry.state == FINISHED else text


_STATES = {OUT_OF_MEMORY: "OOM", "projected": ""}
