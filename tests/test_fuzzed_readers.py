"""A deterministic sample of the fuzzing of every reader (``python -m benchmarks.fuzz``)."""

from __future__ import annotations

import gzip
import random
from contextlib import suppress

import pytest

from benchmarks.fuzz.mutations import YAML_DANGERS
from benchmarks.fuzz.readers import READERS
from benchmarks.fuzz.run import damaged, fuzz
from collectors import text
from collectors.ingestion import ingest
from specs.errors import InputError
from specs.formats.yaml_files import parse_yaml

INPUTS = 120
NAMES = [reader.name for reader in READERS]


@pytest.mark.parametrize("name", NAMES)
def test_damaged_samples_are_read_or_refused_with_one_sentence(name: str) -> None:
    outcome = fuzz(name, 0, INPUTS)
    assert not outcome.faults
    assert outcome.inputs == outcome.accepted + outcome.refused == INPUTS
    assert outcome.refused, "the damage must matter"


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_valid_and_damage_is_deterministic(name: str, tmp_path) -> None:
    reader = next(r for r in READERS if r.name == name)
    held = reader.samples()
    assert damaged(reader, 7, held) == damaged(reader, 7, held)
    for number, content in enumerate(held):
        if reader.file.endswith((".gz", ".parquet")):
            continue
        path = tmp_path / str(number) / reader.file
        path.parent.mkdir()
        path.write_bytes(content)
        reader.read(path)


@pytest.mark.parametrize("number", range(len(YAML_DANGERS)))
def test_dangers_of_yaml(number: int) -> None:
    for seed in range(3):
        danger = YAML_DANGERS[number](random.Random(seed))
        with suppress(InputError):
            parse_yaml(danger, "x.yaml")


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BOMB_BYTES", 2**20)
    path = tmp_path / "x.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 2**22))
    with pytest.raises(InputError, match="unpacks to more than 200 times"):
        ingest(path, {})
