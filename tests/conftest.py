"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.nursery import Nursery

# A busy machine is slow; speed is measured in benchmarks, not in tests.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """Public reference data: the folder FORETUNE_SHARED, or ``shared`` beside the checkout."""
    folder = Path(os.environ.get("FORETUNE_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "measured").is_dir():
        pytest.skip(f"public reference data is not at {folder}; set FORETUNE_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where processes start without importing anything."""
    held = Nursery()
    yield held
    held.close()
