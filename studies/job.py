"""Job: an experiment on a cluster, which is what every command works on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.formats.experiment import Experiment
from specs.legality import legal_mask, why_illegal
from specs.legality_scope import Mask
from surrogate.cases import Cases, Column
from surrogate.learned import Learned, shipped
from surrogate.projection import Projections, project, throughput


@dataclass(frozen=True)
class Job:
    """A training job and where it is to run.

    ``notes`` are the reader's and what was assumed here, one sentence each. ``learned`` is what a
    profile of the node or measured runs taught; None: what the package learned from public runs.
    ``failed`` are configs that gave no throughput when they were run for real: never recommended.
    """

    experiment: Experiment
    cluster: Cluster
    notes: tuple[str, ...]
    learned: Learned | None = None
    failed: tuple[TrainingConfig, ...] = ()

    @property
    def belief(self) -> Learned:
        """What the job is projected with."""
        return shipped() if self.learned is None else self.learned

    @property
    def baseline(self) -> TrainingConfig:
        """The config that the input describes."""
        return self.experiment.baseline

    def cases(self, table: ConfigTable) -> Cases:
        """The configs of ``table`` as runs of this job."""
        return Cases.of_study(table, self.experiment.workload, self.cluster, self.experiment.stack)

    def why_illegal(self, config: TrainingConfig) -> list[str]:
        """Why ``config`` is illegal here, one sentence a rule; empty where it is legal."""
        job = self.experiment
        return why_illegal(config, job.workload, self.cluster, job.stack)

    def is_legal(self, table: ConfigTable) -> Mask:
        """Which rows of ``table`` are legal here, shape (n,)."""
        job = self.experiment
        return legal_mask(table, job.workload, self.cluster, job.stack)

    def tokens_per_s_per_gpu(self, table: ConfigTable) -> Column:
        """Throughput of every row, without its memory."""
        return throughput(self.cases(table), self.belief.constants, self.belief)

    def device_gib(self, table: ConfigTable) -> Column:
        """Peak memory of every row, without its throughput."""
        return self.belief.peaks().memory(self.cases(table)).device_gib

    def project(self, table: ConfigTable) -> Projections:
        """Memory and throughput of every row of ``table``, given what ran out of memory."""
        cases = self.cases(table)
        found = project(cases, self.belief.constants, self.belief)
        fits = self.belief.peaks().fit_probability(cases, found.device_gib)
        return replace(found, fit_probability=fits)
