"""Where a study starts: the baseline as stated, or the usual start where no layout is stated."""

from __future__ import annotations

from dataclasses import replace

from search.axes import Setting
from search.usual_start import LAYOUT_AXES, usual_start
from specs.config import ConfigTable
from studies.job import Job
from studies.wording import describe
from surrogate.cases import Column
from surrogate.learned import shipped


def started(job: Job) -> Job:
    """The job with the usual start as its baseline, and a note that says why, if it has none.

    A layout that the input states stays, as does the baseline where no usual start is legal. What
    fits is judged with what the package knows, whatever a calibration adds: a baseline that moved
    with every measured run could not be compared with.
    """
    experiment = job.experiment
    stated = experiment.stated
    if stated is None or stated & frozenset(LAYOUT_AXES):
        return job
    setting = Setting(experiment.workload, job.cluster, experiment.stack, experiment.baseline)
    held = {name: (getattr(experiment.baseline, name),) for name in stated}
    found = usual_start(setting, experiment.settings.axes | held, lambda table: _memory(job, table))
    if found is None:
        return job
    note = f"baseline: {describe(found.config)}, because no layout is stated and {found.why}."
    placed = replace(experiment, baseline=found.config, stated=None)
    return replace(job, experiment=placed, notes=(*job.notes, note))


def _memory(job: Job, table: ConfigTable) -> tuple[Column, Column]:
    """Fit probability and peak in GiB of every row."""
    cases, peaks = job.cases(table), shipped().peaks()
    peak_gib = peaks.memory(cases).device_gib
    return peaks.fit_probability(cases, peak_gib), peak_gib
