"""A real study with a hidden truth: draws of the surrogate's own uncertainty are the oracle.

All methods know the projection of the core space of the Mixtral 8x22B study. Each draw moves every
constant of the physics within its posterior, adds a smooth error over configs of the size that the
residual leaves open, and scales memory. PoolSampler knows nothing of the draw nor of the posterior:
it expects every part of a step to be off by ``PART_SD``, and configs by ``CONFIG_SD`` in as far as
they differ in the dimensionless coordinates of the projection. Two variants show what it makes of
the axes alone, and of the posterior itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.search.problem import POSTERIOR, PROJECTION, Floats, Problem
from benchmarks.search.tables import varying_axes
from search.config_pool import loadings, waves
from search.space import Space
from studies.inputs import resolve
from surrogate.features import features
from surrogate.learned import shipped
from surrogate.projection import project
from surrogate.step_time import step_time
from surrogate.time_constants import TimeConstants

STUDY = "mixtral_8x22b_mi355x"
NOISE = 0.01
MEMORY_SD, MEMORY_OWN_SD = 0.05, 0.01
"""Log sd of memory that all configs share, and of each by itself."""
PART_SD, CONFIG_SD = 0.2, 0.15
"""Log sd by which PoolSampler expects a part of the step, and a config by itself, to be off: round
numbers (assumed); chosen on draws 1000 to 1024, which the benchmark does not use."""
WAVES = 256
"""Random features that stand for the covariance of the residual (Rahimi, Recht, 2007)."""


def hidden_truths(draws: int, first: int = 0) -> Iterator[Problem]:
    """One problem a draw."""
    job = resolve(STUDY)
    space = Space.of(job.experiment, job.cluster)
    table = space.rows(np.arange(len(space)))
    learned = shipped()
    cases = job.cases(table)
    seen = project(cases, learned.constants, learned)
    axes, codes = varying_axes(table)
    share = seen.device_gib / job.cluster.gpu.hbm_gib.value
    step = step_time(cases, learned.constants, breakdown=True)
    base = step.step_time_s
    like = learned.residual.predict(cases)
    start = _start(seen.tokens_per_s_per_gpu, share)
    points = features(cases)
    assert step.breakdown is not None
    shares = np.column_stack(
        [np.broadcast_to(part / base, base.shape) for part in step.breakdown.values()]
    )
    unsure = {
        PROJECTION: np.column_stack([PART_SD * shares, CONFIG_SD * waves(points)]),
        POSTERIOR: loadings(cases),
    }
    for seed in range(first, first + draws):
        generator = np.random.default_rng([seed, 21])
        moved = TimeConstants(
            {
                name: value + learned.posterior_sd.get(name, 0.0) * generator.standard_normal()
                for name, value in learned.constants.log_values.items()
            }
        )
        log_gain = np.log(base / step_time(cases, moved).step_time_s)
        log_gain += like.sd * _waves(points, generator)
        held = MEMORY_SD * generator.standard_normal()
        own = MEMORY_OWN_SD * generator.standard_normal(len(table))
        yield Problem(
            name=f"{STUDY}-{seed}",
            axes=axes,
            codes=codes,
            speed=np.asarray(seen.tokens_per_s_per_gpu),
            memory=share,
            true_speed=seen.tokens_per_s_per_gpu * np.exp(log_gain),
            true_memory=share * np.exp(held + own),
            noise=NOISE,
            start=start,
            loadings=unsure,
            seed=seed,
        )


def _waves(points: Floats, generator: np.random.Generator) -> Floats:
    """A draw of a unit-variance Gaussian process with covariance exp(-distance^2 / 2)."""
    slopes = generator.standard_normal((points.shape[1], WAVES))
    phases = generator.uniform(0, 2 * np.pi, WAVES)
    weights = generator.standard_normal(WAVES)
    drawn: Floats = np.sqrt(2 / WAVES) * np.cos(points @ slopes + phases) @ weights
    return drawn


def _start(speed: Floats, share: Floats) -> int:
    """A careful first config: the median throughput of those that surely fit."""
    safe = np.flatnonzero(share < 0.8)
    order = safe[np.argsort(speed[safe], kind="stable")]
    return int(order[len(order) // 2])
