"""The page on calibrating shows what the command prints."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from studies.cli.main import call

PAGE = Path(__file__).resolve().parents[2] / "docs" / "calibrating.md"
NUMBER = re.compile(r"\d+\.\d+")


def block(after: str) -> str:
    """The first block of code behind these words of the page."""
    found = re.search(r"```\w+\n(.*?)```", PAGE.read_text().partition(after)[2], re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = block("the smallest by hand").partition("foretune")[0]
    subprocess.run(["bash", "-c", table], check=True)
    assert call(["calibrate", "--runs", "runs.csv", "--out", "calibration.json"]) == 0
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    shown = [" ".join(line.split()) for line in block("`calibrate` prints").splitlines()]
    assert [NUMBER.sub("N", line) for line in shown] == [NUMBER.sub("N", line) for line in printed]
    for one, other in zip(shown, printed, strict=True):
        numbers = [[float(number) for number in NUMBER.findall(line)] for line in (one, other)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.1), other
