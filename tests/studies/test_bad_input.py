"""Bad input ends in one sentence and exit code 2 or 3; nothing is written, nothing on stdout."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.studies.conftest import SMALL_STUDY, Ran

STUDY = SMALL_STUDY
ALIASES = "a: &a [x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join(['*' + below] * 9)}]\n"
    for below, one in zip("abcdefg", "bcdefgh", strict=True)
)

BAD = {
    "a field is missing": (STUDY.replace("global_batch_size: 64\n", ""), "global_batch_size"),
    "zero size": (STUDY.replace("seq_len: 4096", "seq_len: 0"), "seq_len"),
    "negative size": (STUDY.replace("size: 64", "size: -64"), "global_batch_size"),
    "unknown field": (STUDY + "frobnicate: 1\n", "frobnicate"),
    "unknown axis": (STUDY.replace("  tp: [1", "  tpp: [1"), "tpp"),
    "unknown GPU": (STUDY.replace("MI300X", "MI305X"), "near names: .*MI300X"),
    "unknown model": (STUDY.replace("llama3.1-8b", "llama9-8b"), "near names"),
    "batch that nothing divides": (
        STUDY.replace("2x8xMI300X", "64x8xMI300X").replace("size: 64", "size: 1"),
        "global batch size 1",
    ),
    "contradictory baseline": (STUDY.replace("mbs: 1,", "vpp: 3, schedule: zbv,"), "vpp 3"),
    "number format that the GPU lacks": (
        STUDY.replace("MI300X", "MI250X").replace("[bf16]", "[fp8]"),
        "fp8",
    ),
    "price beyond sense": (STUDY + "price_usd_per_gpu_hour: 1e308\n", "price_usd_per_gpu_hour"),
    "no YAML": ("model: [a, b\n  c: {d", "not valid YAML"),
    "not text": ("\0\1\2", "not valid YAML"),
    "a list": ("- a\n- b\n", "mapping"),
    "empty": ("", "neither"),
    "extends itself": ("extends: bad.yaml\n" + STUDY, "extends itself"),
    "extends nothing": ("extends: nosuch.yaml\n" + STUDY, "does not exist"),
    "too many aliases": (ALIASES + STUDY, "aliases"),
    "heads that no group divides": (
        STUDY.replace(
            "llama3.1-8b",
            "{num_layers: 4, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: 6, "
            "num_query_groups: 4, head_dim: 16, vocab_size: 999}",
        ),
        "num_query_groups",
    ),
    "100 MB": ("# comment\n" * 10_500_000, "MB"),
}


def _is_one_sentence(ran: Ran) -> bool:
    lines = ran.err.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("foretune: ") and "Traceback" not in ran.err


@pytest.mark.parametrize("command", ["tune", "project", "space"])
@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str, command: str, tmp_path: Path, foretune: Callable[..., Ran]) -> None:
    text, told = BAD[name]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    out = ("--out", tmp_path / "out") if command == "tune" else ()
    ran = foretune(command, path, "--json", *out)
    if command != "tune" and name in ("number format that the GPU lacks", "contradictory baseline"):
        return  # of the baseline alone, or of the space without its baseline, nothing is wrong
    assert ran.code in (2, 3), ran.out
    assert ran.out == ""
    assert _is_one_sentence(ran), ran.err
    assert re.search(told, ran.err), ran.err
    assert [item.name for item in tmp_path.iterdir()] == ["bad.yaml"]


def test_a_study_is_read_more_than_once_which_no_pipe_allows(
    small_study: Path, foretune: Callable[..., Ran]
) -> None:
    with subprocess.Popen(["cat", small_study], stdout=subprocess.PIPE) as written:
        assert written.stdout is not None
        ran = foretune("project", f"/dev/fd/{written.stdout.fileno()}")
    assert ran.code == 2
    assert "is a pipe and no file" in ran.err


LONG = "a" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        *((command, LONG) for command in ("project", "tune", "plan", "ingest", "space", "profile")),
        ("export", LONG, "--trial", "1"),
        ("ask", LONG, "--slot", "1h"),
        ("tell", LONG, "run.log"),
        ("tune", "STUDY", "--out", LONG),
        ("tune", "STUDY", "--storage", f"{LONG}.db"),
        ("plan", "STUDY", "--csv", f"{LONG}.csv"),
    ],
)
def test_a_name_that_is_too_long_is_one_sentence(
    arguments: tuple[str, ...],
    small_study: Path,
    foretune: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(small_study) if word == "STUDY" else word for word in arguments]
    ran = foretune(*words, "--json")
    assert (ran.code, ran.out) == (2, "")
    assert _is_one_sentence(ran), ran.err


READS_PIPE = {
    "project": ("project", "PIPE"),
    "project --runs": ("project", "--runs", "PIPE", "--csv", "out.csv"),
    "plan": ("plan", "PIPE"),
    "validate": ("validate", "PIPE"),
    "validate --models": ("validate", "runs.csv", "--models", "PIPE"),
    "calibrate": ("calibrate", "--runs", "PIPE", "--out", "c.json"),
    "calibrate --merge": ("calibrate", "--merge", "PIPE", "--out", "c.json"),
    "project --gpu-file": ("project", "llama3.1_70b_mi300x", "--gpu-file", "PIPE"),
    "tell": ("tell", "small.yaml", "PIPE"),
    "ingest": ("ingest", "PIPE"),
    "storage": ("worker", "small", "--storage", "pipe.db"),
}


@pytest.mark.parametrize("name", READS_PIPE)
def test_a_named_pipe_without_a_writer_is_refused_at_once(
    name: str,
    tmp_path: Path,
    small_study: Path,
    foretune: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for pipe in ("PIPE", "pipe.db"):
        os.mkfifo(tmp_path / pipe)
    (tmp_path / "runs.csv").write_text("model,gpu\nllama3.1-8b,H100\n")
    if name == "tell":
        assert foretune("ask", small_study, "--slot", "1h", "--runs", "1").code == 0
    ran = foretune(*READS_PIPE[name])
    assert (ran.code, ran.out) == (2, "")
    assert _is_one_sentence(ran), ran.err
    assert "is a pipe and no file" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["tune", "nosuch"], "shipped studies"),
        (["tune", "STUDY", "--set", "tp"], "axis=value"),
        (["tune", "STUDY", "--set", "tpp=1"], "no axis 'tpp'"),
        (["tune", "STUDY", "--set", "tp=0"], "tp is 0"),
        (["tune", "STUDY", "--set", f"tp={'9' * 20}"], "whole number below 2,147,483,648"),
        (["tune", "STUDY", "--set", "tp=two"], "whole number"),
        (["tune", "STUDY", "--set", "seq_len=-1"], "at least 1"),
        (["tune", "STUDY", "--set", "seq_len=1e30"], "a whole number"),
        (["tune", "STUDY", "--set", f"gbs={10**26}"], "below 2^40"),
        (["tune", "STUDY", "--cluster", "8xMI999X"], "near names"),
        (["tune", "STUDY", "--cluster", "0xMI300X"], "0 nodes with 0 GPUs"),
        (["tune", "STUDY", "--storage", "mongodb://h/x"], "a URL of another kind"),
        (["tune", "STUDY", "--out", "STUDY"], "is a file"),
        (["tune", "STUDY", "--why", "nonsense"], "axis=value"),
        (["tune", "STUDY", "--gpu-file", "nosuch.yaml"], "nosuch.yaml"),
        (["project", "STUDY", "--cluster", "1x8xMI300X", "--gpu", "H100"], "leave out --gpu"),
    ],
)
def test_bad_arguments(
    arguments: list[str],
    told: str,
    small_study: Path,
    foretune: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    words = [str(small_study) if word == "STUDY" else word for word in arguments]
    ran = foretune(*words, "--json")
    assert ran.code == 2, ran.out
    assert ran.out == ""
    assert told in ran.err
    assert _is_one_sentence(ran), ran.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", [["--nosuch"], ["nosuch"], ["tune"], ["tune", "a", "b"]])
def test_usage_errors_are_exit_code_2(arguments: list[str], foretune: Callable[..., Ran]) -> None:
    ran = foretune(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
