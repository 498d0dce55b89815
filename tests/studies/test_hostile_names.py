"""Names of strangers with line ends and escapes in them: none becomes a line of a script."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from collectors.launchers.launch import Launch
from collectors.launchers.local import Local
from collectors.launchers.slurm import Slurm
from specs import catalog
from specs.errors import InputError
from specs.formats.cluster import cluster_of, read_cluster
from specs.formats.primus.writer import write_yaml
from specs.formats.reader import read_experiment
from specs.stack import Stack
from specs.text import comment_lines, one_line
from studies.toolbox.artifact import docstring
from tests.specs.test_huggingface import CONFIGS
from tests.studies.conftest import SMALL_STUDY, Ran

Command = Callable[..., Ran]
HOSTILE = "ll\ntouch PWNED #"
SIZES = CONFIGS["Llama-2-7B"][0]


def _changed_study(**fields: object) -> str:
    return yaml.safe_dump(yaml.safe_load(SMALL_STUDY) | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": HOSTILE},
        {"name": "a\x1b[2J"},
        {"name": "a\u202eb"},
        {"stack": {"framework": "Primus\ntouch PWNED"}},
        {"stack": {"framework": "Primus", "version": "1\rtouch PWNED"}},
        {"cluster": {"name": HOSTILE, "gpu": "MI300X", "num_nodes": 2}},
        {"cluster": {"gpu": "MI300X\ntouch PWNED", "num_nodes": 2}},
        {"gpus": {HOSTILE: {"extends": "MI300X"}}},
        {"model": {"name": HOSTILE, "extends": "llama3.1-8b"}},
    ],
    ids=str,
)
def test_a_study_with_control_characters_in_a_name_is_refused(
    fields: dict[str, Any], foretune: Command, tmp_path: Path
) -> None:
    study = tmp_path / "x.yaml"
    study.write_text(_changed_study(**fields))
    ran = foretune("tune", study, "--out", tmp_path / "out", "--trials", 2)
    assert ran.code == 2
    assert ran.err.strip().isprintable(), "one line, without what it complains of"
    assert not (tmp_path / "out").exists()


def test_a_model_config_with_a_line_end_in_its_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SIZES | {"_name_or_path": HOSTILE}))
    with pytest.raises(InputError, match=r"name: .*control character"):
        read_experiment(path)


def test_names_of_other_scripts_and_with_blanks_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(_changed_study(name="étude 研究 #1"))
    assert read_experiment(path).name == "étude 研究 #1"


def test_hardware_and_stack_refuse_names_that_cannot_be_printed() -> None:
    with pytest.raises(ValueError, match="control character"):
        Stack(framework_name=HOSTILE)
    with pytest.raises(ValueError, match="control character"):
        catalog.gpu("MI300X").model_validate(catalog.gpu("MI300X").model_dump() | {"name": HOSTILE})
    with pytest.raises(InputError, match="control character"):
        cluster_of({"name": HOSTILE, "gpu": "MI300X"}, "x.yaml")


@given(text=st.text())
def test_a_comment_is_one_line_whatever_it_says(text: str) -> None:
    (line,) = comment_lines([text])
    assert line.startswith("# ")
    assert line.isprintable()
    assert len(line.splitlines()) == 1


@given(text=st.text(), limit=st.integers(min_value=4, max_value=50))
def test_one_line_is_printable_and_no_longer_than_asked(text: str, limit: int) -> None:
    shown = one_line(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


@given(text=st.text())
def test_an_error_of_a_short_text_is_the_same_line(text: str) -> None:
    """What a file holds looks the same in a refusal as everywhere else."""
    assert str(InputError(text[:200])) == one_line(text[:200], 200)


@given(text=st.text())
def test_the_docstring_of_a_program_is_a_docstring_whatever_it_says(text: str) -> None:
    tree = ast.parse(docstring(text))
    (statement,) = tree.body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Constant)
    assert statement.value.value == one_line(text, 4000)


def test_the_comments_of_a_yaml_file_are_comments(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    write_yaml(path, {"a": 1}, (f"about {HOSTILE}", "b\x85modules: {}\x00"))
    assert yaml.safe_load(path.read_text()) == {"a": 1}


@pytest.mark.parametrize("place", ["folder", "workdir"])
def test_a_launch_in_a_folder_with_a_line_end_is_refused(place: str, tmp_path: Path) -> None:
    folders = {"folder": tmp_path, "workdir": tmp_path} | {place: tmp_path / HOSTILE}
    with pytest.raises(InputError, match="control character"):
        Launch(name="x", command=("true",), **folders)


@pytest.mark.parametrize(
    "launcher", [Slurm({"account": 'a\'b $(touch PWNED) "c" `touch PWNED`'}), Local()]
)
def test_what_is_quoted_in_a_script_stays_a_word(launcher: Slurm | Local, tmp_path: Path) -> None:
    words = ("printf", "%s", f"$(touch PWNED) ' \" \\ {HOSTILE}")
    folder = tmp_path / "it's $(touch PWNED)"
    folder.mkdir()
    launch = Launch(name="x", folder=folder, command=words, environment={"A": HOSTILE})
    (script,) = launcher.write(launch)
    done = subprocess.run(["bash", str(script)], cwd=folder, capture_output=True, text=True)
    assert not list(tmp_path.rglob("PWNED"))
    if isinstance(launcher, Local):
        assert done.stdout == words[2]


@pytest.mark.parametrize("options", [{"account": "a\rb"}, {"account": "a\x0bb"}])
def test_an_option_of_sbatch_is_one_line(options: dict[str, str]) -> None:
    with pytest.raises(InputError, match="no option of sbatch"):
        Slurm(options)
    with pytest.raises(InputError, match="no option of srun"):
        Slurm({}, ("--container-image=a\nb",))


def test_an_error_shows_no_escape_sequences() -> None:
    assert str(InputError("a\x1b[2Jb\x07")) == "a [2Jb"


@pytest.mark.parametrize("nodes", [2_000_000, 131_073])
def test_a_cluster_that_nobody_can_have_is_refused(nodes: int) -> None:
    for read in (
        lambda: read_cluster(f"{nodes}x8xMI300X"),
        lambda: cluster_of({"gpu": "MI300X", "num_nodes": nodes}, "x.yaml"),
    ):
        with pytest.raises(InputError, match=r"1,?048,?576"):
            read()
