"""Sample logs and traces, one for each format, written for these tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from collectors.ingestion import Ingested, ingest

SAMPLES = Path(__file__).parent / "samples"


@pytest.fixture
def sample() -> Callable[..., Ingested]:
    """Reads the sample of this name, with columns that a user states."""

    def read(name: str, **stated: str) -> Ingested:
        return ingest(SAMPLES / name, stated)

    return read


@pytest.fixture
def read_text(tmp_path: Path) -> Callable[[str], Ingested]:
    """Reads a log of this text."""

    def read(text: str, name: str = "run.log") -> Ingested:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return ingest(path, {})

    return read
