"""Comparison: finished studies side by side, and how soon each found what it found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specs.errors import InputError
from studies.ledger import Trial
from studies.real_runs import MEASURED
from studies.report.facts import RESULT, StudyFacts, load, read_facts, study_names
from studies.storage import StorageAddress

NEAR = 0.01
"""A trial within this fraction of the best of its study has found it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One study: ``found_after`` is the trials it took to come within 1% of its best.

    ``contributions`` maps each proposer to its ``trials``, how many of them ``improved`` on all
    before, and the ``gain`` that these brought together, a fraction of the first trial that fits.
    ``llm`` names the model that was asked, with what it took; empty and None where none was.
    """

    study: str
    model: str
    gpus: str
    oracle: str
    seed: int | None
    trials: int
    refused: int
    found_after: int | None
    baseline: float | None
    tokens_per_s_per_gpu: float
    interval90: tuple[float, float]
    peak_gib: float
    fit_probability: float
    proposer: str
    proposers: dict[str, int]
    config: dict[str, Any]
    contributions: dict[str, dict[str, float]]
    llm: str
    llm_tokens: int | None
    llm_cost_usd: float | None

    def as_json(self) -> dict[str, Any]:
        """The row as JSON."""
        return asdict(self)


def compare(address: StorageAddress, names: Sequence[str]) -> list[Row]:
    """A row a study, in the order of ``names``; all finished studies where none is named.

    Raises:
        InputError: a study does not exist or has no result, or none is finished.
    """
    chosen = list(dict.fromkeys(names)) or [
        name
        for name in study_names(address)
        if not name.endswith(MEASURED) and RESULT in load(address, name).user_attrs
    ]
    if not chosen:
        raise InputError(f"no study of {address.shown} is finished; run foretune tune first.")
    return [row_of(read_facts(address, name)) for name in chosen]


def row_of(facts: StudyFacts) -> Row:
    """What a study comes down to."""
    best, job = facts.best, facts.job
    proposer = next((t.proposer for t in facts.trials if t.config == best.config), "")
    return Row(
        study=facts.name,
        model=job.experiment.workload.model.name,
        gpus=f"{job.cluster.num_gpus:,} {job.cluster.gpu.name}",
        oracle=str(facts.inputs.get("oracle", "")),
        seed=facts.inputs.get("seed"),
        trials=len(facts.trials),
        refused=sum(not attempt.fits for attempt in facts.attempts),
        found_after=_found_after(facts),
        baseline=facts.baseline.tokens_per_s_per_gpu if facts.baseline else None,
        tokens_per_s_per_gpu=best.tokens_per_s_per_gpu,
        interval90=best.interval90,
        peak_gib=float(best.memory["peak_gib"]),
        fit_probability=float(best.memory["fit_probability"]),
        proposer=proposer,
        proposers=dict(Counter(trial.proposer for trial in facts.trials).most_common()),
        config=dict(best.config.as_labels()),
        contributions=contributions(facts.trials),
        **_model(facts),
    )


def contributions(trials: Sequence[Trial]) -> dict[str, dict[str, float]]:
    """Proposer -> trials, improvements and the gain that they brought, in order of appearance."""
    found: dict[str, dict[str, float]] = {}
    first = best = 0.0
    for trial in trials:
        held = found.setdefault(trial.proposer, {"trials": 0, "improved": 0, "gain": 0.0})
        held["trials"] += 1
        if not trial.fits or trial.expected <= best:
            continue
        if first:
            held["improved"] += 1
            held["gain"] += (trial.expected - best) / first
        first, best = first or trial.expected, trial.expected
    return found


def _model(facts: StudyFacts) -> dict[str, Any]:
    """The model that a study asked, its tokens and its cost."""
    llm = facts.result.get("llm")
    if not llm:
        return {"llm": "", "llm_tokens": None, "llm_cost_usd": None}
    spent = llm["spent"]
    return {
        "llm": str(llm["model"]),
        "llm_tokens": spent["prompt_tokens"] + spent["completion_tokens"],
        "llm_cost_usd": spent["cost_usd"],
    }


def _found_after(facts: StudyFacts) -> int | None:
    wanted = (1 - NEAR) * facts.best.tokens_per_s_per_gpu
    return next(
        (
            position
            for position, attempt in enumerate(facts.attempts, 1)
            if attempt.fits and attempt.tokens_per_s_per_gpu >= wanted
        ),
        None,
    )


def differences(rows: Sequence[Row]) -> list[tuple[str, list[Any]]]:
    """The axes on which the best configs of the studies differ, with their values."""
    axes = rows[0].config if rows else {}
    values = [(axis, [row.config.get(axis) for row in rows]) for axis in axes]
    return [(axis, found) for axis, found in values if len(set(map(str, found))) > 1]
