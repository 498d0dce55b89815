"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.nursery import Nursery
from tests.unsynchronised import wait_for_no_disk

# A busy machine is slow; speed is measured in benchmarks, not in tests. The same code passes or
# fails the same way each time; `pytest --hypothesis-profile explore` tries other examples.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("repeatable")
wait_for_no_disk()

REPOSITORY = Path(__file__).resolve().parents[1]
TOGETHER = {
    "alone": "torch", "on_two": "torch", "client": "faults of an LLM", "finished": "report",
    "made": "docs", "node_rows": "node profile", "told_once": "told", "tuned": "tuned",
    "warm_llm": "faults of an LLM", "warm_torch": "torch", "whole": "workers",
}  # fmt: skip
"""Fixture that takes seconds to make -> the group whose tests one worker runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keeps tests of a costly fixture on one worker (``--dist loadgroup``): it is made once."""
    for item in items:
        needed = getattr(item, "fixturenames", ())
        for group in {TOGETHER[name] for name in needed if name in TOGETHER}:
            item.add_marker(pytest.mark.xdist_group(group))


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
