"""The result of a training study: what it found, why, and the files that carry it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from search.attribution import Attribution, attribute
from search.ranking import rank
from search.shortlist import NOTICEABLE
from search.winner import contest
from specs.config import AXES, ConfigTable, TrainingConfig
from studies.known_formats import runs_of_format
from studies.oracles import projection
from studies.reference import Reference, reference
from studies.sensitivity import Sensitivity, sensitivity_of
from studies.trade_offs import front_of
from studies.training import Study
from studies.wording import describe


@dataclass(frozen=True, slots=True)
class Found:
    """A config and its projection as JSON; ``probability_best`` among the study's candidates."""

    config: TrainingConfig
    projection: dict[str, Any]
    probability_best: float

    @property
    def speed(self) -> float:
        """Projected tokens/s/GPU."""
        return float(self.projection["throughput"]["tokens_per_s_per_gpu"])

    @property
    def text(self) -> str:
        """The config in one line: its mesh and every axis that is not at its default."""
        return describe(self.config)

    def as_json(self) -> dict[str, Any]:
        """The config with its projection."""
        return {
            "config": self.config.as_labels(),
            "projection": self.projection,
            "probability_best": self.probability_best,
        }


@dataclass(frozen=True)
class Result:
    """What a study found.

    ``best`` is the trial of the highest expected throughput and ``shrunk_tokens_per_s_per_gpu``
    what to expect of it, knowing that it was picked as the best of many estimates; ``optimum`` is
    the fastest config of the whole space that fits as likely as not. ``baseline`` and
    ``attribution`` are None where the baseline is illegal on the cluster. The first of the
    ``shortlist`` is the best. ``in_baseline_format`` is the best config that keeps the number
    format of the baseline, where the best changes that and another fits. ``unwritten`` says which
    launch files no framework has keys for.
    """

    study: Study
    best: Found
    shrunk_tokens_per_s_per_gpu: float
    optimum: Found
    baseline: Found | None
    shortlist: tuple[Found, ...]
    attribution: Attribution | None
    sensitivity: Sensitivity
    in_baseline_format: Found | None = None
    unwritten: tuple[str, ...] = ()

    @cached_property
    def reference(self) -> Reference | None:
        """What the best is compared with; None where the baseline is illegal."""
        baseline = self.baseline
        if baseline is None:
            return None
        fits = bool(baseline.projection["memory"]["fits"])
        study = self.study
        return reference(study.job, baseline.speed, fits, study.space, study.ranking.table)

    @property
    def rival(self) -> Found | None:
        """The optimum, where it may be noticeably faster than the best."""
        return rival_of(self.best, self.optimum)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know, one sentence each: the one list of screen, report and JSON."""
        return (*self.study.notes, *self.cautions, *self.unwritten)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the best changes beyond speed unless the study asked for it, and what no run knows
        of its number format."""
        job = self.study.job
        before, after = job.baseline.precision, self.best.config.precision
        found = []
        asked = "precision" in job.experiment.settings.axes
        if before is not after and not asked:
            found.append(
                f"the best changes the number format from {before.label} to {after.label}, which "
                "changes the numerics of the training and not only its speed; --pin "
                f"precision={before.label} keeps it."
            )
        gpu = job.cluster.gpu
        if not runs_of_format(job.belief, after, gpu):
            found.append(
                f"no measured run in {after.gemm_format} on a GPU of {gpu.vendor.upper()} is among "
                "those that the surrogate learned from: what the number format of the best brings "
                "is known from data sheets and kernels alone."
            )
        return tuple(found)

    def as_json(self, files: list[Path], why: dict[str, Any] | None = None) -> dict[str, Any]:
        """The JSON of ``tune``."""
        study = self.study
        return {
            "study_name": study.name,
            "storage": study.storage,
            "best": self.best.as_json(),
            "shrunk_tokens_per_s_per_gpu": self.shrunk_tokens_per_s_per_gpu,
            "optimum": self.optimum.as_json(),
            "in_baseline_format": (
                self.in_baseline_format.as_json() if self.in_baseline_format else None
            ),
            "baseline": self.baseline.as_json() if self.baseline else None,
            "shortlist": [found.as_json() for found in self.shortlist],
            "reference": _reference_json(self.reference, self.best.speed),
            "attribution": _attribution_json(self.attribution),
            "sensitivity": self.sensitivity.as_json(),
            "trade_offs": front_of(study),
            "trials": len(study.trials),
            "rejected_by_memory": study.rejected_by_memory,
            "illegal_proposals": list(study.illegal),
            "space": {
                "legal": study.ranking.legal,
                "refused_by_memory": study.ranking.refused_by_memory,
                "axes": _axes_json(study.space.axes),
            },
            "why": why,
            "files": [str(path) for path in files],
            "notes": list(self.notes),
            "cautions": [*self.cautions, *self.unwritten],
            **({"llm": study.llm} if study.llm is not None else {}),
            **({"told": study.told.as_json()} if study.told is not None else {}),
        }


def rival_of(best: Found, optimum: Found) -> Found | None:
    """The optimum, unless it is faster than the best by less than a run could tell."""
    return optimum if optimum.speed >= (1 + NOTICEABLE) * best.speed else None


def result_of(study: Study, seed: int = 0) -> Result:
    """Judges the trials and the shortlist of a study.

    Raises:
        InfeasibleError: no trial fits.
    """
    job, best = study.job, study.best
    fitting = [trial.config for trial in study.fitting]
    fastest = study.ranking.fastest or best.config
    chosen = list(dict.fromkeys([best.config, *study.shortlist]))[: max(len(study.shortlist), 1)]
    kept = best_in_baseline_format(study)
    named = [best.config, fastest, *chosen, *([kept] if kept else []), *fitting]
    candidates = list(dict.fromkeys(named))
    drawn = contest(job.cases(ConfigTable.from_configs(candidates)), seed, job.belief)
    probability = dict(zip(candidates, drawn.probability_best.tolist(), strict=True))

    def found(config: TrainingConfig) -> Found:
        return Found(config, projection(job, config), probability.get(config, 0.0))

    winner = found(best.config)
    optimum = found(fastest)
    baseline = study.baseline
    return Result(
        study=study,
        best=winner,
        shrunk_tokens_per_s_per_gpu=drawn.shrunk(candidates.index(best.config)),
        optimum=winner if winner.speed >= optimum.speed else optimum,
        baseline=found(baseline.config) if baseline else None,
        shortlist=tuple(found(config) for config in chosen),
        attribution=(
            attribute(job.baseline, best.config, job.project, job.is_legal) if baseline else None
        ),
        sensitivity=sensitivity_of(study, candidates, drawn),
        in_baseline_format=found(kept) if kept else None,
    )


def best_in_baseline_format(study: Study) -> TrainingConfig | None:
    """The best config in the number format of the baseline, where the best changes that.

    None where the best keeps it, the study excludes it, or no config of it fits.
    """
    job, held = study.job, study.job.baseline.precision
    if study.best.config.precision is held or held not in study.space.axes["precision"]:
        return None
    space = study.space.narrowed_to({"precision": (held,)})
    ranking = rank(space, job, job.cluster.gpu.hbm_gib.value, keep=1, exclude=job.failed)
    return ranking.table.config(0) if len(ranking) else None


def _axes_json(axes: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {name: [AXES[name].label(value) for value in values] for name, values in axes.items()}


def _reference_json(held: Reference | None, best: float) -> dict[str, Any] | None:
    if held is None:
        return None
    return {
        "words": held.words,
        "is_baseline": held.is_baseline,
        "tokens_per_s_per_gpu": held.tokens_per_s_per_gpu,
        "gain": held.gain(best),
    }


def _attribution_json(attribution: Attribution | None) -> dict[str, Any] | None:
    if attribution is None:
        return None
    return {
        "together": attribution.together,
        "effects": [
            {
                "change": effect.change,
                "axes": {name: list(pair) for name, pair in effect.axes.items()},
                "alone": effect.alone,
                "alone_fits": effect.alone_fits,
                "last": effect.last,
                "fits_without": effect.fits_without,
            }
            for effect in attribution.effects
        ],
        "synergies": [
            {"first": pair.first, "second": pair.second, "gain": pair.gain}
            for pair in attribution.synergies
        ],
    }
