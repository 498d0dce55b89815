"""``--from-study OTHER``: what another study leaves to this one.

Its measured runs (``OTHER/measured``) are a source of residuals for the sampler of real runs; its
best configs are proposals here, each as the nearest config that is legal. OTHER may lie in another
storage: ``URL#NAME`` or ``FILE.db#NAME``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from search.companions import with_companions
from search.config_pool import parameter_codes
from search.distributions import distributions, parameters
from search.pool import Pool
from search.proposals import Proposal
from search.space import Space
from search.transfer import Source, nearest_legal
from specs.config import AXES, ConfigTable, TrainingConfig
from specs.errors import InputError
from studies.job import Job
from studies.storage import StorageAddress, open_storage, storage_address

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

PROPOSER = "transfer"
MOST_PROPOSALS = 5


@dataclass(frozen=True)
class OtherStudy:
    """The trials of another study that fit, best first, and its measured runs as a source."""

    name: str
    best: tuple[TrainingConfig, ...]
    source: Source | None


def other_study(text: str, own: StorageAddress) -> OtherStudy:
    """The study that ``text`` names, in this storage or in another.

    Raises:
        InputError: there is no such study, or it has no finished trial.
    """
    import optuna

    where, separator, name = text.rpartition("#")
    address = storage_address(where, Path("unused")) if separator else own
    if address.path is not None and not address.path.exists():
        raise InputError(f"--from-study: there is no storage {address.shown}.")
    storage = open_storage(address)
    known = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
    found = [n for n in (name, f"{name}/measured") if n in known]
    if not found:
        there = ", ".join(sorted(known)) or "none"
        raise InputError(f"--from-study: there is no study {name!r} (there are: {there}).")
    finished: list[FrozenTrial] = []
    measured: list[FrozenTrial] = []
    for study_name in found:
        trials = optuna.load_study(study_name=study_name, storage=storage).get_trials(
            deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)
        )
        usable = [t for t in trials if t.value and max(t.constraints.values(), default=0.0) <= 0]
        finished += usable
        if study_name.endswith("/measured"):
            measured += usable
    if not finished:
        raise InputError(f"--from-study: {name!r} has no finished trial that fits yet.")
    # What was measured says more than what was projected.
    ranked = sorted(measured or finished, key=lambda trial: -(trial.value or 0.0))
    configs = dict.fromkeys(TrainingConfig.from_labels(t.user_attrs["config"]) for t in ranked)
    return OtherStudy(name, tuple(configs), _source(name, measured))


def _source(name: str, trials: list[FrozenTrial]) -> Source | None:
    """Measured trials with what was projected of them; None where there are none."""
    key = "projected_tokens_per_s_per_gpu"
    known = [trial for trial in trials if trial.user_attrs.get("expected", {}).get(key)]
    if not known:
        return None
    return Source(
        name=name,
        parameters=tuple(dict(trial.params) for trial in known),
        log_projected=np.log([trial.user_attrs["expected"][key] for trial in known]),
        log_measured=np.log([trial.value or np.nan for trial in known]),
    )


def transferred(
    job: Job, space: Space, candidates: ConfigTable, other: OtherStudy, most: int = MOST_PROPOSALS
) -> list[Proposal]:
    """The best configs of another study as proposals here, without repeats.

    A config that is legal here is taken as it is; else the values that this space lacks become the
    nearest it has; where that is illegal too, the candidate most like it is taken.

    Args:
        job: of this study.
        space: its legal space.
        candidates: legal configs to fall back on.
        other: the study to learn from.
        most: proposals at most.
    """
    pool: Pool | None = None
    proposals: dict[TrainingConfig, Proposal] = {}
    for config in other.best:
        if len(proposals) == most:
            break
        adapted, how = adapt(config, space), "as it was"
        if adapted != config:
            how = "with the nearest values of this space"
        if job.why_illegal(adapted) or not space.allows(adapted):
            if not len(candidates):
                continue
            pool = pool or _pool(candidates)
            row = nearest_legal(pool, parameters(config))
            if row is None:
                continue
            adapted, how = candidates.config(row), "as the nearest legal config"
        proposals.setdefault(adapted, Proposal(adapted, PROPOSER, f"best of {other.name!r} {how}"))
    return list(proposals.values())


def adapt(config: TrainingConfig, space: Space) -> TrainingConfig:
    """A config with every value that the space does not list replaced by the nearest it lists."""
    changes = {}
    for name, values in space.axes.items():
        held = getattr(config, name)
        if held not in values:
            number = AXES[name].kind is int
            changes[name] = min(values, key=lambda v: abs(v - held)) if number else values[0]
    return with_companions(config, changes) if changes else config


def _pool(table: ConfigTable) -> Pool:
    codes, values = parameter_codes(table)
    return Pool(space=dict(distributions()), values=values, codes=codes, total=len(table))
