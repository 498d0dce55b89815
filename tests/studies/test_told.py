"""What is told to a job reaches every other command: tune, report, project and calibrations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from studies.report.facts import load
from studies.storage import storage_address
from tests.studies.conftest import Ran, json_of

STUDY = """\
name: told
model: llama3.1-8b
seq_len: 8192
global_batch_size: 128
cluster: 2x8xMI300X
stack: {framework: Primus}
baseline: {tp: 2, mbs: 1, sharding: zero1}
axes:
  tp: [1, 2]
  pp: [1, 2]
  cp: 1
  mbs: [1, 2]
  vpp: 1
  schedule: 1f1b
  recompute: [none, full]
  precision: bf16
  sharding: zero1
  overlap: none
trials: 8
"""


@dataclass(frozen=True)
class ToldOnce:
    """A job of which two runs were told: where it lies, its first result and what was asked."""

    study: Path
    out: Path
    first: dict[str, Any]
    asked: list[dict[str, Any]]


@pytest.fixture(scope="module")
def told_once(tmp_path_factory: pytest.TempPathFactory) -> ToldOnce:
    """A job whose second run, a config that it recommended, ran out of memory; for copies."""
    folder = tmp_path_factory.mktemp("told")
    study, out = folder / "told.yaml", folder / "out"
    study.write_text(STUDY)
    first = json_of("tune", study, "--out", out)
    asked = json_of("ask", study, "--runs", "2", "--slot", "4h", "--out", out)["runs"]
    json_of("tell", study, "--run", "0", "--speed", "8100", "--peak", "71", "--out", out)
    json_of("tell", study, "--run", "1", "--oom", "--out", out)
    assert asked[1]["config"] in recommended(first)
    return ToldOnce(study, out, first, asked)


class Loop:
    """One job: commands on it give their JSON."""

    def __init__(self, foretune: Callable[..., Ran], folder: Path) -> None:
        self.foretune, self.out = foretune, folder / "out"
        self.study = folder / "told.yaml"
        self.study.write_text(STUDY)

    def __call__(self, command: str, *arguments: object) -> Any:
        """The JSON of a command."""
        ran = self.foretune(command, self.study, *arguments, "--out", self.out, "--json")
        assert ran.code == 0, ran.err
        return ran.json

    def report(self) -> Ran:
        """Writes the report of the study."""
        storage = f"sqlite:///{self.out}/foretune.db"
        return self.foretune("report", "--storage", storage, "--out", self.out / "report.html")

    def page(self) -> str:
        """The report as text."""
        return (self.out / "report.html").read_text()


@pytest.fixture
def loop(tmp_path: Path, foretune: Callable[..., Ran]) -> Loop:
    """A job that nothing was asked of."""
    return Loop(foretune, tmp_path)


@pytest.fixture
def told(told_once: ToldOnce, loop: Loop) -> tuple[Loop, dict[str, Any], dict[str, Any]]:
    """A job, its first result, and a config it recommended that ran out of memory since."""
    shutil.copytree(told_once.out, loop.out)
    return loop, told_once.first, told_once.asked[1]


def recommended(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every config that a result recommends."""
    return [e["config"] for e in (result["best"], result["optimum"], *result["shortlist"])]


def test_tune_after_an_oom_recommends_another_config(told: tuple[Loop, Any, Any]) -> None:
    loop, first, failed = told
    ran = loop.foretune("tune", loop.study, "--out", loop.out, "--json")
    again = ran.json
    assert again["study_name"] == first["study_name"]
    assert failed["config"] not in recommended(again)
    said = [line for line in ran.err.splitlines() if "2 runs were told to this job" in line]
    assert len(said) == 1
    assert "1 measured, 1 out of memory" in said[0]
    assert again["told"]["failed"] == [failed["config"]]
    # What was told moves the peak of the baseline, which ran, and the speed of all.
    before, now = (r["baseline"]["projection"] for r in (first, again))
    assert now["memory"]["peak_gib"] > 1.1 * before["memory"]["peak_gib"]
    assert now["throughput"]["tokens_per_s_per_gpu"] == pytest.approx(8100, rel=0.03)
    assert now["throughput"]["trust"] == "measured"
    kept = json.loads((loop.out / "told" / "result.json").read_text())
    assert kept["best"]["config"] == again["best"]["config"]
    launch = (loop.out / "told" / "best.yaml").read_text()
    assert f"micro_batch_size: {again['best']['config']['mbs']}" in launch
    assert loop("tune")["best"] == again["best"]


def test_the_report_ranks_again_without_another_tune(told: tuple[Loop, Any, Any]) -> None:
    loop, _, failed = told
    assumed = "a cluster was assumed, which was told to this job by nobody"
    load(storage_address(None, loop.out / "foretune.db"), "told").set_user_attr("notes", [assumed])
    ran = loop.report()
    assert ran.code == 0, ran.err
    assert "2 runs were told to this job" in ran.out
    assert "assumed" not in ran.out
    assert assumed in loop.page()
    page = loop.page()
    best = page.split('id="answer"')[1].split('id="memory"')[0]
    again = loop("tune")
    speed = again["best"]["projection"]["throughput"]["tokens_per_s_per_gpu"]
    assert f"{speed:,.0f}" in best
    assert failed["config"] != again["best"]["config"]
    # Every run is listed, whatever became of it.
    runs = page.split("Real runs against what was projected without them")[1].split("</table>")[0]
    assert "out of memory" in runs
    assert "over 192" in runs
    assert "measured" in runs
    assert "71.0" in runs
    loop.report()
    assert f"{speed:,.0f}" in loop.page().split('id="answer"')[1].split('id="memory"')[0]


def test_a_crash_alone_takes_a_config_out(loop: Loop) -> None:
    first = loop("tune")
    asked = loop("ask", "--runs", "2", "--slot", "4h")["runs"]
    loop("tell", "--run", "1", "--crash", "NCCL timeout")
    again = loop("tune")
    assert asked[1]["config"] in recommended(first)
    assert asked[1]["config"] not in recommended(again)
    # Nothing but that was told: projections stay as they were.
    assert again["baseline"]["projection"] == first["baseline"]["projection"]
    loop.report()
    runs = loop.page().split("Real runs against")[1].split("</table>")[0]
    assert "crashed" in runs
    assert "still out" in runs


def test_a_calibration_file_knows_what_ran_out(
    told: tuple[Loop, Any, Any], foretune: Callable[..., Ran], tmp_path: Path
) -> None:
    loop, _, failed = told
    path = loop.out / "told" / "measured" / "calibration.json"
    kept = json.loads(path.read_text())
    assert [run["config"] for run in kept["out_of_memory"]] == [failed["config"]]
    changed = [
        f"--set={name}={value}" for name, value in failed["config"].items()
        if name in ("tp", "pp", "mbs", "cross_entropy_fusion", "overlap", "sequence_parallel")
    ]  # fmt: skip
    plain = foretune("project", loop.study, *changed, "--json").json
    with_file = ("--calibration", path)
    ran = foretune("project", loop.study, *changed, *with_file, "--json")
    assert plain["config"] == failed["config"]
    assert plain["memory"]["fit_probability"] > 0.9
    assert (ran.json["memory"]["fits"], ran.json["memory"]["fit_probability"]) == (False, 0.0)
    assert "1 config of this job that ran out of memory" in ran.err
    other = foretune("tune", loop.study, *with_file, "--out", tmp_path / "other", "--json").json
    assert failed["config"] not in recommended(other)


def test_an_oom_alone_is_written_to_the_calibration(loop: Loop) -> None:
    loop("ask", "--runs", "1", "--slot", "4h")
    files = loop("tell", "--run", "0", "--oom")["files"]
    path = next(Path(file) for file in files if file.endswith("calibration.json"))
    assert len(json.loads(path.read_text())["out_of_memory"]) == 1


def test_the_table_of_tell_says_measured_and_how_it_is_ranked(
    loop: Loop, foretune: Callable[..., Ran]
) -> None:
    loop("ask", "--runs", "1", "--slot", "4h")
    shown = foretune("tell", loop.study, "--run", "0", "--speed", "8100", "--peak", "71",
                     "--out", loop.out).out  # fmt: skip
    assert "8,100 to 8,100" not in shown
    assert "ranked by tokens/s/GPU now times the probability to fit" in " ".join(shown.split())
    row = next(line for line in shown.splitlines() if " 8,100 " in line)
    assert row.split().count("measured") == 2
    assert "71" in row.split()
    assert "GiB before" in shown


def test_an_oom_that_a_finished_run_refutes_moves_no_memory(loop: Loop) -> None:
    """Of two configs the one that is projected to need more finished, the other ran out."""
    asked = loop("ask", "--runs", "2", "--slot", "4h")["runs"]
    lean, large = sorted(asked, key=lambda run: run["expected"]["peak_gib"])
    before = loop("tune")["baseline"]["projection"]
    loop("tell", "--run", str(large["run"]), "--speed", "8100")
    ran = loop.foretune("tell", loop.study, "--run", str(lean["run"]), "--oom", "--out", loop.out)
    said = " ".join((ran.out + ran.err).split())
    assert f"run {lean['run']} ran out of memory and run {large['run']}, which is" in said
    kept = json.loads((loop.out / "told" / "measured" / "calibration.json").read_text())
    assert kept["out_of_memory"] == []
    again = loop("tune")
    assert again["baseline"]["projection"]["memory"] == before["memory"]
    assert lean["config"] not in recommended(again)


def test_tell_shows_the_memory_of_project_with_its_calibration(loop: Loop) -> None:
    loop("ask", "--runs", "2", "--slot", "4h")
    loop("tell", "--run", "0", "--speed", "8100", "--peak", "71")
    told = loop("tell", "--run", "1", "--oom")
    calibration = loop.out / "told" / "measured" / "calibration.json"
    others = [entry for entry in told["ranking"] if entry["run"] is None][:2]
    assert others
    for entry in others:
        axes = [
            f"--set={name}={value}" for name, value in entry["config"].items()
            if name in ("tp", "pp", "mbs", "sequence_parallel", "cross_entropy_fusion")
            or (name.startswith("recompute") and value not in (None, "none", [], 0))
        ]  # fmt: skip
        ran = loop.foretune("project", loop.study, *axes, "--calibration", calibration, "--json")
        assert ran.json["config"] == entry["config"]
        memory = ran.json["memory"]
        assert entry["peak_gib"] == pytest.approx(memory["peak_gib"], rel=1e-4)
        assert entry["fit_probability"] == pytest.approx(memory["fit_probability"], abs=1e-4)
    asked = loop("ask", "--runs", "1", "--slot", "4h")["runs"]
    assert all(run["expected"]["fit_probability"] >= 0.5 for run in asked)
