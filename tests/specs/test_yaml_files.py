"""YAML files: bounded, safe, with environment values and ``extends``."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import InputError
from specs.formats.layer_pattern import layer_flags
from specs.formats.reader import read_experiment
from specs.formats.yaml_files import (
    MAX_BYTES,
    deep_merge,
    fill_environment,
    parse_yaml,
    read_chain,
    read_json,
    read_yaml,
)


def _write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_later_bases_win_and_the_file_wins_over_all(tmp_path: Path) -> None:
    _write(tmp_path, "a.yaml", "x: 1\ny: 1\nz: {p: 1, q: 1}\n")
    _write(tmp_path, "b.yaml", "y: 2\nz: {q: 2}\n")
    top = _write(tmp_path, "top.yaml", "extends: [a.yaml, b.yaml]\nw: 3\nx: 3\n")
    assert read_chain(top) == {"x": 3, "y": 2, "z": {"p": 1, "q": 2}, "w": 3}
    other = _write(tmp_path, "other.yaml", "bases: a.yaml\ny: null\n")
    assert read_chain(other) == {"x": 1, "y": None, "z": {"p": 1, "q": 1}}


def test_a_number_in_sixties_is_text(tmp_path: Path) -> None:
    text = "a: 2:08\nb: -1:30.5\nc: 0x10\nd: 1_000\ne: 2.5\nf: .inf\n"
    read = {"a": "2:08", "b": "-1:30.5", "c": 16, "d": 1000, "e": 2.5, "f": float("inf")}
    assert parse_yaml(text, "x") == read
    study = "model: llama3.1-8b\nseq_len: 4096\nglobal_batch_size: 2:08\n"
    with pytest.raises(InputError, match=r"global_batch_size: .* valid integer"):
        read_experiment(_write(tmp_path, "study.yaml", study))


def test_circles_and_missing_bases(tmp_path: Path) -> None:
    _write(tmp_path, "a.yaml", "extends: b.yaml\n")
    top = _write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(InputError, match="extends itself"):
        read_chain(top)
    alone = _write(tmp_path, "c.yaml", "extends: nowhere.yaml\n")
    with pytest.raises(InputError, match="does not exist"):
        read_chain(alone)
    numbers = _write(tmp_path, "d.yaml", "extends: [1, 2]\n")
    with pytest.raises(InputError, match="file name"):
        read_chain(numbers)


def test_wide_trees_of_bases_are_bounded(tmp_path: Path) -> None:
    for level in range(20):
        _write(tmp_path, f"{level}.yaml", f"extends: [{level + 1}.yaml, {level + 1}.yaml]\n")
    _write(tmp_path, "20.yaml", "x: 1\n")
    with pytest.raises(InputError, match="files"):
        read_chain(tmp_path / "0.yaml")


def test_environment_values_are_typed() -> None:
    content = {
        "tp": "${PRIMUS_TP:8}",
        "model": "${MODEL:llama}.yaml",
        "path": "${PATH_X:null}",
        "rate": "${LR:8.0e-4}",
        "on": "${ON:true}",
        "list": ["${PRIMUS_TP:8}", "plain"],
        "text": "${COLON:a:b}",
        "empty": "${EMPTY:}",
    }
    filled = fill_environment(content, "x.yaml", {"PRIMUS_TP": "4", "TP": "5"})
    assert filled == {
        "tp": 4,
        "model": "llama.yaml",
        "path": None,
        "rate": 8.0e-4,
        "on": True,
        "list": [4, "plain"],
        "text": "a:b",
        "empty": None,
    }
    with pytest.raises(InputError, match="needs the environment variable PRIMUS_NEEDED"):
        fill_environment({"a": "${PRIMUS_NEEDED}"}, "x.yaml", {})


SECRETS = ("FORETUNE_LLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "HOME", "PATH", "PRIMUS_HF_TOKEN")
SECRETS += ("HF_TOKEN", "PRIMUS_API_KEY", "PRIMUS_DB_PASSWORD", "PRIMUS_secret", "PGPASSWORD")


@pytest.mark.parametrize("name", SECRETS)
def test_no_variable_that_may_be_a_secret_is_filled_in(name: str) -> None:
    environment = {name: "hunter2"}
    assert fill_environment({"a": f"${{{name}:x}}"}, "x.yaml", environment) == {"a": "x"}
    with pytest.raises(InputError, match=name) as caught:
        fill_environment({"a": f"${{{name}}}"}, "x.yaml", environment)
    assert "hunter2" not in str(caught.value)


def test_settings_of_primus_are_filled_in() -> None:
    names = ("PRIMUS_TOKENIZED_DATA_PATH", "PRIMUS_TOKENIZER_MODEL", "PRIMUS_TP", "MBS", "GBS")
    content = {name: f"${{{name}:1}}" for name in names}
    assert fill_environment(content, "x.yaml", dict.fromkeys(names, "2")) == dict.fromkeys(names, 2)


def test_a_foreign_study_learns_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETUNE_LLM_API_KEY", "hunter2")
    path = tmp_path / "x.yaml"
    path.write_text(
        "name: ${FORETUNE_LLM_API_KEY:harmless}\nmodel: llama3.1-8b\nseq_len: 4096\n"
        "global_batch_size: 64\ncluster: 8xMI300X\n"
    )
    assert "hunter2" not in repr(experiment := read_experiment(path))
    assert experiment.name == "harmless"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: [1, 2", "not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']", "not valid YAML"),
        ("a: 1\na: 2", "repeats"),
        ("[" * 30_000, "YAML|nested"),
        ("{a: " * 500 + "1" + "}" * 500, "nested"),
        ("a: &a [*a]", "nested"),
        ("a: " + "9" * 400, "digits"),
        ("\x00", "not valid YAML"),
        ("a: 2024-99-99", "cannot read"),
    ],
)
def test_bad_yaml_is_one_sentence(text: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        parse_yaml(text, "x.yaml")


def test_aliases_are_bounded() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(InputError, match="values"):
        parse_yaml("\n".join(lines), "x.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(InputError, match="100 MB"):
        read_yaml(large)
    assert MAX_BYTES < 10_000_000
    with pytest.raises(InputError, match="cannot read"):
        read_yaml(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="folder"):
        read_yaml(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        read_yaml(Path("bad\0name.yaml"))
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="text file"):
        read_yaml(binary)
    with pytest.raises(InputError, match="mapping"):
        read_yaml(_write(tmp_path, "list.yaml", "- 1\n- 2\n"))
    with pytest.raises(InputError, match="not a name"):
        read_yaml(_write(tmp_path, "keys.yaml", "1: 2\n"))
    with pytest.raises(InputError, match="JSON"):
        read_json(_write(tmp_path, "x.json", "{'a': 1}"))
    with pytest.raises(InputError, match=r"JSON|nested"):
        read_json(_write(tmp_path, "y.json", "[" * 100_000))


def test_deep_merge_leaves_its_inputs_alone() -> None:
    below, above = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert deep_merge(below, above) == {"a": {"b": 1, "c": 2}}
    assert below == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("pattern", "layers", "expected"),
    [
        (1, 3, "111"),
        ("1", 3, "111"),
        (2, 4, "1010"),
        ("([0]*1+[1]*3)", 4, "0111"),
        ("([1]*2+[0])*2+[1]", 7, "1101101"),
        ([0, 1], 2, "01"),
        ("[0,1,]", 2, "01"),
        ("3*([1]) + [0]", 4, ""),
    ],
)
def test_layer_patterns(pattern: object, layers: int, expected: str) -> None:
    if not expected:
        with pytest.raises(InputError):
            layer_flags(pattern, layers, "moe_layer_freq")
        return
    flags = layer_flags(pattern, layers, "moe_layer_freq")
    assert "".join(str(int(flag)) for flag in flags) == expected


@pytest.mark.parametrize(
    "pattern",
    [
        0,
        -1,
        True,
        None,
        1.5,
        "__import__('os')",
        "([0]*3",
        "[2]*3",
        "[0]*999999999",
        "([0]*1+[1]*9)",
    ],
)
def test_bad_layer_patterns(pattern: object) -> None:
    with pytest.raises(InputError, match="moe_layer_freq"):
        layer_flags(pattern, 3, "moe_layer_freq")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 20)), min_size=1, max_size=5))
def test_patterns_mean_what_python_means(runs: list[tuple[int, int]]) -> None:
    text = "(" + "+".join(f"[{flag}]*{count}" for flag, count in runs) + ")"
    expected = [bool(flag) for flag, count in runs for _ in range(count)]
    assert list(layer_flags(text, len(expected), "key")) == expected


@given(st.text(alphabet="()[]*+, 019x", max_size=40))
def test_any_text_is_flags_or_a_sentence(text: str) -> None:
    try:
        flags = layer_flags(text, 4, "key")
    except InputError:
        return
    assert len(flags) == 4
