"""The main job end to end: its JSON, its files, its ledger and its words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from specs import catalog
from specs.choices import Precision
from specs.config import TrainingConfig
from specs.formats.reader import read_experiment
from studies.known_formats import runs_of_format
from studies.ledger import CONSTRAINT
from studies.report.facts import read_facts
from studies.report.savings import reference_of
from studies.result import Found, rival_of
from studies.storage import storage_address
from studies.wording import config_line
from surrogate.learned import Learned, shipped
from tests.studies.conftest import Ran, Tuned

Command = Callable[..., Ran]


def test_json_contract_and_ledger(tuned: Tuned) -> None:
    result = tuned.result
    assert {"best", "optimum", "shortlist", "trials", "rejected_by_memory", "storage"} <= set(
        result
    )
    assert {"study_name", "files", "baseline", "attribution", "space", "notes"} <= set(result)
    best = result["best"]
    assert set(best) == {"config", "projection", "probability_best"}
    assert set(best["projection"]) == {"memory", "throughput"}
    assert 0 <= best["probability_best"] <= 1
    assert best["projection"]["memory"]["fits"]
    assert result["trials"] == 16
    speed = best["projection"]["throughput"]["tokens_per_s_per_gpu"]
    assert result["optimum"]["projection"]["throughput"]["tokens_per_s_per_gpu"] >= speed
    assert all(Path(path).is_file() for path in result["files"])
    folder = tuned.out / "small"
    written = {str(path) for path in folder.iterdir() if path.suffix in (".svg", ".yaml", ".sh")}
    assert written | {str(folder / "result.json")} == set(result["files"])
    assert json.loads((folder / "result.json").read_text())["files"] == result["files"]

    study = optuna.load_study(study_name=result["study_name"], storage=result["storage"])
    assert len(study.trials) == 16
    fitting = [trial for trial in study.trials if trial.constraints[CONSTRAINT] <= 0]
    expected = {t.number: t.value * t.user_attrs["fit_probability"] for t in fitting}
    winner = study.trials[max(expected, key=lambda number: expected[number])]
    assert winner.user_attrs["config"] == best["config"]
    assert winner.value == speed
    refused = [trial for trial in study.trials if trial.constraints[CONSTRAINT] > 0]
    assert len(refused) == result["rejected_by_memory"]
    assert study.trials[0].user_attrs["reason"] == "baseline of the input"
    assert study.trials[0].user_attrs["config"]["tp"] == 2


def test_launch_files_read_back_as_the_best_config(tuned: Tuned) -> None:
    result = tuned.result
    path = next(path for path in result["files"] if path.endswith("best.yaml"))
    again = read_experiment(Path(path))
    best = TrainingConfig.from_labels(result["best"]["config"])
    assert again.baseline == best
    assert again.workload.global_batch_size == 64
    assert again.workload.seq_len == 4096


def test_a_rerun_prints_the_result_and_more_trials_go_on(
    tuned: Tuned, tmp_path: Path, foretune: Command
) -> None:
    out = tuned.copied(tmp_path / "out")

    def tune(*more: object) -> Ran:
        return foretune("tune", tuned.study, "--out", out, "--json", *more)

    again, more = tune(), tune("--trials", 20)
    assert again.json["trials"] == 16
    assert again.json["best"] == tuned.result["best"]
    assert more.json["trials"] == 20
    assert more.json["study_name"] == tuned.result["study_name"]


def test_changed_inputs_start_a_new_study_and_say_so(
    tuned: Tuned, tmp_path: Path, foretune: Command
) -> None:
    out = tuned.copied(tmp_path / "out")
    changed = foretune("tune", tuned.study, "--out", out, "--json", "--set", "gbs=128")
    assert changed.json["study_name"] != tuned.result["study_name"]
    assert any("workload changed" in note for note in changed.json["notes"])


def test_pinned_axes_stay_pinned(small_study: Path, tmp_path: Path, foretune: Command) -> None:
    text = small_study.read_text().replace("tp: [1, 2, 4]", "tp: [4]")
    small_study.write_text(text)
    result = foretune("tune", small_study, "--out", tmp_path / "out", "--json").json
    assert result["best"]["config"]["tp"] == 4
    assert {found["config"]["tp"] for found in result["shortlist"]} == {4}
    assert result["baseline"]["config"]["tp"] == 2, "the baseline is tried as it is"


def test_words_name_baseline_best_changes_memory_and_bottleneck(
    tuned: Tuned, tmp_path: Path, foretune: Command
) -> None:
    out = tuned.copied(tmp_path / "out")
    ran = foretune("tune", tuned.study, "--out", out, "--why", "tp=8")
    assert ran.code == 0, ran.err
    counts = next(line for line in ran.out.splitlines() if "legal configs" in line)
    assert " projected" in counts
    assert counts.endswith("do not fit")
    for words in (
        "baseline: tp=2",
        "best: trust ",
        "MFU: of the dense peak of the MI300X in the format of the GEMMs, bf16",
        "further proposals were illegal",
        "best over the baseline: ",
        "alone",
        "GiB by stage",
        "largest overhead",
    ):
        assert words in ran.out
    assert "why not tp=8" in ran.out
    configs = [line for line in ran.out.splitlines() if "cp=1" in line]
    assert configs
    assert all(len(line) <= 80 for line in configs)
    assert "the best config with tp 8 is" in ran.out
    assert "shortlist" in ran.out


def test_a_baseline_that_does_not_fit_is_replaced_by_the_same_config_everywhere(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    text = small_study.read_text().replace("{tp: 2, pp: 2, mbs: 1", "{tp: 1, pp: 1, mbs: 32")
    text = text.replace("mbs: [1, 2, 4]", "mbs: [1, 2, 4, 32]").replace("2x8xMI300X", "1x2xMI300X")
    small_study.write_text(text)
    out = tmp_path / "out"
    told = foretune("tune", small_study, "--out", out)
    assert told.code == 0, told.err
    held = foretune("tune", small_study, "--out", out, "--json").json["reference"]
    assert not held["is_baseline"]
    words = " ".join(told.out.split())
    given = "(the given baseline does not fit)"
    assert f"best over {held['words']}: {held['gain']:+.1%} {given}" in words
    storage = storage_address(None, out / "foretune.db")
    facts = read_facts(storage, "small")
    page = reference_of(facts)
    assert page is not None
    assert page.words == held["words"]
    assert page.gain(facts.best.tokens_per_s_per_gpu) == pytest.approx(held["gain"])


@pytest.mark.parametrize("storage", ["trials.journal", "trials.db"])
def test_storage_by_name(
    storage: str, small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    ran = foretune(
        "tune", small_study, "--out", tmp_path / "out", "--storage", tmp_path / storage, "--json"
    )
    assert ran.code == 0, ran.err
    assert (tmp_path / storage).is_file()
    assert not (tmp_path / "out" / "foretune.db").exists()


def test_nothing_fits_says_how_much_is_missing_and_writes_nothing(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    text = small_study.read_text().replace("llama3.1-8b", "llama3.1-405b")
    small_study.write_text(
        text.replace("2x8xMI300X", "1x8xA100-40GB").replace("Primus", "Megatron")
    )
    ran = foretune("tune", small_study, "--out", tmp_path / "out", "--json")
    assert ran.code == 3
    assert "GiB more than the 40 GiB" in ran.err
    assert ran.out == ""
    assert not (tmp_path / "out").exists()


def test_pins_of_the_command_line_narrow_the_study(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    ran = foretune(
        "tune",
        small_study,
        "--out",
        tmp_path / "out",
        "--pin",
        "tp=4",
        "--pin",
        "mbs=1,2",
        "--json",
    )
    assert ran.code == 0, ran.err
    configs = [ran.json["best"]["config"], *(found["config"] for found in ran.json["shortlist"])]
    assert {config["tp"] for config in configs} == {4}
    assert {config["mbs"] for config in configs} <= {1, 2}


def test_a_change_of_number_format_is_said_unless_it_was_asked_for(
    tuned: Tuned, small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    asked = tuned.result
    assert not [note for note in asked["notes"] if "number format" in note]
    assert asked["in_baseline_format"] is None
    small_study.write_text(small_study.read_text().replace("  precision: [bf16]\n", ""))
    out = tmp_path / "free"
    free = foretune("tune", small_study, "--out", out, "--json").json
    assert free["best"]["config"]["precision"] != "bf16"
    assert [note for note in free["notes"] if "--pin precision=bf16" in note]
    facts = read_facts(storage_address(None, out / "foretune.db"), "small")
    assert [note.sentence for note in facts.notes] == free["notes"]
    kept = free["in_baseline_format"]
    assert kept["config"]["precision"] == "bf16"
    best = free["best"]["projection"]["throughput"]["tokens_per_s_per_gpu"]
    assert kept["projection"]["throughput"]["tokens_per_s_per_gpu"] < best
    told = foretune("tune", small_study, "--out", out).out
    config = config_line("best in bf16: ", TrainingConfig.from_labels(kept["config"]))
    assert told.count("best in bf16") == 2
    assert config in told


def test_number_k_of_the_shortlist_is_in_the_files_of_that_number(
    small_study: Path, tmp_path: Path, foretune: Command
) -> None:
    earlier = tmp_path / "small" / "shortlist_9.yaml"
    earlier.parent.mkdir()
    earlier.touch()
    result = foretune("tune", small_study, "--out", tmp_path, "--json").json
    assert not earlier.exists()
    assert result["shortlist"][0]["config"] == result["best"]["config"]
    assert len(result["shortlist"]) > 2
    for number, found in enumerate(result["shortlist"], 1):
        stem = "best" if number == 1 else f"shortlist_{number}"
        written = read_experiment(tmp_path / "small" / f"{stem}.yaml")
        assert written.baseline.as_labels() == found["config"]


@pytest.mark.parametrize(("speed", "is_told"), [(1005.0, False), (1011.0, True)])
def test_a_rival_is_told_where_a_run_could_tell_it_from_the_best(
    speed: float, is_told: bool
) -> None:
    def found(speed: float) -> Found:
        return Found(TrainingConfig(), {"throughput": {"tokens_per_s_per_gpu": speed}}, 0.5)

    assert (rival_of(found(1000.0), found(speed)) is not None) is is_told


def test_formats_that_no_run_of_the_vendor_shows_are_known_as_such() -> None:
    amd, nvidia = catalog.gpu("MI355X"), catalog.gpu("GB300")
    assert runs_of_format(shipped(), Precision.FP8_CS, amd) > 0
    assert runs_of_format(shipped(), Precision.BF16, amd) > 0
    assert runs_of_format(shipped(), Precision.MXFP4, amd) == 0
    assert runs_of_format(shipped(), Precision.NVFP4, nvidia) > 0
    assert runs_of_format(Learned.nothing(), Precision.BF16, nvidia) == 0
