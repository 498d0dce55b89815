"""Every command that the docs show is run as it stands there, page by page."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from studies.cli.main import call
from studies.plan.files import shipped_plans
from tests.nursery import Nursery

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
BLOCK = re.compile(r"^```(?:ba)?sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted(page for page in DOCS.glob("*.md") if BLOCK.search(page.read_text()))

# Processes are forked (tests/warm.py), and those that they start with `sys.executable` as well:
# importing would take longer than most commands.
# `tune` makes eight trials where the page does not say how many: the study it shows makes 24.
# `plan` plans each shipped cluster in its largest size alone.
# `foretune dashboard` serves until it is stopped: here until it has answered once.
# What several pages begin with fills its folder of results once; it is copied for the others.
HARNESS = """\
set -euo pipefail
forked=("$PYTHON" -S "$REPOSITORY/tests/warm.py" "$NURSERY")
main='import os, sys, foretune
sys.stdout.reconfigure(line_buffering=True)
sys.executable = os.environ["STAND_IN"]
foretune.main()'
warm() {
  if [[ $1 == tune && " $* " != *" --trials "* ]]; then set -- "$@" --trials 8; fi
  if [[ $1 == plan && -e $MADE/$2.yaml ]]; then set -- plan "$MADE/$2.yaml" "${@:3}"; fi
  "${forked[@]}" -c "$main" "$@"
}
once() {
  local command="$*" out=results
  if [[ $command =~ ^(.*)" --out "([a-z0-9]+)$ ]]; then
    command=${BASH_REMATCH[1]} out=${BASH_REMATCH[2]}
  fi
  if [ -e "$out" ] || ! grep -qxF -- "$command" "$MADE/repeated"; then
    warm "$@"
  elif [ -e "$MADE/$command" ]; then
    cp -r "$MADE/$command" "$out"
  else
    warm "$@"
    mkdir -p "$(dirname "$MADE/$command")"
    cp -r "$out" "$MADE/$command"
  fi
}
foretune() {
  case $1 in
    tune | plan) once "$@"; return ;;
    dashboard) ;;
    *) warm "$@"; return ;;
  esac
  "${forked[@]}" -c "$main" "$@" --port 0 > served.txt &
  local server=$!
  for _ in $(seq 600); do
    if grep -q http:// served.txt; then
      "$PYTHON" -S -c "
import re, urllib.request
url = re.search('http://[0-9.:]+/', open('served.txt').read())[0]
urllib.request.urlopen(url + 'api/studies').read()"
      kill $server; return
    fi
    sleep 0.1
  done
  kill $server; return 1
}
"""


def run_script(
    script: str, folder: Path, nursery: Nursery, made: Path
) -> subprocess.CompletedProcess[str]:
    """Runs bash in a folder that looks like a checkout; ``made`` holds what was filled before."""
    for name in ("docs", "studies", "tests"):
        (folder / name).symlink_to(REPOSITORY / name)
    environment = os.environ | {
        "PYTHON": sys.executable,
        "REPOSITORY": str(REPOSITORY),
        "NURSERY": nursery.ready(),
        "STAND_IN": nursery.python(),
        "MADE": str(made),
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def commands_of(page: Path) -> str:
    """The shell blocks of a page, one after the other."""
    return "\n".join(BLOCK.findall(page.read_text()))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where results are kept that several pages begin with, their commands, and smaller plans."""
    folder = tmp_path_factory.mktemp("made")
    commands = re.findall(r"^foretune (.*)$", "\n".join(map(commands_of, PAGES)), re.MULTILINE)
    counts = Counter(re.sub(r" --out [a-z0-9]+$", "", command) for command in commands)
    repeated = [command for command, count in counts.items() if count > 1]
    (folder / "repeated").write_text("\n".join(repeated) + "\n")
    for name, path in shipped_plans().items():
        one_size = re.sub(r"num_nodes: \[.*, *(\d+)\]", r"num_nodes: \1", path.read_text())
        (folder / f"{name}.yaml").write_text(one_size)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_the_page_runs(
    page: Path, tmp_path: Path, nursery: Nursery, made: Path
) -> None:
    if "foretune dashboard" in commands_of(page):
        pytest.importorskip("optuna_dashboard", reason="pip install -e '.[dashboard]'")
    if "--llm" in commands_of(page) and not importlib.util.find_spec("dspy"):
        pytest.skip("pip install 'foretune[llm]'")
    script = commands_of(page)
    done = run_script(HARNESS + script, tmp_path, nursery, made)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_example_runs(tmp_path: Path, nursery: Nursery, made: Path) -> None:
    done = run_script(HARNESS + '"${forked[@]}" docs/example.py found', tmp_path, nursery, made)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "tokens/s/GPU" in done.stdout
    assert "tp=3 is refused" in done.stdout
    assert list((tmp_path / "found").glob("*/best.yaml"))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_commands_that_need_more_than_this_machine_exist(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of what is shown without being run (a cluster, a GPU, a key), commands and options exist."""
    for line in re.findall(r"^foretune ([^#\n]+)", page.read_text(), flags=re.MULTILINE):
        words = line.split()
        command = words[:2] if words[0] in ("bench", "llm") else words[:1]
        assert call([*command, "--help"]) == 0, line
        told = capsys.readouterr().out
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert not [option for option in options if option not in told], line


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    rooms = "specs|surrogate|collectors|search|studies|tests"
    for name in re.findall(rf"`((?:{rooms})/[\w/.*]+\.(?:py|yaml))`", text):
        assert list(REPOSITORY.glob(name)), name
    for module in re.findall(rf"python -m ((?:{rooms})[\w.]+)", text):
        assert importlib.util.find_spec(module), module
