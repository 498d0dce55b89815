"""The program compiled on simulated studies, with a scripted local language model."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.search.experts import independent, reply_of
from benchmarks.search.landscape import landscape as drawn
from search.llm.asking import Answer, Request
from search.llm.compiling import Example, compiled, mean_regret, recorded_examples
from search.llm.recording import Recording
from search.llm.schema import Reply
from specs.errors import InputError
from tests.llm_server import LlmServer

if importlib.util.find_spec("dspy") is None:
    pytest.skip("pip install 'foretune[llm]'", allow_module_level=True)

landscape = cache(drawn)
QUALITY = {0: 0.99, 1: -0.9, 2: 0.99, 3: -0.9}
"""Seeds of simulated studies and how well the recorded model knew them."""
GOOD = 0.15


def answer_to(seed: int, quality: float) -> dict[str, Any]:
    """What a model of a quality says of a study."""
    problem = landscape(seed)
    fits = problem.true_memory <= 1.0
    said = reply_of(problem, independent(problem, quality), fits, set(), problem.start)
    return {**said, "axis_priors": said["axis_priors"][:2]}


def regret(example: Example, reply: Reply) -> float:
    """How far the best proposal is below the optimum of the simulated study."""
    problem = landscape(int(example.briefing.split()[-1]))
    names = [axis.name for axis in problem.axes]
    regrets = [1.0]
    for proposal in reply.proposals:
        code = [proposal.config.get(name, 0) for name in names]
        rows = np.flatnonzero((problem.codes == code).all(axis=1))
        regrets += [problem.regret(int(row)) for row in rows if problem.fits[row]]
    return min(regrets)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    """Recorded answers: good on two studies, bad on two, and one failure."""
    path = tmp_path_factory.mktemp("recorded") / "llm.jsonl"
    recording = Recording(path, {"study": "simulated"}, "scripted", 30)
    for seed, quality in QUALITY.items():
        request = Request("Propose.", f"study {seed}")
        recording.call(request, Answer(fields=answer_to(seed, quality), text="..."), "scripted")
    recording.call(Request("Propose.", "study 3"), Answer(failure="the server failed"), "scripted")
    return recorded_examples([path])


def test_good_recorded_answers_become_examples(examples: list[Example], tmp_path: Path) -> None:
    content = compiled(examples, regret, GOOD)
    assert content["optimizer"] == "LabeledFewShot"
    assert sorted(e["briefing"] for e in content["examples"]) == ["study 0", "study 2"]
    assert content["mean_regret_of_recorded"] == pytest.approx(mean_regret(examples, regret))
    kept = [Example("", e["briefing"], "", e) for e in content["examples"]]
    assert mean_regret(kept, regret) <= GOOD < mean_regret(examples, regret)

    import dspy

    from search.llm.program import OneReply, load_program

    path = tmp_path / "program.json"
    path.write_text(json.dumps(content))
    program = load_program("Propose.", path)
    shown = OneReply().format(
        program.propose.signature, program.propose.demos, {"briefing": "study 9", "feedback": ""}
    )
    text = json.dumps(shown)
    assert "study 0" in text
    assert "study 2" in text
    assert "study 1" not in text
    assert text.index("study 0") < text.index("study 9")
    assert len(load_program("Propose.", None).propose.demos) == 0
    assert dspy.settings.lm is None
    with pytest.raises(InputError, match="no recorded answer"):
        compiled(examples, regret, -1.0)


def test_answers_of_another_model_are_kept_where_they_do_well(examples: list[Example]) -> None:
    import dspy

    class Local(dspy.BaseLM):  # type: ignore[misc]
        """Knows study 1 and misleads on the others."""

        def forward(self, prompt: Any = None, messages: Any = None, **_: Any) -> Any:
            del prompt
            seed = int(str(messages[-1]["content"]).split("study ")[1][0])
            text = json.dumps(answer_to(seed, 0.99 if seed == 1 else -0.9))
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            return _Response(choice)

    content = compiled(examples, regret, GOOD, Local(model="local/scripted"))
    assert content["optimizer"] == "BootstrapFewShot"
    assert [e["briefing"] for e in content["examples"]] == ["study 1"]
    assert content["examples"][0]["proposals"]

    nothing = Local(model="local/scripted")
    with pytest.raises(InputError, match="no answer of the model"):
        compiled(examples, regret, -1.0, nothing)


@pytest.mark.filterwarnings("ignore")  # of the import of LiteLLM
def test_a_model_that_redirects_gives_no_examples(examples: list[Example]) -> None:
    pytest.importorskip("litellm")
    from search.llm.program import language_model

    with LlmServer() as other, LlmServer("redirect") as named:
        named.redirect = (307, f"{other.url}/steal")
        lm = language_model("openai/small", named.url, None, num_retries=0)
        many = [replace(examples[0], briefing=f"study {number}") for number in range(12)]
        with pytest.raises(InputError, match="redirects to another address"):
            compiled(many, regret, GOOD, lm)
        assert len(named.requests) == 12
        assert other.requests == []


class _Response:
    """A chat completion as DSPy reads it."""

    def __init__(self, choice: dict[str, Any]) -> None:
        from types import SimpleNamespace

        message = SimpleNamespace(**choice["message"], tool_calls=None)
        self.choices = [SimpleNamespace(message=message, finish_reason="stop", index=0)]
        self.usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        self.model = "local/scripted"


def test_files_that_are_no_recording_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    Recording(path, {}, "m", 1)
    with pytest.raises(InputError, match="no call"):
        recorded_examples([path])

    from search.llm.program import read_examples

    with pytest.raises(InputError, match="no compiled program"):
        read_examples(path)
