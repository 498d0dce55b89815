"""What the tests of the toolbox share."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.nursery import python_with
from tests.studies.toolbox.tiny import TINY
from tests.warm import TORCH


@pytest.fixture(scope="session")
def needs_torch() -> None:
    """Skips where torch or transformers is not installed."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'foretune[toolbox]'")
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'foretune[toolbox]'"
    )


@pytest.fixture
def warm_torch(needs_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """Workers start without importing anything; what ended one is not told, but that it ended."""
    monkeypatch.setattr(sys, "executable", python_with(TORCH))


@pytest.fixture
def tiny_config(tmp_path: Path, needs_torch: None) -> Path:  # noqa: ARG001
    """The config.json of a tiny Qwen2."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path
