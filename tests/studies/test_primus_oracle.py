"""Primus as an oracle, against a stand-in that takes its options and prints its words."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import collectors.primus_runner
from specs.errors import InputError
from studies.cli.main import call
from studies.inputs import resolve
from studies.oracles import Crash, Evaluation
from studies.primus_oracle import RUN_SD, Bias, PrimusOracle, options_of, primus_oracle
from studies.report.facts import MeasuredConfig
from tests.collectors.primus_stand_in import install

STUDY = "mixtral_8x22b_mi355x"


@pytest.fixture
def oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., PrimusOracle]:
    """The oracle of the Mixtral study over a stand-in that behaves in this way."""

    def made(how: str = "works", mode: str = "simulate") -> PrimusOracle:
        install(tmp_path / "bin", how)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        return primus_oracle(resolve(STUDY), tmp_path / "out", mode)

    return made


def calls(tmp_path: Path) -> list[dict[str, Any]]:
    """What the stand-in was asked."""
    return [json.loads(line) for line in (tmp_path / "bin" / "calls.jsonl").open()]


def test_throughput_is_what_primus_prints_less_its_optimism(oracle, tmp_path):
    found = oracle()
    config = found.job.baseline
    said = found.evaluate(config)
    assert isinstance(said, Evaluation)
    printed = 4000.0 + 300 * config.mbs
    assert said.details["primus"]["as_printed_tokens_per_s_per_gpu"] == pytest.approx(printed)
    assert said.tokens_per_s_per_gpu == pytest.approx(printed * math.exp(-0.10))
    low, high = said.details["primus"]["interval90"]
    assert math.log(high / low) == pytest.approx(2 * 1.645 * 0.10)
    # Simulated memory is that of rank 0 without tensor parallelism: noted, and not what decides.
    assert said.details["primus"]["peak_gib"] == pytest.approx(217.88)
    memory = said.details["projection"]["memory"]
    assert said.memory_gib == pytest.approx(memory["peak_gib"] - memory["capacity_gib"])
    performance, memory_call = calls(tmp_path)
    assert performance["target_nodes"] == 8
    assert performance["gpu_arch"] == "mi355x"
    assert performance["nnodes"] == "8"
    assert memory_call["memory_mode"] == "simulate"
    # Primus would project zero bubble for plain 1F1B otherwise.
    assert performance["overrides"]["enable_zero_bubble"] is False


def test_a_benchmark_is_run_here_once_and_its_memory_decides(oracle, tmp_path):
    said = oracle(mode="benchmark").evaluate(resolve(STUDY).baseline)
    assert isinstance(said, Evaluation)
    assert said.memory_gib == pytest.approx(241.337 - 288)
    assert said.fit_probability == 1.0
    performance, memory = calls(tmp_path)
    assert performance["nnodes"] == "1"
    assert performance["benchmark_gpus"] == 8
    assert memory["load_benchmark"] == performance["save_benchmark"]


def test_options_say_what_the_experiment_cannot():
    config = resolve(STUDY).baseline
    labels = config.as_labels() | {"schedule": "zbv", "vpp": 2, "moe_dispatcher": "deepep"}
    text = " ".join(options_of(type(config).from_labels(labels)))
    assert "--pipeline-schedule-algorithm zbv-formatted" in text
    assert "--enable-zero-bubble" in text
    assert "--num-virtual-stages-per-pipeline-rank 2" in text
    assert "--enable-deepep" in text


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("crash", "crashed: ZeroDivisionError: float division by zero"),
        ("garbage", "without a line that tells its iteration time"),
        ("contradiction", "it projected another batch or cluster"),
        ("hang", "timed out"),
    ],
)
def test_a_failure_is_one_sentence(oracle, monkeypatch, how, says):
    monkeypatch.setattr(
        collectors.primus_runner.Mode,
        "time_limit_s",
        property(lambda _: 20 if how != "hang" else 1),
    )
    said = oracle(how).evaluate(resolve(STUDY).baseline)
    assert isinstance(said, Crash)
    assert re.search(says, said.reason), said.reason
    assert "\n" not in said.reason
    assert said.reason.endswith(".")


def test_what_primus_is_known_to_get_wrong_is_not_asked(oracle, tmp_path):
    found = oracle()
    config = found.job.baseline.changed(cp=2)
    said = found.evaluate(config)
    assert isinstance(said, Crash)
    assert "for free" in said.reason
    assert not (tmp_path / "bin" / "calls.jsonl").exists()


def test_runs_move_the_bias(oracle):
    found = oracle()
    config = found.job.baseline
    printed = found.raw(config).tokens_per_s_per_gpu
    after = found.told((MeasuredConfig(config, printed * math.exp(-0.30)),))
    weight = RUN_SD**-2 / (RUN_SD**-2 + 0.10**-2)
    assert after.bias.mean == pytest.approx(-0.10 + weight * (-0.30 + 0.10))
    assert after.bias.sd < found.bias.sd
    assert after.fingerprint != found.fingerprint
    said = after.evaluate(config)
    assert isinstance(said, Evaluation)
    assert said.details["primus"]["runs_behind_bias"] == 1


def test_many_runs_outweigh_the_prior():
    assert Bias().after([0.05] * 400).mean == pytest.approx(0.05, abs=2e-3)
    assert Bias().after([]) == Bias()


def test_without_primus_it_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PRIMUS_PATH", raising=False)
    with pytest.raises(InputError, match="primus-cli is neither on the PATH"):
        primus_oracle(resolve(STUDY), tmp_path, "simulate")
    with pytest.raises(InputError, match="no Primus mode 'guess'"):
        primus_oracle(resolve(STUDY), tmp_path, "guess")


def test_it_projects_amd_gpus_only(oracle):
    found = oracle()
    other = resolve(STUDY, cluster="8x8xH100")
    said = replace(found, job=other).evaluate(other.baseline)
    assert isinstance(said, Crash)
    assert "not H100" in said.reason


def test_tune_spends_its_trials_on_primus(oracle, tmp_path, capsys):
    oracle()
    arguments = [
        *("tune", STUDY, "--oracle", "primus", "--trials", "3", "--out", str(tmp_path / "r")),
        *("--pin", "pp=4", "--pin", "tp=1", "--pin", "ep=8", "--pin", "cp=1", "--pin", "etp=1"),
        *("--pin", "precision=bf16", "--pin", "schedule=1f1b,interleaved"),
        *("--pin", "sharding=zero1", "--pin", "overlap=dp"),
    ]
    assert call(arguments) == 0
    told = capsys.readouterr().out
    assert "what Primus says" in told
    assert "its documented optimism" in told
    assert call([*arguments, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["trials"] == 3
    assert content["primus"]["best"]["mode"] == "simulate"
