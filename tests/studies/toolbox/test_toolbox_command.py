"""``foretune toolbox`` end to end on a tiny model, its resumption, its files and its refusals."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
import yaml

from specs.errors import InputError
from studies.progress import untold
from studies.storage import storage_address
from studies.toolbox.artifact import NAMES, program, run_program, write_artifact
from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.ledger import BundleLedger
from studies.toolbox.models import ModelSource
from studies.toolbox.request import read_request, shipped_requests
from studies.toolbox.search import FinalStack, Progress
from studies.toolbox.study import _final
from studies.toolbox.verdicts import Outcome, Verdict
from studies.toolbox.workload import Generation
from tests.studies.conftest import Ran

STUDY = {
    "model": "config.json",
    "batch": 2,
    "prompt": 16,
    "new_tokens": 8,
    "tools": {"dtype_cast": ["bfloat16"], "input_padding": ["64"], "matmul_precision": ["high"]},
    "beside": [{"input_padding": "64"}],
    "trials": 2,
    "pairs": 3,
    "max_blocks": 2,
    "lossy_budget": 100.0,
}


@pytest.mark.usefixtures("warm_torch")
def test_a_study_from_profile_to_verdicts_and_again_without_a_process(
    tiny_config: Path, foretune: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tiny_config.parent / "small.yaml"
    study.write_text(yaml.safe_dump(STUDY))
    out = tiny_config.parent / "out"
    ran = foretune("toolbox", study, "--out", out, "--json")
    assert ran.code == 0, ran.err
    result = ran.json
    assert len(result["verdicts"]) == 2
    padded = result["verdicts"][0]
    assert padded["bundle"] == {"input_padding": "64"}
    assert padded["proofs"]["input_padding"]["changed"]
    assert padded["verdict"] in {verdict.value for verdict in Verdict if verdict.timed}
    assert padded["correctness"] <= 0
    for phase in ("prefill", "decode"):
        assert result["profile"][phase]["operators"]
    assert any("decoding runs at" in line for line in result["bottlenecks"])
    assert any("random" in note for note in result["notes"])
    events = [json.loads(line) for line in Path(result["files"][0]).read_text().splitlines()]
    blocks = [event for event in events if event["event"] == "block"]
    assert len(blocks[0]["order"]) == 9
    assert {"wall_s", "cpu_s", "load_average"} <= set(blocks[0]["runs"]["candidate"][0])
    assert {"start", "baseline", "block", "outcome"} <= {event["event"] for event in events}
    for line in ("profiling the baseline", "measuring input_padding=64", f"{padded['verdict']} "):
        assert line in ran.err
    assert (out / "small" / "report.html").stat().st_size > 10_000
    held = optuna.load_study(study_name="small", storage=f"sqlite:///{out}/foretune.db")
    shown = held._storage.get_study_system_attrs(held._study_id)
    assert "kept: " in shown["dashboard:note_str:0"]
    assert "prompt tokens" in shown[f"dashboard:{held.trials[0]._trial_id}:note_str:0"]
    assert any(key.startswith("dashboard:plot_data:time_of_the_baseline") for key in shown)
    assert held.trials[0].duration is not None
    assert held.trials[0].duration.total_seconds() == pytest.approx(padded["cost_s"], abs=0.01)
    assert [t.user_attrs["verdict"] for t in held.trials] == [
        verdict["verdict"] for verdict in result["verdicts"]
    ]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished study must start no process")

    # As if the stack was proven: its programs ran, and must not run again.
    proven = Outcome.from_json(held.trials[0].user_attrs["outcome"] | {"verdict": "keep"})
    final = FinalStack(proven.bundle, (proven,), (), ()).as_json()
    said = dict.fromkeys(NAMES[:2], "run 1: 7.0 tokens/s")
    held.set_user_attr("final", final)
    held.set_user_attr("programs", {"stack": padded["bundle"], "said": said})

    monkeypatch.setattr(subprocess, "Popen", refuse)
    again = foretune("toolbox", study, "--out", out, "--json")
    assert again.json["kept"] == padded["bundle"]
    assert again.json["programs"] == said
    assert (out / "small" / NAMES[2]).is_file()
    assert again.code == 0, again.err
    assert again.json["verdicts"] == result["verdicts"]
    assert any("resuming" in note for note in again.json["notes"])


@pytest.mark.skipif(shutil.which("patch") is None, reason="the program patch is not installed")
def test_the_written_programs_run_and_the_diff_leads_from_one_to_the_other(
    tiny_config: Path,
) -> None:
    bundle = Bundle.of(
        {
            "dtype_cast": "bfloat16",
            "kv_cache_config": "static",
            "sdpa_attention": "math",
            "int8_quantisation": "weight-only",
            "input_padding": "64",
        }
    )
    folder = tiny_config.parent / "pr"
    source = ModelSource.of(str(tiny_config))
    work = Generation(2, 16, 8)
    before, after, diff = write_artifact(folder, source, "checkpoint", work, "cpu", bundle)
    assert "tokens/s" in run_program(after, 4)
    patched = subprocess.run(
        ["patch", "-o", "-", before.name, diff.name],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert patched.stdout.replace(f"patching file - (read from {NAMES[0]})\n", "") == (
        after.read_text()
    )
    assert "foretune" not in after.read_text().replace(str(folder), "")


@pytest.mark.parametrize(
    "text", ["folder", "name/model", "package.module:make"], ids=["folder", "name", "factory"]
)
def test_a_program_is_python_whatever_the_source(text: str, tmp_path: Path) -> None:
    if text == "folder":
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model.safetensors").touch()
        text = str(tmp_path)
    for dtype in ("checkpoint", "float16"):
        for bundle in (BASELINE, Bundle.of({"torch_compile": "reduce-overhead"})):
            work = Generation(2, 16, 8)
            code = program(ModelSource.of(text), dtype, work, "cuda", bundle)
            compile(code, "program", "exec")


def test_a_program_that_fails_is_said_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text("raise SystemExit('no weights')")
    assert run_program(path, 4) == "it failed with exit code 1: no weights"


# ------------------------------------------------------------------------------------ ledger


def outcome(verdict: Verdict) -> Outcome:
    bundle = Bundle.of({"dtype_cast": "bfloat16", "kv_cache_config": "static"})
    if not verdict.timed:
        return Outcome(bundle=bundle, verdict=verdict, sentence="why.", correctness=1.5)
    return Outcome(
        bundle=bundle, verdict=verdict, sentence="why.", log_ratio=0.1, standard_error=0.01,
        lower=1.05, upper=1.15, tokens_per_s=123.0, details={"proofs": {}},
    )  # fmt: skip


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_ledger_gives_back_what_it_was_given(verdict: Verdict, tmp_path: Path) -> None:
    address = storage_address(None, tmp_path / "study.db")
    ledger = BundleLedger.open(address, "study", {"model": "a"})
    ledger.record(outcome(verdict), "acquisition", "because")
    again = BundleLedger.open(address, "study", {"model": "a"})
    assert again.outcomes() == {outcome(verdict).bundle: outcome(verdict)}
    assert "resuming" in again.note
    trial = optuna.load_study(study_name="study", storage=address.url).trials[0]
    complete = trial.state is optuna.trial.TrialState.COMPLETE
    assert complete == (verdict not in (Verdict.FAILED, Verdict.NO_EFFECT))
    if complete:
        violated = any(value > 0 for value in trial.constraints.values())
        assert violated == (verdict in (Verdict.WRONG, Verdict.OUT_OF_MEMORY))


def test_a_study_stopped_while_it_finishes_goes_on_there(tmp_path: Path) -> None:
    ledger = BundleLedger.open(storage_address(None, tmp_path / "study.db"), "study", {})
    best = outcome(Verdict.KEEP)
    progress = Progress([best.bundle], {best.bundle: best})
    asked: list[tuple[Bundle, Bundle]] = []

    def finished(most: int) -> FinalStack | None:
        def evaluate(bundle: Bundle, base: Bundle) -> Outcome:
            if len(asked) == most:
                raise KeyboardInterrupt
            asked.append((bundle, base))
            return replace(best, bundle=bundle, base=base)

        evaluator: Any = SimpleNamespace(evaluate=evaluate, tell=untold)
        space: Any = SimpleNamespace(why_illegal=lambda _bundle: [])
        request: Any = SimpleNamespace(threshold=0.02)
        return _final(request, ledger, evaluator, space, progress)

    with pytest.raises(KeyboardInterrupt):
        finished(2)
    final = finished(3)
    assert final is not None
    assert len(asked) == len(set(asked)) == len(final.whole) + len(final.leave_one_out) == 3


def test_another_workload_is_another_study(tmp_path: Path) -> None:
    address = storage_address(None, tmp_path / "study.db")
    BundleLedger.open(address, "study", {"batch": 1}).record(outcome(Verdict.DROP), "", "")
    other = BundleLedger.open(address, "study", {"batch": 2})
    assert not other.outcomes()
    assert "batch changed" in other.note


# ---------------------------------------------------------------------------------- requests


def test_shipped_studies_can_be_read() -> None:
    shipped = shipped_requests()
    assert {"toolbox_cpu", "toolbox_qwen2.5_7b_mi300x"} <= set(shipped)
    for name in shipped:
        request = read_request(name, {"trials": 3})
        assert request.study_name == name
        assert request.trials == 3
    mi300x = read_request("toolbox_qwen2.5_7b_mi300x", {})
    assert (mi300x.batch, mi300x.prompt, mi300x.new_tokens) == (8, 256, 512)
    assert Bundle.of({"dtype_cast": "float32"}) in mi300x.beside_bundles


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"new_tokens": 1}, "2 or more"),
        ({"device": "tpu"}, "device"),
        ({"nonsense": 1}, "nonsense"),
        ({"tools": {"magic": ["on"]}}, "no tool 'magic'"),
        ({"tools": {"dtype_cast": ["int2"]}}, "no setting int2"),
        ({"beside": [{"dtype_cast": "int2"}]}, "no setting int2"),
        ({"threshold": 1.5}, "threshold"),
        ({"pairs": 1}, "3 pairs"),
        ({"model": "./nowhere"}, "does not exist"),
        ({"planner": "oracle"}, "no planner 'oracle'"),
    ],
)
def test_a_bad_request_is_one_sentence(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(STUDY | change))
    with pytest.raises(InputError, match=words) as error:
        read_request(str(path), {})
    assert "\n" not in str(error.value)


def test_without_torch_the_command_says_what_to_install(
    foretune: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    (tmp_path / "config.json").write_text("{}")
    ran = foretune("toolbox", tmp_path / "config.json", "--out", tmp_path / "out")
    assert ran.code == 2
    assert "pip install 'foretune[toolbox]'" in ran.err
    assert not (tmp_path / "out").exists()


def test_nothing_of_torch_is_imported_by_the_study_itself() -> None:
    script = (
        "import sys, studies.toolbox.study, studies.toolbox.bench; "
        "print([name for name in ('torch', 'transformers', 'optuna') if name in sys.modules])"
    )
    root = Path(__file__).parents[3]
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    assert ran.stdout.strip() == "[]", ran.stderr
