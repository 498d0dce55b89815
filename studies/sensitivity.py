"""How much the choice of a study leans on details: neighbourhood, rivals, what to measure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from search.sensitivity import (
    Decision,
    Family,
    Neighbourhood,
    Step,
    decisive,
    families,
    neighbourhood,
)
from search.winner import Contest
from specs.config import TrainingConfig
from specs.figures import percent
from studies.training import Study
from studies.wording import describe

SHARPEST = 5

WORTH_MEASURING = 0.005
"""Expected gain from which on a measurement is proposed: below it lies the noise of one run."""


@dataclass(frozen=True)
class Sensitivity:
    """Of a study: single steps from the best, its rivals by mesh, the most decisive measurement.

    ``rivals`` pair a family with its best config; ``candidates`` are what ``decision`` numbers.
    """

    neighbourhood: Neighbourhood
    rivals: tuple[tuple[Family, TrainingConfig], ...]
    candidates: tuple[TrainingConfig, ...]
    decision: Decision

    def as_json(self) -> dict[str, Any]:
        """The JSON of ``tune``'s key ``sensitivity``."""
        near, most = self.neighbourhood, self.decision.most_decisive
        return {
            "shape": "broad basin" if near.is_broad else "sharp peak",
            "basin_share": near.basin_share,
            "steps": [_step_json(step) for step in near.steps],
            "families": [
                {"mesh": f.mesh, "gap": f.gap, "members": f.members, "best": config.as_labels()}
                for f, config in self.rivals
            ],
            "measure_next": {
                "config": self.candidates[most].as_labels(),
                "expected_gain": float(self.decision.gain[most]),
                "probability_of_change": float(self.decision.change[most]),
            },
        }

    def sentences(self) -> list[str]:
        """The same in a few sentences."""
        near, most = self.neighbourhood, self.decision.most_decisive
        sharp = [step for step in near.sharpest[:SHARPEST] if (step.gain or 0.0) < -0.02]
        lines = [
            f"{'broad basin' if near.is_broad else 'sharp peak'}: {near.basin_share:.0%} of the "
            f"{len(near.runnable)} single steps that run lose 2% or less"
        ]
        if sharp:
            told = ", ".join(
                f"{s.axis} {s.before} -> {s.after} {percent(s.gain or 0.0, signed=True, digits=0)}"
                for s in sharp
            )
            lines.append(f"steepest: {told}")
        if len(self.rivals) > 1:
            family, config = self.rivals[1]
            lines.append(f"next best mesh, {family.gap:.1%} behind: {describe(config)}")
        if self.decision.gain[most] >= WORTH_MEASURING:
            lines.append(
                f"measure first: {describe(self.candidates[most])} "
                f"(it changes the choice with P {self.decision.change[most]:.0%}, "
                f"worth {percent(self.decision.gain[most], signed=True)})"
            )
        return lines


def sensitivity_of(
    study: Study, candidates: Sequence[TrainingConfig], drawn: Contest
) -> Sensitivity:
    """Judges the best config of a study.

    Args:
        study: finished.
        candidates: configs that were drawn against each other.
        drawn: the draws.
    """
    job, ranking = study.job, study.ranking
    found = families(ranking.table, ranking.expected)
    return Sensitivity(
        neighbourhood=neighbourhood(study.best.config, study.space.axes, job.project, job.is_legal),
        rivals=tuple((family, ranking.table.config(family.best)) for family in found),
        candidates=tuple(candidates),
        decision=decisive(drawn.log_speed, drawn.fits),
    )


def _step_json(step: Step) -> dict[str, Any]:
    return {
        "axis": step.axis,
        "before": step.before,
        "after": step.after,
        "gain": step.gain,
        "fits": step.fits,
    }
