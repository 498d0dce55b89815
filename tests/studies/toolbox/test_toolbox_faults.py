"""Whatever goes wrong in a worker becomes a verdict or a sentence; nothing hangs or stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specs.errors import InputError
from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.decision import Rule
from studies.toolbox.evaluation import Evaluator
from studies.toolbox.models import ModelSource, check_causal, load_model
from studies.toolbox.process import Launch, Worker, WorkerError
from studies.toolbox.runtime import Observation
from studies.toolbox.tools import TOOLBOX
from studies.toolbox.verdicts import Verdict
from studies.toolbox.workload import Generation
from tests.studies.toolbox.tiny import TINY, tiny_model

pytestmark = pytest.mark.usefixtures("needs_torch")
WARM = pytest.mark.usefixtures("warm_torch")
MATH = Bundle.of({"sdpa_attention": "math"})


def launch(folder: Path, factory: str, device: str = "cpu", timeout_s: float = 120) -> Launch:
    return Launch(
        source={"kind": "factory", "text": f"tests.studies.toolbox.toolbox_factories:{factory}"},
        dtype="checkpoint",
        device=device,
        work=Generation(2, 8, 4).as_json(),
        threads=1,
        seed=0,
        timeout_s=timeout_s,
        folder=folder,
    )


def silent(_event: str, _content: Any) -> None:
    return None


def check_verdict(factory: str, verdict: Verdict, words: str, folder: Path) -> None:
    """One tool of a model fails in this way: what is said of it."""
    outcome = Evaluator(launch(folder, factory), Rule(), silent).evaluate(MATH)
    assert outcome.verdict is verdict
    assert words in outcome.sentence
    assert "\n" not in outcome.sentence


@WARM
@pytest.mark.parametrize(
    ("factory", "verdict", "words"),
    [
        ("raises", Verdict.FAILED, "this tool is broken"),
        ("runs_out_of_device_memory", Verdict.OUT_OF_MEMORY, "80 GiB"),
    ],
)
def test_a_tool_that_raises_gets_a_verdict(
    factory: str, verdict: Verdict, words: str, tmp_path: Path
) -> None:
    check_verdict(factory, verdict, words, tmp_path)


@pytest.mark.parametrize(
    ("factory", "verdict", "words"),
    [
        ("runs_out_of_host_memory", Verdict.OUT_OF_MEMORY, "memory runs out"),
        ("dies", Verdict.FAILED, "SIGSEGV"),
    ],
)
def test_a_tool_that_kills_its_worker_gets_a_verdict(
    factory: str, verdict: Verdict, words: str, tmp_path: Path
) -> None:
    check_verdict(factory, verdict, words, tmp_path)


@WARM
def test_a_worker_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    evaluator = Evaluator(launch(tmp_path, "hangs", timeout_s=3), Rule(), silent)
    outcome = evaluator.evaluate(MATH)
    assert outcome.verdict is Verdict.FAILED
    # A loaded machine may take that long to load the model already.
    assert "within 3 s and was ended" in outcome.sentence


@pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")), reason="no C++ compiler"
)
def test_compiling_is_proven_by_graphs_and_none_is_new_after_warm_up(tmp_path: Path) -> None:
    compiled = Bundle.of({"torch_compile": "default", "kv_cache_config": "static"})
    # Plain C++: vectors take longer to compile, and their support is probed by compiling too.
    plain = {"TORCHINDUCTOR_VEC_ISA_OK": "0"}
    started = replace(launch(tmp_path, "shallow", timeout_s=600), environment=plain)
    with Worker(started, compiled) as worker:
        warm_up = worker.ask("warm_up")
        run = worker.ask("run")
        seen = Observation.from_json(worker.ask("observe"))
    assert warm_up["compile_s"] > warm_up["times_s"][-1]
    assert run["late_graphs"] == 0
    proof = TOOLBOX["torch_compile"].proof("default", seen, seen)
    assert proof.changed, proof.sentence
    assert any((tmp_path / "compiled").iterdir()), "compiled code belongs to the study"


@WARM
def test_a_compile_failure_is_told_apart_and_the_worker_lives_on(tmp_path: Path) -> None:
    compiled = Bundle.of({"torch_compile": "default"})
    with Worker(launch(tmp_path, "does_not_compile"), compiled) as worker:
        with pytest.raises(WorkerError, match="does not compile") as failure:
            worker.ask("warm_up")
        assert failure.value.kind == "compile"
        assert worker.ask("peaks", working_bytes=1 << 20)["bytes_per_s"] > 0


@WARM
@pytest.mark.parametrize(
    ("factory", "device", "words"),
    [
        ("sees_the_future", "cpu", "is not causal"),
        ("is_no_model", "cpu", "returns int"),
        ("nowhere", "cpu", "cannot be imported"),
        ("raises_at_once", "cpu", "raised PermissionError: no licence for these weights"),
    ],
)
def test_a_model_that_cannot_serve_is_refused_in_a_sentence(
    factory: str, device: str, words: str, tmp_path: Path
) -> None:
    evaluator = Evaluator(launch(tmp_path, factory, device), Rule(), silent)
    with pytest.raises(InputError, match=words):
        evaluator.prepare()


def test_a_checkpoint_that_lacks_a_weight_is_not_filled_up_at_random(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    source = ModelSource.of(str(tmp_path))
    load_model(source, "checkpoint", "cpu", 0)
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"lacks 1 weights, model\.norm\.weight"):
        load_model(source, "checkpoint", "cpu", 0)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be loaded"):
        load_model(source, "checkpoint", "cpu", 0)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "model_type"),
        ({"model_type": "llama"}, "states no hidden_size, num_hidden_layers"),
        ({k: v for k, v in TINY.items() if k != "vocab_size"}, "states no vocab_size"),
        (TINY | {"num_attention_heads": "x"}, "expected int, got str"),
        (TINY | {"hidden_size": -4}, "makes no causal language model"),
        ({"model_type": "t5", "d_model": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 64},
         "T5Config"),
    ],
)  # fmt: skip
def test_a_config_that_makes_no_model_is_refused(
    config: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=words) as error:
        load_model(ModelSource.of(str(path)), "checkpoint", "cpu", 0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_encoder_is_not_taken_for_a_causal_model(dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    path.write_text(json.dumps(config | {"num_attention_heads": 2, "intermediate_size": 64}))
    model = load_model(ModelSource.of(str(path)), dtype, "cpu", 0)
    with pytest.raises(InputError, match="is not causal"):
        check_causal(model, "cpu")


@WARM
def test_no_gpu_is_said_in_a_sentence(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    evaluator = Evaluator(launch(tmp_path, "plain", "cuda"), Rule(), silent)
    with pytest.raises(InputError, match="sees no GPU"):
        evaluator.prepare()


def test_a_worker_ends_with_its_study(tmp_path: Path) -> None:
    worker = Worker(launch(tmp_path, "plain"), BASELINE)
    worker.start()
    process = worker._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()  # what the death of the study does
    assert process.wait(timeout=60) == 0
    worker.close()


STUDY_THAT_HANGS = """
import sys, threading, time
from pathlib import Path
from studies.toolbox.process import Worker
from tests.studies.toolbox.test_toolbox_faults import MATH, launch

worker = Worker(launch(Path(sys.argv[1]), "hangs"), MATH)
threading.Thread(target=worker.start, daemon=True).start()
while not worker.facts:
    time.sleep(0.1)
print(worker._process.pid, flush=True)
time.sleep(600)
"""


def test_a_busy_worker_ends_when_its_study_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STUDY_THAT_HANGS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as study:
        assert study.stdout is not None
        pid = int(study.stdout.readline())
        os.kill(pid, 0)
        study.kill()
    deadline = time.monotonic() + 60
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_folders_without_weights_and_names_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        ModelSource.of(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="no weights"):
        ModelSource.of(str(tmp_path))
    for text in ("./nowhere", "/nowhere/model", "a/b/c", "nowhere.json"):
        with pytest.raises(InputError, match="does not exist"):
            ModelSource.of(text)
    assert ModelSource.of("Qwen/Qwen2.5-7B-Instruct").kind == "name"
    assert ModelSource.of("package.module:make").kind == "factory"
    assert ModelSource.of(str(tmp_path / "config.json")).random_weights
