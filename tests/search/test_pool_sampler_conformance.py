"""Optuna's own conformance tests for samplers, as far as they apply to a pool.

Left out, with the reason:

* ``SingleOnlySamplerTestCase``: the sampler handles several objectives.
* ``BasicSamplerTestCase.test_partial_fixed_sampling`` for a sampler *with* a pool: a pool has no
  free parameters; fixed ones are enqueued, and ``test_pool_sampler`` checks that.

Everything else runs on the sampler as it comes without a pool, which enumerates the space of the
objective, because the suites define spaces of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from search.pool_sampler import PoolSampler

optuna.logging.set_verbosity(optuna.logging.ERROR)


class _WithoutPool:
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return PoolSampler


class TestBasic(_WithoutPool, BasicSamplerTestCase):
    """Independent sampling, NaN, partial fixing, dynamic spaces."""


class TestRelative(_WithoutPool, RelativeSamplerTestCase):
    """Relative sampling and threads."""


class TestMultiObjective(_WithoutPool, MultiObjectiveSamplerTestCase):
    """Several objectives."""
