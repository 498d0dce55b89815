"""Real runs: what is asked, how results come back, what is refused, what follows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specs.config import TrainingConfig
from studies.run_requests import duration_s
from tests.nursery import Nursery
from tests.studies.conftest import SMALL_STUDY, Ran, json_of

Command = Callable[..., Ran]


ONE_RUN = ("ask", "--runs", "1", "--slot", "1h")
"""How most tests begin."""


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of results after ONE_RUN on the small study, for copies, and the JSON."""
    folder = tmp_path_factory.mktemp("one_run")
    (folder / "small.yaml").write_text(SMALL_STUDY)
    command, *options = ONE_RUN
    out = folder / "out"
    return out, json_of(command, folder / "small.yaml", *options, "--out", out)


@pytest.fixture
def asked(
    small_study: Path, tmp_path: Path, foretune: Command, one_run: tuple[Path, Any]
) -> Callable[..., Any]:
    """Runs ask or tell on the small study and returns its JSON."""
    out = tmp_path / "out"

    def call(command: str, *arguments: object, code: int = 0) -> Any:
        if (command, *arguments) == ONE_RUN and not out.exists():
            made, result = one_run
            shutil.copytree(made, out)
            return json.loads(json.dumps(result).replace(str(made), str(out)))
        ran = foretune(command, small_study, *arguments, "--out", out, "--json")
        assert ran.code == code, ran.err
        return ran.json if code == 0 else ran.err

    return call


def test_the_baseline_comes_first_and_the_slot_is_kept(asked: Callable[..., Any]) -> None:
    result = asked("ask", "--slot", "40m")
    runs = result["runs"]
    assert [run["run"] for run in runs] == list(range(len(runs)))
    assert runs[0]["config"]["tp"] == 2
    assert runs[0]["config"]["pp"] == 2
    assert "baseline" in runs[0]["reason"]
    assert sum(run["expected"]["run_s"] for run in runs) <= 40 * 60
    configs = [TrainingConfig.from_labels(run["config"]) for run in runs]
    assert len(set(configs)) == len(configs) > 1
    assert all(Path(path).is_file() for run in runs for path in run["files"])
    assert result["outstanding"] == [run["run"] for run in runs]


def test_asking_again_asks_for_other_configs(asked: Callable[..., Any]) -> None:
    first = asked("ask", "--slot", "25m", "--runs", "2")["runs"]
    second = asked("ask", "--slot", "25m", "--runs", "2")["runs"]
    assert second[0]["run"] == 2
    labels = [json.dumps(run["config"], sort_keys=True) for run in first + second]
    assert len(set(labels)) == 4


def test_results_come_back_in_any_order(asked: Callable[..., Any]) -> None:
    asked("ask", "--runs", "4", "--slot", "4h")
    asked("tell", "--run", "2", "--oom")
    asked("tell", "--run", "0", "--speed", "9000", "--peak", "100")
    after = asked("tell", "--run", "3", "--crash", "NCCL timeout")
    states = {run["run"]: run["state"] for run in after["runs"]}
    assert states == {0: "measured", 1: "running", 2: "out of memory", 3: "crashed"}
    ranking = after["ranking"]
    measured = next(entry for entry in ranking if entry["run"] == 0)
    assert measured["tokens_per_s_per_gpu"] == 9000
    assert measured["trust"] == "measured"
    assert {entry["run"] for entry in ranking[-2:]} == {2, 3}
    assert any(path.endswith("calibration.json") for path in after["files"])
    again = asked("ask", "--runs", "2", "--slot", "4h")["runs"]
    assert "baseline" not in again[0]["reason"]


def test_what_is_measured_moves_the_projections_of_the_others(asked: Callable[..., Any]) -> None:
    runs = asked("ask", "--runs", "1", "--slot", "1h")["runs"]
    slow = 0.6 * runs[0]["expected"]["projected_tokens_per_s_per_gpu"]
    after = asked("tell", "--run", "0", "--speed", slow)
    others = [entry for entry in after["ranking"] if entry["run"] is None]
    assert others
    assert all(e["tokens_per_s_per_gpu"] < e["projected_before"] for e in others)


def test_an_oom_stays_in_the_table_and_moves_the_memory_of_its_neighbours(
    asked: Callable[..., Any],
) -> None:
    runs = asked("ask", "--runs", "2", "--slot", "2h")["runs"]
    before = asked("tell", "--run", "0", "--speed", "7000")["ranking"]
    after = asked("tell", "--run", "1", "--oom")["ranking"]
    told = next(entry for entry in after if entry["run"] == 1)
    assert told["config"] == runs[1]["config"]
    assert (told["state"], told["fit_probability"]) == ("out of memory", 0.0)
    assert told["fit_probability_before"] > 0.5

    def risk(ranking: list[Any]) -> dict[str, float]:
        return {
            json.dumps(e["config"], sort_keys=True): e["peak_gib"]
            for e in ranking
            if e["run"] is None
        }

    old, new = risk(before), risk(after)
    shared = old.keys() & new.keys()
    assert shared
    assert all(new[key] > old[key] for key in shared)


def test_a_measured_peak_moves_the_memory_of_the_others(asked: Callable[..., Any]) -> None:
    run = asked("ask", "--runs", "1", "--slot", "1h")["runs"][0]
    peak = 1.2 * run["expected"]["peak_gib"]
    first = asked("tell", "--run", "0", "--speed", "7000", "--peak", peak)["ranking"]
    own = next(entry for entry in first if entry["run"] == 0)
    assert own["peak_gib"] == pytest.approx(peak, rel=0.05)
    assert asked("ask", "--runs", "1", "--slot", "1h")["runs"][0]["expected"]["peak_gib"] > 0


def test_told_peaks_are_kept_in_the_calibration_that_other_jobs_take(
    asked: Callable[..., Any], tmp_path: Path
) -> None:
    run = asked("ask", "--runs", "1", "--slot", "1h")["runs"][0]
    peak, speed = 0.9 * run["expected"]["peak_gib"], 7000
    told = asked("tell", "--run", "0", "--speed", speed, "--peak", peak, "--counter", "allocated")
    assert told["runs"][0]["counter"] == "allocated"
    path = next(path for path in told["files"] if path.endswith("calibration.json"))
    kept = json.loads(Path(path).read_text())
    assert [peak["run_id"] for peak in kept["peaks"]] == [kept["runs"][0]["run_id"]]
    # Another study of the same job begins with what that run taught.
    other = ("--runs", "1", "--slot", "1h", "--storage", tmp_path / "other.db")
    plain = asked("ask", *other)["runs"][0]["expected"]
    again = asked("ask", *other, "--calibration", path)["runs"][0]["expected"]
    assert plain["tokens_per_s_per_gpu"] != again["tokens_per_s_per_gpu"]
    assert again["trust"] in ("calibrated", "measured")


def test_what_is_asked_has_the_numbers_of_project(
    asked: Callable[..., Any], small_study: Path, foretune: Command
) -> None:
    expected = asked("ask", "--runs", "1", "--slot", "1h")["runs"][0]["expected"]
    projected = foretune("project", small_study, "--json").json
    speed, memory = projected["throughput"], projected["memory"]
    assert expected["tokens_per_s_per_gpu"] == pytest.approx(
        speed["tokens_per_s_per_gpu"], rel=1e-3
    )
    assert expected["interval90"] == pytest.approx(speed["interval90"], rel=1e-3)
    assert expected["fit_probability"] == pytest.approx(memory["fit_probability"], abs=0.01)
    assert expected["peak_gib"] == pytest.approx(memory["peak_gib"], rel=1e-3)


def test_a_baseline_that_does_not_fit_gives_way_to_its_neighbour(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    text = small_study.read_text().replace("{tp: 2, pp: 2, mbs: 1", "{tp: 1, pp: 1, mbs: 32")
    text = text.replace("mbs: [1, 2, 4]", "mbs: [1, 2, 4, 32]").replace(
        "cluster: 2x8", "cluster: 1x2"
    )
    small_study.write_text(text)
    out = ("--out", tmp_path / "out", "--json")
    ran = foretune("ask", small_study, "--runs", "2", "--slot", "4h", *out)
    assert ran.code == 0, ran.err
    first, second = ran.json["runs"]
    assert any("the baseline is not asked" in note for note in ran.json["notes"])
    assert "nearest to the baseline that fits" in first["reason"]
    assert first["expected"]["fit_probability"] >= 0.9
    assert "nearest" not in second["reason"]


def test_told_runs_are_noted_on_both_studies(asked: Callable[..., Any], tmp_path: Path) -> None:
    import optuna

    asked("tune")
    asked("ask", "--runs", "1", "--slot", "1h")
    asked("tell", "--run", "0", "--speed", "7000")
    storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'out' / 'foretune.db'}")
    for name in ("small", "small/measured"):
        study = storage.get_study_id_from_name(name)
        attributes = storage.get_study_system_attrs(study)
        text = "".join(str(v) for k, v in attributes.items() if "note_str" in k)
        assert "run 0: 7,000 tokens/s/GPU" in text
    assert any("plot_data:measured" in key for key in storage.get_study_system_attrs(1))


@pytest.mark.parametrize("storage", ["runs.db", "runs.journal"])
def test_processes_that_ask_and_tell_at_once_lose_and_double_nothing(
    small_study: Path, tmp_path: Path, asked: Callable[..., Any], storage: str, nursery: Nursery
) -> None:
    where = ("--storage", tmp_path / storage)
    asked("ask", "--runs", "2", "--slot", "2h", *where)
    commands = [
        ("ask", "--runs", "1", "--slot", "1h"),
        ("tell", "--run", "0", "--speed", "7000"),
        ("tell", "--run", "0", "--speed", "7000"),
        ("tell", "--run", "1", "--oom"),
    ]
    common = [*map(str, where), "--out", str(tmp_path / "out"), "--json"]
    processes = [
        nursery.start("-m", "foretune", command, str(small_study), *arguments, *common)
        for command, *arguments in commands
    ]
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], said
    runs = asked("tell", "--run", "0", "--speed", "7000", *where)["runs"]
    states = {run["run"]: run["state"] for run in runs}
    assert states == {0: "measured", 1: "out of memory", 2: "running"}
    told = " ".join(str(json.loads(out)["told"]) for out, _ in said[1:3])
    assert told.count("nothing changed") == 1


def test_told_twice(asked: Callable[..., Any]) -> None:
    asked("ask", "--runs", "1", "--slot", "1h")
    asked("tell", "--run", "0", "--speed", "9000")
    assert "nothing changed" in asked("tell", "--run", "0", "--speed", "9000")["told"][0]
    assert "--again" in asked("tell", "--run", "0", "--speed", "7000", code=2)
    assert "--again" in asked("tell", "--run", "0", "--oom", code=2)
    repeat = asked("tell", "--run", "0", "--speed", "7000", "--again")
    assert [run["tokens_per_s_per_gpu"] for run in repeat["runs"]] == [9000, 7000]
    shown = next(entry for entry in repeat["ranking"] if entry["run"] is not None)
    assert shown["tokens_per_s_per_gpu"] == 8000


def test_a_lost_run_may_be_asked_again_and_told_late(asked: Callable[..., Any]) -> None:
    lost = asked("ask", "--runs", "1", "--slot", "1h")["runs"][0]
    asked("tell", "--run", "0", "--lost")
    again = asked("ask", "--runs", "1", "--slot", "1h")["runs"][0]
    assert again["config"] == lost["config"]
    late = asked("tell", "--run", "0", "--speed", "8000")
    assert "given up" in late["told"][0]
    assert late["runs"][-1]["state"] == "measured"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--run", "7", "--oom"), "no run 7"),
        (("--run", "0"), "either files"),
        (("--speed", "1"), "--run N"),
        (("--run", "0", "--speed", "-3"), "positive"),
        (("--run", "0", "--speed", "nan"), "positive"),
        (("--run", "0", "--speed", "1e12"), "multiply"),
        (("--run", "0", "--speed", "1"), "a twentieth"),
        (("--run", "0", "--speed", "6000", "--peak", "200000"), "GiB of one GPU"),
        (("--run", "0", "--speed", "5", "--oom"), "one thing"),
        (("--run", "0", "--speed", "5", "--peak", "5", "--counter", "smi"), "counter"),
    ],
)
def test_bad_tells_are_refused_in_a_sentence(
    asked: Callable[..., Any], arguments: tuple[str, ...], words: str
) -> None:
    asked("ask", "--runs", "1", "--slot", "1h")
    assert words in asked("tell", *arguments, code=2)


def test_telling_before_asking_and_a_slot_too_short(asked: Callable[..., Any]) -> None:
    assert "foretune ask" in asked("tell", "--run", "0", "--oom", code=2)
    assert "longer --slot" in asked("ask", "--slot", "2m", code=2)
    assert "no duration" in asked("ask", "--slot", "soon", code=2)


def test_the_script_measures_offline_and_its_result_is_read(asked: Callable[..., Any]) -> None:
    runs = asked("ask", "--runs", "3", "--slot", "4h")["runs"]
    folders = [Path(run["files"][0]).parent for run in runs]
    lines = "".join(
        f"echo ' iteration {i}/ 30 | elapsed time per iteration (ms): {ms:.1f} | lm loss: 9.1'\n"
        for i, ms in enumerate([9000.0, 4100.0, 4000.0, 4010.0, 3990.0, 4000.0], 1)
    )
    ends = [lines, "echo 'torch.OutOfMemoryError: HIP out of memory.'; exit 1\n", "exit 3\n"]
    for folder, body in zip(folders, ends, strict=True):
        (folder / "fake.sh").write_text(body)
        subprocess.run(
            ["bash", folder / "measure.sh", "bash", folder / "fake.sh"],
            check=False,
            capture_output=True,
            env={"PATH": "/usr/bin:/bin"},
        )
    result = json.loads((folders[0] / "result.json").read_text())
    assert result["step_time_s"] == pytest.approx(4.0, rel=0.01)
    assert result["tokens_per_s_per_gpu"] == pytest.approx(4096 * 64 / 16 / 4.0, rel=0.01)
    after = asked("tell", *(folder / "result.json" for folder in folders))
    assert [run["state"] for run in after["runs"]] == ["measured", "out of memory", "crashed"]


def test_a_result_of_another_study_is_refused(asked: Callable[..., Any], tmp_path: Path) -> None:
    run = asked("ask", "--runs", "1", "--slot", "1h")["runs"][0]
    path = tmp_path / "result.json"
    content = {"schema_version": 1, "run": 0, "study": "other/measured", "exit_code": 0}
    content |= {"out_of_memory": False, "step_time_s": 1.0, "tokens_per_s_per_gpu": 5.0}
    path.write_text(json.dumps(content))
    assert "other/measured" in asked("tell", path, code=2)
    for field in ({"run": -1}, {"tokens_per_s_per_gpu": -5.0}, {"step_time_s": float("inf")}):
        path.write_text(json.dumps(content | field))
        assert "no result" in asked("tell", path, code=2)
    path.write_text("nothing of the kind\n")
    assert "--run N" in asked("tell", path, code=2)
    assert run["run"] == 0


def test_another_cluster_is_another_study(asked: Callable[..., Any]) -> None:
    first = asked("ask", "--runs", "1", "--slot", "1h")
    other = asked("ask", "--runs", "1", "--slot", "1h", "--cluster", "4x8xMI300X")
    assert first["study_name"] != other["study_name"]
    assert any("cluster" in note for note in other["notes"])


def test_learning_from_another_study(
    small_study: Path, tmp_path: Path, foretune: Command, asked: Callable[..., Any]
) -> None:
    asked("ask", "--runs", "2", "--slot", "2h")
    asked("tell", "--run", "1", "--speed", "9000")
    larger = tmp_path / "larger.yaml"
    text = small_study.read_text().replace("name: small", "name: larger")
    larger.write_text(text.replace("cluster: 2x8", "cluster: 4x8"))
    out = ("--out", tmp_path / "out", "--json")
    ran = foretune("ask", larger, "--runs", "2", "--slot", "2h", "--from-study", "small", *out)
    assert ran.code == 0, ran.err
    tuned = foretune("tune", larger, "--trials", "8", "--from-study", "small", *out)
    assert tuned.code == 0, tuned.err
    assert foretune("ask", larger, "--from-study", "nobody", *out).code == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45 min", 2700)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


def test_the_log_of_another_job_is_refused(asked: Callable[..., Any]) -> None:
    asked("ask", "--runs", "1", "--slot", "1h")
    log = Path(__file__).parents[1] / "collectors" / "samples" / "primus_mi300x.log"
    error = asked("tell", "--run", "0", log, code=2)
    assert "another run" in error
    assert "tp 1 instead of 2" in error


def test_a_device_that_never_ends_is_not_read_to_its_end(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    assert foretune("ask", small_study, "--slot", "1h", "--runs", "1", "--out", tmp_path).code == 0
    told = foretune("tell", small_study, "--out", tmp_path, "/dev/zero")
    assert (told.code, told.out) == (2, "")
    assert "a device or a socket and no file" in told.err


def test_why_a_run_crashed_is_kept_as_one_short_line(
    asked: Callable[..., Any], small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    asked(*ONE_RUN)
    hostile = "boom\n\x1b[2J<script>alert(1)</script>\r" + "x" * 10_000
    arguments = (small_study, "--run", 0, "--crash", hostile, "--out", tmp_path / "out")
    ran = foretune("tell", *arguments)
    assert ran.code == 0
    said = next(line for line in ran.out.splitlines() if line.startswith("run 0"))
    assert said.isprintable()
    assert "boom [2J<script>" in said
    (kept,) = {
        text
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
        for text in re.findall(rb"boom[^\"]*", path.read_bytes())
    } or {b""}
    assert b"\x1b" not in kept
    assert b"x" * 400 not in kept


@pytest.mark.parametrize(
    "changed", [{"run": True}, {"run": 0.0}, {"run": "0"}, {"schema_version": True}], ids=str
)
def test_a_result_names_its_run_by_a_whole_number(
    changed: dict[str, Any], asked: Callable[..., Any], tmp_path: Path
) -> None:
    asked(*ONE_RUN)
    path = tmp_path / "result.json"
    content = {"schema_version": 1, "run": 0, "study": "small/measured", "exit_code": 1}
    content |= {"out_of_memory": False, "step_time_s": None, "tokens_per_s_per_gpu": None}
    path.write_text(json.dumps(content | changed))
    assert "is no result of a run" in asked("tell", path, code=2)
    path.write_text(json.dumps(content))
    asked("tell", path)
