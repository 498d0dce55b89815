"""``foretune project``: what it says of defaults, formats and small parts of a step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specs import catalog
from studies.cli.main import call

HUGGING_FACE = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model config, which states no workload."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(HUGGING_FACE))
    return str(path)


def test_a_default_batch_that_does_not_divide_is_said_to_be_one(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["project", model, "--cluster", "3x8xH100"]
    assert call(command) == 2
    written = capsys.readouterr()
    assert "1024 is the default" in written.err
    assert written.err.count("\n") == 1
    assert "names no workload" in written.out
    advised = re.search(r"--set (gbs=\d+)", written.err)
    assert advised
    assert call([*command, "--set", advised[1]]) == 0


def test_a_batch_that_was_stated_is_no_default(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["project", model, "--cluster", "3x8xH100", "--set", "gbs=100"]) == 2
    assert "default" not in capsys.readouterr().err


@pytest.mark.parametrize(("precision", "noted"), [("fp8", True), ("bf16", False)])
def test_weights_that_grow_in_eight_bit_are_explained(
    precision: str, noted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["project", "mixtral_8x22b_mi355x", "--set", f"precision={precision}"]
    assert call(command) == 0
    assert ("keeps quantised copies" in " ".join(capsys.readouterr().out.split())) is noted
    assert call([*command, "--json"]) == 0
    notes = " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert ("keeps quantised copies" in notes) is noted


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_mfu_is_printed_with_its_peak_and_where_that_is_from(
    precision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["project", "mixtral_8x22b_mi355x", "--set", f"precision={precision}"]
    assert call([*command, "--json"]) == 0
    speed = json.loads(capsys.readouterr().out)["throughput"]
    peak = catalog.gpu("MI355X").peak_flops[precision]
    assert speed["mfu_peak"] == {
        "tflops": peak.value / 1e12, "format": precision, "kind": peak.kind, "source": peak.source,
    }  # fmt: skip
    assert speed["tflops_per_gpu"] / speed["mfu"] == pytest.approx(speed["mfu_peak"]["tflops"])
    assert call(command) == 0
    told = capsys.readouterr().out
    line = f"{precision} {peak.value / 1e12:,.0f} TFLOP/s ({peak.kind}: {peak.source})"
    assert line in " ".join(told.split())


@pytest.mark.parametrize("more", [[], ["--set", "gbs=8", "--set", "seq_len=128"]])
def test_no_part_of_a_step_is_printed_as_nothing(
    more: list[str], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["project", model, "--cluster", "8xH100", *more]) == 0
    told = capsys.readouterr().out
    assert "where a step goes" in told
    assert not re.search(r"\de-\d|\b0\.0%", told)
