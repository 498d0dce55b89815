"""The README names only commands, options and files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from studies.cli.main import call
from studies.inputs import shipped_studies

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?:`|\.venv/bin/)foretune ([a-z][^`#\n]*)", README)


def test_links_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert not [target for target in targets if not (ROOT / target).is_file()]


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_options_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split()
    assert call([words[0], "--help"]) == 0
    told = capsys.readouterr().out
    assert not [word for word in words[1:] if word.startswith("--") and word not in told]
    paths = [word for word in words if word.startswith("studies/")]
    assert all((ROOT / path).is_file() for path in paths)
    names = [word for word in words[1:] if re.fullmatch(r"[a-z0-9.]+_[a-z0-9._]+", word)]
    assert set(names) <= set(shipped_studies())


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\w+)", README, flags=re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"tune", "test"} <= set(targets)
    assert all(f"\n{target}:" in makefile for target in targets)
