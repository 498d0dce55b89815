"""What foreign files may not do: run code, lead out of the folder of results, open the network."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specs.errors import InputError
from studies.dashboard import LOOPBACK
from studies.files import checked_name, name_from, study_folder, write_atomically
from tests.studies.conftest import SMALL_STUDY, Ran

ROOT = Path(__file__).parents[2]
PACKAGES = ("specs", "surrogate", "collectors", "search", "studies", "foretune.py")
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib"}
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load"),
    *("torch.load", "joblib.load", "pandas.read_pickle"),
}
USER_CODE = "studies/toolbox/models.py"
"""The only file that imports what a user names (``module:factory``)."""
OWN_IMPORTS = {USER_CODE, "foretune.py", "studies/cli/bench_search.py"}
"""Files that import by name; all but the first name modules of their own."""


@cache
def _trees() -> tuple[tuple[str, ast.Module], ...]:
    paths = [ROOT / package for package in PACKAGES]
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return tuple(
        (str(file.relative_to(ROOT)), ast.parse(file.read_text(encoding="utf-8")))
        for file in sorted(files)
    )


def _calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func), node


def test_no_module_that_can_run_what_it_reads() -> None:
    for file, tree in _trees():
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & FORBIDDEN_MODULES, file


def test_no_call_that_can_run_what_it_reads() -> None:
    for file, tree in _trees():
        for name, call in _calls(tree):
            assert name not in FORBIDDEN_CALLS, f"{file}:{call.lineno}"
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            for switch in ("shell", "allow_pickle"):
                value = given.get(switch)
                harmless = value is None or (isinstance(value, ast.Constant) and not value.value)
                assert harmless, f"{file}:{call.lineno}"
            if name in ("yaml.load", "yaml.load_all"):
                loader = ast.unparse(given["Loader"])
                assert loader in ("_Loader", "loader"), f"{file}:{call.lineno}: {loader}"


def test_the_loaders_of_yaml_are_safe() -> None:
    import yaml

    from specs.formats.yaml_files import _Loader

    safe = (yaml.SafeLoader, yaml.CSafeLoader)
    assert issubclass(_Loader, safe)
    source = (ROOT / "specs/catalog.py").read_text(encoding="utf-8")
    assert 'loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)' in source


def test_user_code_is_imported_in_one_place() -> None:
    importing = {
        file
        for file, tree in _trees()
        for name, _ in _calls(tree)
        if name.endswith(("import_module", "__import__", "spec_from_file_location"))
    }
    assert importing <= OWN_IMPORTS


def test_servers_answer_this_machine_alone() -> None:
    assert LOOPBACK == "127.0.0.1"
    for file, tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant):
                assert node.value not in ("0.0.0.0", "::"), f"{file}:{node.lineno}"


HOSTILE = [
    *("../../x", "/etc/passwd", "a/../../b", "..", ".", "", "a\x00b", "x" * 5000, "-rf", "a\nb"),
    *("C:\\x", "~/x", "$(reboot)", "étude", "名前", "\u202egpj.exe", "con", "*", "a;b", "\ud800"),
]


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
def test_names_become_one_safe_part_of_a_path(text: str, tmp_path: Path) -> None:
    name = name_from(text)
    assert checked_name(name) == name
    assert (tmp_path / name).resolve().parent == tmp_path.resolve()


@given(text=st.text())
def test_any_name_is_safe_and_stays_itself(text: str) -> None:
    name = name_from(text)
    assert checked_name(name) == name
    assert name_from(name) == name.strip("_.-") or len(name) > 80
    assert not name.startswith((".", "-"))


def test_names_of_other_scripts_stay_apart() -> None:
    assert name_from("étude") == "etude"
    assert name_from("Llama 3.1 70B (H100)") == "Llama_3.1_70B_H100"
    assert len({name_from(text) for text in ("研究", "学習", "обучение", "x" * 81, "x" * 82)}) == 5


@pytest.mark.parametrize("text", [t for t in HOSTILE if t not in ("con", "~/x")], ids=repr)
def test_a_name_that_is_given_is_refused_unless_it_is_safe(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="study name"):
        study_folder(tmp_path, text)


def test_a_link_out_of_the_results_is_refused(foretune: Callable[..., Ran], tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (out / "small").symlink_to(elsewhere)
    study = tmp_path / "x.yaml"
    study.write_text(SMALL_STUDY)
    ran = foretune("tune", study, "--out", out)
    assert ran.code == 2
    assert "leads out of" in ran.err
    assert not list(elsewhere.iterdir())


def test_a_file_that_is_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "precious", tmp_path / "result.json"
    target.write_text("precious")
    link.symlink_to(target)
    write_atomically(link, "{}")
    assert target.read_text() == "precious"
    assert not link.is_symlink()


@pytest.mark.parametrize("name", ["../../escaped", "/tmp/escaped", "étude"])
def test_a_hostile_study_writes_into_the_results_alone(
    name: str, foretune: Callable[..., Ran], tmp_path: Path
) -> None:
    study = tmp_path / "in" / "x.yaml"
    study.parent.mkdir()
    study.write_text(SMALL_STUDY.replace("name: small", f"name: {name}"), encoding="utf-8")
    before = set(tmp_path.iterdir())
    ran = foretune("tune", study, "--out", tmp_path / "out", "--trials", "2")
    assert ran.code == 0, ran.err
    assert set(tmp_path.iterdir()) - before == {tmp_path / "out"}
    folders = [path.name for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert name_from(name) in folders
