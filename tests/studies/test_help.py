"""``--help`` starts without the heavy packages, and every command that exists is listed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from studies.cli.main import app, call
from tests.studies.conftest import Ran

COMMANDS = [command.name or "" for command in app.registered_commands]
COMMANDS += [group.name or "" for group in app.registered_groups]
HEAVY = {
    "numpy", "scipy", "pandas", "yaml", "optuna", "sqlalchemy", "sklearn", "xgboost",
    "torch", "plotly", "pyarrow", "dspy", "litellm", "specs.config", "surrogate.cases",
}  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys; from studies.cli.main import call; "
        f"code = call({arguments!r}); print(code, *sys.modules, file=sys.stderr)"
    )
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root)
    code, *modules = ran.stderr.split()
    assert code == "0", ran.stderr
    assert not HEAVY.intersection(modules)


def test_every_command_is_listed(foretune: Callable[..., Ran]) -> None:
    ran = foretune("--help")
    assert ran.code == 0
    for name in COMMANDS:
        assert f" {name} " in ran.out


def test_the_front_door_refuses_a_package_that_hides_ours(tmp_path: Path) -> None:
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "__init__.py").touch()
    root = Path(__file__).parents[2]
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]; import foretune"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 1
    assert "its package 'specs' is hidden by" in ran.stderr.splitlines()[-1]


def test_quiet_leaves_out_notes(foretune: Callable[..., Ran]) -> None:
    job = ["project", "llama3.1_70b_mi300x", "--cluster", "32xMI300X"]
    loud, quiet = foretune(*job, "--json"), foretune("--quiet", *job, "--json")
    assert quiet.code == 0
    assert quiet.err == ""
    assert quiet.out == loud.out
    behind = foretune(*job, "--json", "--quiet")
    assert (behind.code, behind.out, behind.err) == (quiet.code, quiet.out, quiet.err)


def test_shells_complete(foretune: Callable[..., Ran]) -> None:
    ran = foretune("--help")
    assert "--install-completion" in ran.out
    assert "--show-completion" in ran.out


def test_closed_streams_are_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    # What ``foretune ... >&- 2>&-`` makes of them.
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert call(["project", "mixtral_8x22b_mi355x"]) == 0
    assert call(["project", "no_such_study"]) == 2
