"""A published trace of keep-or-revert decisions, judged by our rule.

A trace holds one throughput before and after each tool, no repeats and no spread. Steps whose tool
changed nothing are copies of their baseline and so serve as the control.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np

from specs.errors import InputError
from studies.toolbox.decision import Rule, estimate
from studies.toolbox.verdicts import Verdict

_COLUMNS = {"step", "tool", "pre_tok_s", "post_tok_s", "accepted", "really_changed_anything"}


@dataclass(frozen=True, slots=True)
class TraceVerdict:
    """One step of a trace: what it claimed, what we say, and whether the claim stands."""

    tool: str
    ratio: float
    accepted: bool
    verdict: Verdict
    lower: float | None
    stands: bool
    sentence: str


def published_trace() -> Traversable:
    """ROCKET's published trace (Qwen2.5-7B on an MI300X); source in its column ``source``."""
    return resources.files("studies.toolbox") / "data" / "rocket_published_trace.csv"


def judge_trace(path: Path | Traversable, rule: Rule) -> list[TraceVerdict]:
    """Our verdict on every step of a trace.

    Raises:
        InputError: a column is missing.
    """
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("pre_tok_s")]
    if not rows or not _COLUMNS.issubset(rows[0]):
        raise InputError(f"{path} needs the columns {', '.join(sorted(_COLUMNS))}.")
    logs = {row["step"]: _log_ratio(row) for row in rows}
    control = [np.array([logs[row["step"]]]) for row in rows if not _changed(row)]
    verdicts = []
    for row in rows:
        log_ratio, accepted = logs[row["step"]], row["accepted"] == "yes"
        if not _changed(row):
            why = row["really_changed_anything"].partition("(")[2].rstrip(")")
            verdict, lower = Verdict.NO_EFFECT, None
            sentence = f"measured its own baseline again: {why}."
            stands = not accepted
        else:
            found = estimate([np.array([log_ratio])], control)
            low = found.quantile(rule.look_alpha(rule.min_blocks))
            lower = float(np.exp(low))
            keep = low > rule.log_threshold
            verdict = Verdict.KEEP if keep else Verdict.INCONCLUSIVE
            stands = accepted == keep
            sentence = (
                "one process and no restart, but far beyond the spread of the steps that changed "
                "nothing; its outputs were never checked."
                if keep
                else "within the spread of the steps that changed nothing."
            )
        verdicts.append(
            TraceVerdict(
                row["tool"], float(np.exp(log_ratio)), accepted, verdict, lower, stands, sentence
            )
        )
    return verdicts


def _log_ratio(row: dict[str, str]) -> float:
    return float(np.log(float(row["post_tok_s"]) / float(row["pre_tok_s"])))


def _changed(row: dict[str, str]) -> bool:
    return row["really_changed_anything"].startswith("yes")
