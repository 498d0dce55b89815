"""Which real runs to ask for in a slot of cluster time, and the files that carry them there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.batch import next_of_batch
from search.ranking import FIT_PROBABILITY
from search.space import Space
from specs.config import TrainingConfig
from specs.errors import InputError
from studies.files import to_json, write_atomically
from studies.job import Job
from studies.launch import write_launch_files
from studies.real_runs import ASK, RealRuns
from studies.reference import changed_in_words, near, nearest_that_fits
from studies.run_beliefs import RunBeliefs, run_beliefs

if TYPE_CHECKING:
    from studies.llm_runs import RunAdvisor

SCHEMA_VERSION = 1
STEPS = 30
"""Steps of a run: the first are warm-up, the median of the rest is stable to 1% (assumed)."""
OVERHEAD_S = 300.0
"""Start-up, compilation and teardown of a run (assumed; --overhead says otherwise)."""
MOST_RUNS = 8
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>min|s|m|h|d)")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Slot:
    """Cluster time to fill: ``seconds`` in all; a run takes ``overhead_s`` and ``steps`` steps."""

    seconds: float
    overhead_s: float = OVERHEAD_S
    steps: int = STEPS

    def run_s(self, step_time_s: Any) -> Any:
        """How long runs take."""
        return self.overhead_s + self.steps * step_time_s


@dataclass(frozen=True)
class Request:
    """A run that was asked: its number, config, reason, what is expected of it and its files."""

    number: int
    config: TrainingConfig
    reason: str
    expected: Mapping[str, Any]
    files: tuple[Path, ...]
    refused: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """The request as JSON."""
        return {
            "run": self.number,
            "reason": self.reason,
            "expected": dict(self.expected),
            "config": self.config.as_labels(),
            "files": [str(path) for path in self.files],
        }


@dataclass(frozen=True)
class Asked:
    """What was asked for a slot; ``left_s`` stays empty because of ``why_stopped``."""

    requests: tuple[Request, ...]
    left_s: float
    why_stopped: str
    notes: tuple[str, ...]


def duration_s(text: str, option: str = "--slot") -> float:
    """Seconds of a duration such as ``2h``, ``90m`` or ``1h30m``.

    Raises:
        InputError: the text is no positive duration.
    """
    compact = text.strip().lower().replace(" ", "")
    parts = list(_DURATION.finditer(compact))
    whole = "".join(part.group(0) for part in parts)
    total = sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts)
    if whole != compact or not 0 < total < 366 * 86400:
        raise InputError(f"{option} {text!r} is no duration; write 2h, 90m or 1h30m.")
    return total


def ask_runs(
    runs: RealRuns,
    space: Space,
    slot: Slot,
    folder: Path,
    most: int = MOST_RUNS,
    seed: int = 0,
    advisor: RunAdvisor | None = None,
) -> Asked:
    """Asks the baseline first, then what is worth most per time, until the slot is full.

    Runs go out together: each is worth what it adds to the best of those that are out, so that
    near-duplicates add nothing. A baseline that is more likely to run out of memory than not is
    left out, with a note; the config nearest to it that fits is asked instead. The opinion of an
    ``advisor`` (a model) counts as far as it was right before, and at most one run in three is its
    proposal.

    Raises:
        InputError: no run fits into the slot.
    """
    asked = list(dict.fromkeys(run.config for run in runs.runs()))
    if runs.needs_baseline():
        asked += [config for config in near(runs.job, space) if config not in asked]
    beliefs = run_beliefs(runs, space, seed, asked)
    beside = advisor.consulted(beliefs.pool) if advisor else []
    beliefs = run_beliefs(runs, space, seed, [*asked, *beside]) if beside else beliefs
    speed = beliefs.now.tokens_per_s_per_gpu
    workload, gpus = runs.job.experiment.workload, runs.job.cluster.num_gpus
    run_s = slot.run_s(workload.tokens_per_step / gpus / speed)
    beliefs = replace(beliefs, pool=replace(beliefs.pool, cost=run_s))
    left, stopped = slot.seconds, f"{most} runs are the most that --runs allows"
    requests: list[Request] = []
    notes = [beliefs.pool.note] if beliefs.pool.note else []
    while len(requests) < most:
        judged = runs.judged(beliefs.pool, seed, advisor.expert if advisor else None)
        beliefs = replace(beliefs, judged=judged)
        row, reason, stands_in, proposer, gain = None, "", False, ASK, None
        if runs.needs_baseline():
            row, reason, note = _first(runs, beliefs)
            stands_in = bool(note)
            notes += [note] if note else []
        if row is None:
            affordable = judged.open_rows[run_s[judged.open_rows] <= left]
            if not len(affordable):
                stopped = "no further run fits into the slot"
                break
            # Where none is likely to fit, a run is what tells.
            likely = affordable[beliefs.fit_probability[affordable] >= FIT_PROBABILITY]
            affordable = likely if len(likely) else affordable
            if requests and judged.is_done:
                stopped = "no config promises more than the noise of a run"
                break
            held = beliefs.rows(runs, "measured"), beliefs.rows(runs, "running")
            row, gain = next_of_batch(beliefs.pool, judged, *held, affordable, seed)
            reason = "adds most per time to the best of what is out"
            mine = advisor.its_turn(beliefs.pool, judged, affordable) if advisor else None
            if mine is not None:
                row, reason, proposer = mine
                gain = float(judged.scores.gain[row])
        if run_s[row] > left:
            stopped = f"the next run takes {run_s[row] / 60:.0f} min"
            break
        expected = _expected(beliefs, row, float(run_s[row]), gain)
        by = (reason, stands_in, proposer)
        requests.append(_request(runs, beliefs.pool.config(row), expected, folder, by))
        left -= float(run_s[row])
    if not requests:
        raise InputError(
            f"no run fits into {slot.seconds / 60:.0f} min: {stopped} (a run takes at least "
            f"{run_s.min() / 60:.0f} min); give a longer --slot, or fewer --steps."
        )
    return Asked(tuple(requests), left, stopped, tuple(notes))


def _first(runs: RealRuns, beliefs: RunBeliefs) -> tuple[int | None, str, str]:
    """(row, reason, note) of the baseline, or of what stands in for one that does not fit.

    The note says why the baseline is not asked; the row is None where nothing surely fits.
    """
    baseline = runs.job.baseline
    row = beliefs.row(baseline)
    fits = float(beliefs.fit_probability[row])
    if fits >= FIT_PROBABILITY:
        return row, "the baseline: everything is judged by it", ""
    capacity = runs.job.cluster.gpu.hbm_gib.value
    why = (
        f"the baseline is not asked: it fits with P {fits:.0%} "
        f"({beliefs.peak_gib(row):.0f} GiB of {capacity:g})."
    )
    rows = beliefs.judged.open_rows
    found = nearest_that_fits(
        baseline,
        beliefs.pool.table.take(rows),
        beliefs.now.tokens_per_s_per_gpu[rows],
        beliefs.fit_probability[rows],
    )
    if found is None:
        return None, "", why
    words = changed_in_words(baseline, beliefs.pool.config(int(rows[found])))
    return int(rows[found]), f"nearest to the baseline that fits: {words}", why


def _expected(beliefs: RunBeliefs, row: int, run_s: float, gain: float | None) -> dict[str, Any]:
    """What is expected of a run, as JSON; ``gain`` is None where there is nothing to beat."""
    now = beliefs.now
    return {
        "tokens_per_s_per_gpu": float(now.tokens_per_s_per_gpu[row]),
        "interval90": [float(now.lo90[row]), float(now.hi90[row])],
        "projected_tokens_per_s_per_gpu": float(beliefs.before.tokens_per_s_per_gpu[row]),
        "peak_gib": beliefs.peak_gib(row),
        "fit_probability": float(beliefs.fit_probability[row]),
        "expected_gain": gain if beliefs.judged.models.incumbent is not None else None,
        "trust": str(now.trust[row]),
        "run_s": run_s,
    }


def _request(
    runs: RealRuns,
    config: TrainingConfig,
    expected: Mapping[str, Any],
    folder: Path,
    by: tuple[str, bool, str],
) -> Request:
    """Records a run and writes its files; ``by``: reason, whether for the baseline, proposer."""
    reason, stands_for_baseline, proposer = by
    number = runs.ask(config, reason, expected, stands_for_baseline, proposer)
    files, refused = write_run_files(runs, number, config, folder / f"run_{number}")
    return Request(number, config, reason, expected, files, refused)


def write_run_files(
    runs: RealRuns, number: int, config: TrainingConfig, folder: Path
) -> tuple[tuple[Path, ...], Mapping[str, str]]:
    """Launch files, the description of the run and the script that measures it."""
    files, refused = write_launch_files(runs.job, config, folder, "launch")
    about = folder / "run.json"
    write_atomically(about, to_json(_about(runs.job, runs.name, number, config)) + "\n")
    script = folder / "measure.sh"
    write_atomically(script, measuring_script(runs.job, runs.name, number))
    script.chmod(0o755)
    return (*files, about, script), refused


def _about(job: Job, study: str, number: int, config: TrainingConfig) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "run": number,
        "model": job.experiment.workload.model.name,
        "cluster": job.cluster.name,
        "tokens_per_step": job.experiment.workload.tokens_per_step,
        "num_gpus": job.cluster.num_gpus,
        "config": config.as_labels(),
    }


def measuring_script(job: Job, study: str, number: int) -> str:
    """A script that runs a launch command, keeps its log and writes ``result.json`` beside itself.

    It needs bash and awk only, no network and no foretune. Every node runs it; the result of the
    node that prints the iterations (Megatron's last rank, or node 0) is the one to tell.
    """
    tokens = job.experiment.workload.tokens_per_step
    return _SCRIPT.format(
        number=number,
        study=shlex.quote(study),
        tokens=tokens,
        gpus=job.cluster.num_gpus,
        schema=SCHEMA_VERSION,
    )


_SCRIPT = r"""#!/usr/bin/env bash
# Run {number} of a foretune study: runs a command, keeps its log, writes result.json beside this
# file. Usage: measure.sh [COMMAND ...]; without one it runs launch.sh. Then, where foretune is:
#   foretune tell INPUT result.json
set -uo pipefail
HERE="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
NODE="${{NODE_RANK:-${{SLURM_NODEID:-0}}}}"
LOG="$HERE/run.$NODE.log"
RESULT="$HERE/result.json"
[ "$NODE" = 0 ] || RESULT="$HERE/result.$NODE.json"
if [ $# -eq 0 ]; then set -- bash "$HERE/launch.sh"; fi
"$@" 2>&1 | tee "$LOG"
CODE=${{PIPESTATUS[0]}}
OOM=false
if grep -qiE 'out of memory|OutOfMemoryError|hipErrorOutOfMemory' "$LOG"; then OOM=true; fi
# Median of the seconds a step after the first third, which is warm-up.
STEP=$(sed -nE 's/.*elapsed time per iteration \(ms\): *([0-9.]+).*/\1/p' "$LOG" \
  | awk '{{ t[NR] = $1 / 1000 }}
      END {{ first = int(NR / 3) + 1; n = 0
            for (i = first; i <= NR; i++) s[++n] = t[i]
            for (i = 2; i <= n; i++) {{ v = s[i]
              for (j = i - 1; j > 0 && s[j] > v; j--) s[j + 1] = s[j]
              s[j + 1] = v }}
            if (n) printf "%.6g", (n % 2) ? s[(n + 1) / 2] : (s[n / 2] + s[n / 2 + 1]) / 2 }}')
SPEED=null
if [ -n "$STEP" ]; then
  SPEED=$(awk -v s="$STEP" 'BEGIN {{ printf "%.6g", {tokens} / {gpus} / s }}')
else
  STEP=null
fi
TEMPORARY="$RESULT.$$"
cat > "$TEMPORARY" <<END
{{"schema_version": {schema}, "run": {number}, "study": "$(printf %s {study})", "exit_code": $CODE,
 "out_of_memory": $OOM, "step_time_s": $STEP, "tokens_per_s_per_gpu": $SPEED,
 "log": "$(basename "$LOG")"}}
END
mv "$TEMPORARY" "$RESULT"
echo "wrote $RESULT"
exit "$CODE"
"""
