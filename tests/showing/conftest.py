"""A finished study, and a browser to look at what is made of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from studies.cli.main import call
from studies.report.facts import StudyFacts, read_facts
from studies.storage import StorageAddress, storage_address

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGE_MS = 120_000
"""For so long a busy machine may draw a page."""
STUDY = """\
name: shown
model: mixtral-8x7b
seq_len: 4096
global_batch_size: 128
target_tokens: 5.0e+11
cluster: 2x8xMI300X
price_usd_per_gpu_hour: 2.0
stack: {framework: Primus, version: "<script>alert('stack')</script>"}
baseline: {tp: 2, pp: 4, ep: 4, mbs: 4, sharding: zero1}
axes:
  tp: [1, 2]
  pp: [2, 4]
  cp: 1
  ep: [2, 4]
  mbs: [1, 2, 4]
  vpp: [1, 2]
  schedule: [1f1b, interleaved]
  recompute: [none, full]
  recompute_layers: [0, 1]
  precision: bf16
  sharding: zero1
  overlap: [none, dp]
trials: 20
"""


@dataclass(frozen=True)
class Finished:
    """A study that is done: where it is kept and the folder of its results."""

    name: str
    address: StorageAddress
    folder: Path

    @property
    def facts(self) -> StudyFacts:
        """What it says."""
        return read_facts(self.address, self.name)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A small MoE study whose baseline and some trials do not fit or are illegal."""
    folder = tmp_path_factory.mktemp("finished")
    study = folder / "shown.yaml"
    study.write_text(STUDY)
    storage = str(folder / "foretune.db")
    assert call(["tune", str(study), "--out", str(folder), "--storage", storage, "--json"]) == 0
    return Finished("shown", storage_address(storage, folder / "x.db"), folder)


@pytest.fixture(scope="session")
def report_file(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the study."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    storage = str(finished.folder / "foretune.db")
    assert call(["report", "shown", "--storage", storage, "--out", str(path), "--json"]) == 0
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, headless=True, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def serious_faults() -> Callable[[Any], list[str]]:
    """What axe-core finds serious or critical on a page."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
    )

    def faults(page: Any) -> list[str]:
        found = axe.Axe().run(page).response["violations"]
        return [
            f"{fault['id']}: {fault['nodes'][0]['html'][:160]}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]

    return faults
