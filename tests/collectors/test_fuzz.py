"""Damaged samples give rows or one clear sentence, never a traceback."""

from __future__ import annotations

import contextlib
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.ingestion import ingest, operators_csv, refusals
from specs.errors import InputError
from specs.run_columns import runs_csv
from tests.collectors.conftest import SAMPLES

NAMES = sorted(path.name for path in SAMPLES.iterdir())


def _damaged(content: bytes, kind: str, seed: int) -> bytes:
    """One kind of damage."""
    dice = random.Random(seed)
    lines = content.split(b"\n")
    if kind == "cut":
        return content[dice.randrange(len(content)) : dice.randrange(len(content) + 1)]
    if kind == "bytes":
        damaged = bytearray(content)
        for _ in range(dice.randrange(1, 200)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        return bytes(damaged)
    if kind == "shuffled":
        dice.shuffle(lines)
        return b"\n".join(lines)
    if kind == "numbers":
        hostile = [b"nan", b"-1", b"1e308", b"9" * 40, b"0", b"1e-320", b"None", b"[1, 2]", b"{}"]
        words = content.split(b" ")
        for _ in range(30):
            words[dice.randrange(len(words))] = dice.choice(hostile)
        return b" ".join(words)
    pieces = [
        line[dice.randrange(len(line) + 1) :] + lines[dice.randrange(len(lines))] for line in lines
    ]
    return dice.choice([b"\r", b"\n", b"\r\n"]).join(pieces)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["cut", "bytes", "shuffled", "numbers", "merged"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_damage(tmp_path_factory, name, kind, seed):
    path = tmp_path_factory.mktemp("fuzz") / name
    path.write_bytes(_damaged((SAMPLES / name).read_bytes(), kind, seed))
    sentence = ""
    try:
        found = ingest(path, {})
        refusals(found.runs)
        runs_csv(run.row for run in found.runs)
        json.dumps([run.as_json() for run in found.runs], default=float)
        operators_csv([found])
    except InputError as error:
        sentence = str(error)
    assert "\n" not in sentence
    assert len(sentence) < 1000


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=" .|:/%()[],-0123456789MiBGPUVRAMTotaliteration\x1b", max_size=3000))
def test_lines_made_of_the_words_of_logs(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("fuzz") / "x.log"
    path.write_text("iteration 1/ 2 | " + text)
    with contextlib.suppress(InputError):
        ingest(path, {})


@pytest.mark.parametrize(
    "line",
    [
        "iteration " + " " * 60000 + "1/2 |",
        "iteration 1/ 2 |" + " elapsed time per iteration (ms): " * 3000,
        "iteration 1/ 2 |" * 4000,
        "GPU[0" * 13000 + "VRAM",
        "0 " + "1% " * 20000,
        "memory (MB) " * 5400,
        "CUDA error out of memory " * 2600,
        "\x1b[" * 30000,
        "\x1b]" * 30000,
        "[rank-1/" * 8000,
        "NVIDIA A100" * 6000,
        ":::MLLOG " + "{" * 60000,
        ":::MLLOG " + '{"key": ' * 8000,
        " arguments --- " + "a" * 60000,
        "  " + "name " * 12000,
        "1MiB / " * 9000,
    ],
)
def test_no_line_takes_long(tmp_path, line):
    """Every pattern stays linear: this test would hang where one did not."""
    path = tmp_path / "x.log"
    path.write_text(f"{(SAMPLES / 'primus_mi300x.log').read_text()}\n" + f"{line}\n" * 40)
    found = ingest(path, {})
    assert found.runs
