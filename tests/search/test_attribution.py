"""Attribution recovers effects that are known because the projection is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from search.attribution import attribute
from specs.choices import Overlap, Precision
from specs.config import ConfigTable, TrainingConfig

BASELINE = TrainingConfig(mbs=1)
BEST = TrainingConfig(mbs=2, precision=Precision.FP8, overlap=Overlap.DP)


@dataclass(frozen=True)
class _Seen:
    tokens_per_s_per_gpu: NDArray[Any]
    device_gib: NDArray[Any]
    fit_probability: NDArray[Any]


def _project(table: ConfigTable) -> _Seen:
    """mbs 2 brings 10%, fp8 50%, overlap 20%, and fp8 with overlap 5% more; mbs 2 does not fit."""
    fp8, overlap, mbs = table.precision == Precision.FP8, table.overlap > 0, table.mbs == 2
    speed = 100 * 1.1**mbs * 1.5**fp8 * 1.2**overlap * 1.05 ** (fp8 & overlap)
    fits = np.where(mbs & ~fp8, 0.1, 0.9)
    return _Seen(speed, np.ones(len(table)), fits)


def _everything(table: ConfigTable) -> NDArray[np.bool_]:
    return np.ones(len(table), dtype=bool)


def test_effects_and_synergies() -> None:
    found = attribute(BASELINE, BEST, _project, _everything)
    effects = {effect.change.split()[0]: effect for effect in found.effects}
    assert effects["mbs"].alone == pytest.approx(0.1)
    assert effects["mbs"].alone_fits is False
    assert effects["precision"].needed == "needed to fit"
    assert effects["mbs"].needed == ""
    assert effects["precision"].alone == pytest.approx(0.5)
    assert effects["precision"].last == pytest.approx(1.5 * 1.05 - 1)
    assert effects["precision"].axes == {"precision": ("bf16", "fp8")}
    assert found.together == pytest.approx(1.1 * 1.5 * 1.2 * 1.05 - 1)
    strongest = found.synergies[0]
    assert {strongest.first.split()[0], strongest.second.split()[0]} == {"precision", "overlap"}
    assert strongest.gain == pytest.approx(0.05)


def test_illegal_mixtures_are_said_and_never_projected() -> None:
    def without_overlap_alone(table: ConfigTable) -> NDArray[np.bool_]:
        return np.asarray((table.overlap == 0) | (table.precision == Precision.FP8))

    def project(table: ConfigTable) -> _Seen:
        assert without_overlap_alone(table).all()
        return _project(table)

    found = attribute(BASELINE, BEST, project, without_overlap_alone)
    effects = {effect.change.split()[0]: effect for effect in found.effects}
    assert effects["overlap"].alone is None
    assert effects["overlap"].alone_fits is None
    assert effects["precision"].last is None


def test_the_same_config_changes_nothing() -> None:
    found = attribute(BASELINE, BASELINE, _project, _everything)
    assert (found.effects, found.synergies, found.together) == ((), (), 0.0)
