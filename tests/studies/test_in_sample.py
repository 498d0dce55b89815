"""``validate`` says which runs were learned from: errors on them are in-sample."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specs import catalog
from specs.runs import RunTable, table_of
from studies.accuracy import validation_json
from studies.cli.main import call
from studies.cli.validate import in_sample_in_words
from surrogate.calibration import Calibration
from surrogate.in_sample import learned_from
from surrogate.learned import Learned
from surrogate.residual import Residual
from surrogate.run_cases import cases_of
from tests.studies.test_missing_columns import RUN, write


def runs(*speeds: str) -> RunTable:
    """One run a speed; every second with other microbatches."""
    rows = [
        RUN | {"run_id": str(n), "mbs": str(1 + n % 2), "tokens_per_s_per_gpu": speed}
        for n, speed in enumerate(speeds)
    ]
    return table_of(rows, catalog.model, catalog.gpu)


def taught_by(table: RunTable) -> Learned:
    """What these runs teach, with the rounding of the file that ships."""
    physics = replace(Learned.nothing(), calibration=Calibration.nothing())
    errors = np.log(table.tokens_per_s_per_gpu / physics.predict(table).value)
    residual = Residual.fit(cases_of(table), errors)
    return replace(physics, residual=Residual.from_json(residual.as_json()))


def test_runs_that_were_learned_from_are_counted() -> None:
    table = runs("7400", "8300", "7100", "")
    learned = taught_by(table.take([0, 1]))
    assert learned_from(table, learned).tolist() == [True, True, False, False]
    known = validation_json(table, learned)["in_sample"]
    assert known == {"runs": 3, "learned": 2, "calibrated": 0, "calibrated_peaks": 0}
    assert "2 of 3 runs" in in_sample_in_words(known, 0)[0]
    assert "in-sample" in in_sample_in_words(known, 0)[0]


def test_what_nobody_learned_from_is_passed_over() -> None:
    table = runs("7400", "8300")
    assert not learned_from(table, Learned.nothing()).any()
    assert not learned_from(table.take([]), taught_by(table)).any()
    assert in_sample_in_words(validation_json(table, Learned.nothing())["in_sample"], 0) == []


def test_runs_of_a_calibration_are_said_to_be_in_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, out = write(tmp_path / "first.csv", RUN), str(tmp_path / "c.json")
    both = write(tmp_path / "both.csv", RUN, RUN | {"run_id": "b", "mbs": "2", "peak_mem_gb": ""})
    assert call(["calibrate", "--runs", str(first), "--out", out]) == 0
    capsys.readouterr()
    assert call(["validate", str(both), "--calibration", out, "--json"]) == 0
    known = json.loads(capsys.readouterr().out)["in_sample"]
    assert known == {"runs": 2, "learned": 0, "calibrated": 1, "calibrated_peaks": 1}
    assert call(["validate", str(both), "--calibration", out]) == 0
    assert "1 of 2 runs and 1 of 1 peaks" in capsys.readouterr().out
    assert call(["validate", str(both)]) == 0
    assert "in-sample" not in capsys.readouterr().out
