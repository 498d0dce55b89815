"""Candidates drawn against each other."""

from __future__ import annotations

import numpy as np
import pytest

from search.winner import DRAWS, contest
from specs.config import TrainingConfig
from surrogate.learned import shipped
from surrogate.projection import project
from tests.surrogate.time_cases import study


def test_each_candidate_fits_as_often_as_it_is_said_to_and_wins_no_more_often() -> None:
    configs = [TrainingConfig(tp=8, sequence_parallel=True, mbs=mbs) for mbs in (4, 8, 12, 16, 24)]
    cases = study(*configs, model="llama3-8b", gpu="H100-SXM", num_gpus=8, gbs=48)
    told = project(cases).fit_probability
    assert told.min() < 0.9  # some of them are at the edge
    found = contest(cases, learned=shipped())
    often = found.fits.mean(axis=0)
    assert often == pytest.approx(told, abs=1.01 / DRAWS)
    assert np.all(found.probability_best <= often + 1e-12)
    assert found.probability_best.sum() == pytest.approx(often.max())
