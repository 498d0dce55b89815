"""What the tests of the toolbox share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.studies.toolbox.tiny import TINY


@pytest.fixture(scope="session")
def needs_torch() -> None:
    """Skips where torch or transformers is not installed."""
    pytest.importorskip("torch", reason="torch is not installed: pip install 'foretune[toolbox]'")
    pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'foretune[toolbox]'"
    )


@pytest.fixture
def tiny_config(tmp_path: Path, needs_torch: None) -> Path:  # noqa: ARG001
    """The config.json of a tiny Qwen2."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path
