"""The README names only commands, options and files that exist, and its commands run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from studies.cli.main import call
from studies.inputs import shipped_studies
from tests.nursery import Nursery

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"(?:`|\.venv/bin/)foretune ([a-z][^`#\n]*)", README)
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
HUGGING_FACE = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


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


def test_its_commands_run(tmp_path: Path, nursery: Nursery) -> None:
    """All but the two of make, in few trials, from a folder that looks like an installed checkout.

    ``pretrain.yaml`` is the Primus experiment that a small study writes: its model ranks soon.
    """
    (tmp_path / "studies").symlink_to(ROOT / "studies")
    (tmp_path / "config.json").write_text(json.dumps(HUGGING_FACE))
    program = tmp_path / ".venv" / "bin" / "foretune"
    program.parent.mkdir(parents=True)
    few = '[ "$1" != tune ] || set -- "$@" --trials 8'
    program.write_text(f'#!/bin/sh\n{few}\nexec "{nursery.python()}" -m foretune "$@"\n')
    program.chmod(0o755)
    lines = [line for block in BLOCKS for line in block.splitlines() if "foretune " in line]
    assert len(lines) >= 4
    small = ROOT / "docs" / "example_study.yaml"
    lines[:0] = [
        f".venv/bin/foretune tune {small} --out small",
        "cp small/llama_8b/best.yaml pretrain.yaml",
    ]
    done = subprocess.run(
        ["bash", "-euc", "\n".join(lines)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
