"""optuna-dashboard on our studies: constraints, notes, graphs and artifacts, also in a browser."""

from __future__ import annotations

import json
import threading
import urllib.request
from pathlib import Path
from typing import Any

import optuna
import pytest

from specs.errors import InputError
from studies.boards import Board, artifact_folder
from studies.dashboard import application, serve, untried, with_constraints
from studies.pictures.incumbent import incumbent
from studies.pictures.style import Attempt
from studies.showcase import graphs
from studies.storage import open_storage
from studies.trial_notes import cell, study_note, trial_note
from tests.showing.conftest import PAGE_MS

NAMES = (
    "[...document.querySelectorAll('.js-plotly-plot')]"
    ".flatMap(plot => plot.data.map(trace => trace.name || ''))"
)
"""JavaScript: the names of everything that is drawn."""

pytest.importorskip("optuna_dashboard", reason="pip install -e '.[dashboard]'")


def address_of(app: Any) -> str:
    """Serves an application in the background and returns where."""
    ready, found = threading.Event(), []

    def tell(url: str) -> None:
        found.append(url.removesuffix("dashboard/"))
        ready.set()

    threading.Thread(target=serve, args=(app, 0, tell), daemon=True).start()
    assert ready.wait(60)
    return found[0]


@pytest.fixture(scope="module")
def served(finished: Any) -> str:
    """The address of the dashboard."""
    artifacts = artifact_folder(finished.address.path, finished.folder)
    return address_of(application(open_storage(finished.address), artifacts))


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def detail(served: str) -> Any:
    """The study as the dashboard's own API tells it."""
    (study,) = fetched(served + "api/studies")["study_summaries"]
    return fetched(f"{served}api/studies/{study['study_id']}")


def test_it_listens_on_this_machine_only(served: str) -> None:
    assert served.startswith("http://127.0.0.1:")


def test_refused_trials_are_infeasible_and_never_best(finished: Any, detail: Any) -> None:
    trials = {trial.number: trial for trial in finished.facts.trials}
    assert any(not trial.fits for trial in trials.values())
    for shown in detail["trials"]:
        (violation,) = shown["constraints"]
        assert (violation > 0) is not trials[shown["number"]].fits
    (best,) = detail["best_trials"]
    fitting = [trial for trial in trials.values() if trial.fits]
    assert best["number"] == max(fitting, key=lambda t: t.tokens_per_s_per_gpu).number


def test_the_study_carries_note_graphs_metric_and_artifacts(detail: Any) -> None:
    assert "How to read this study" in detail["note"]["body"]
    assert detail["objective_names"] == ["tokens_per_s_per_gpu"]
    drawn = {graph["id"] for graph in detail["plotly_graph_objects"]}
    assert {"incumbent", "memory", "pareto", "axes", "changes"} <= drawn
    for graph in detail["plotly_graph_objects"]:
        assert json.loads(graph["graph_object"])["data"]
    names = {artifact["filename"] for artifact in detail["artifacts"]}
    assert {"best.yaml", "result.json"} <= names


def test_every_trial_has_a_note_and_readable_attributes(detail: Any) -> None:
    for trial in detail["trials"]:
        assert "Taught:" in trial["note"]["body"]
        assert "GiB by stage" in trial["note"]["body"]
        attributes = {item["key"] for item in trial["user_attrs"]}
        assert {"interval90", "peak_gib", "step_time_s", "trust", "reason"} <= attributes


def test_a_second_look_writes_nothing_new(finished: Any) -> None:
    study = optuna.load_study(study_name="shown", storage=open_storage(finished.address))
    before = study._storage.get_study_system_attrs(study._study_id)
    board = Board(study, finished.folder / "artifacts")
    facts = finished.facts
    shown = graphs(facts)
    board.note(study_note(facts, [title for title, _ in shown.values()]))
    board.note(trial_note(facts, facts.trials[0]), 0)
    assert study._storage.get_study_system_attrs(study._study_id) == before


def test_long_notes_are_read_back_whole_and_shorter_ones_replace_them(tmp_path: Path) -> None:
    from optuna_dashboard import get_note

    study = optuna.create_study(storage=f"sqlite:///{tmp_path / 's.db'}")
    for body in ("x" * 9000, "short"):
        Board(study, tmp_path).note(body)
        assert get_note(study) == body


def test_graphs_are_read_back_by_the_dashboard(tmp_path: Path) -> None:
    from optuna_dashboard._custom_plot_data import get_plotly_graph_objects

    study = optuna.create_study(storage=f"sqlite:///{tmp_path / 's.db'}")
    attempts = [Attempt(n, 100.0 + n, 10.0, True, "text " * 9) for n in range(100)]
    Board(study, tmp_path).graph("incumbent", incumbent(attempts))
    attributes = study._storage.get_study_system_attrs(study._study_id)
    held = json.loads(get_plotly_graph_objects(attributes)["incumbent"])
    assert held == json.loads(json.dumps(incumbent(attempts)))


def study_of(values: list[tuple[float, float]], direction: str = "maximize") -> Any:
    """A study of (value, constraint) pairs."""
    study = optuna.create_study(direction=direction)
    for value, violation in values:
        trial = optuna.trial.create_trial(value=value, constraints={"memory_gib": violation})
        study.add_trial(trial)
    return study


def test_the_best_respects_constraints_in_both_directions() -> None:
    for direction, best in (("maximize", 1), ("minimize", 2)):
        study = study_of([(9.0, 1.0), (5.0, -1.0), (3.0, 0.0)], direction)
        storage = with_constraints(study._storage)
        assert storage.get_best_trial(study._study_id).number == best


def test_where_nothing_fits_the_least_violation_is_shown() -> None:
    study = study_of([(9.0, 5.0), (1.0, 0.5)])
    assert with_constraints(study._storage).get_best_trial(study._study_id).number == 1


def test_what_is_stored_stays_as_it_is() -> None:
    study = study_of([(9.0, 1.0)])
    storage = with_constraints(study._storage)
    shown = storage.get_all_trials(study._study_id)
    assert shown[0].system_attrs["constraints"] == [1.0]
    assert "constraints" not in storage._get_trial(0).system_attrs


def test_plain_optuna_dashboard_shows_our_studies_too(finished: Any) -> None:
    from optuna_dashboard._app import create_app

    address = address_of(create_app(open_storage(finished.address)))
    (study,) = fetched(address + "api/studies")["study_summaries"]
    shown = fetched(f"{address}api/studies/{study['study_id']}")
    assert len(shown["trials"]) == 20
    assert "How to read this study" in shown["note"]["body"]
    assert shown["plotly_graph_objects"]


def test_untried_versions_are_said() -> None:
    assert untried("0.21.0") is None
    assert "was not tried" in str(untried("0.22.0"))


def test_a_taken_port_is_one_sentence(served: str) -> None:
    port = int(served.rsplit(":", 1)[1].strip("/"))
    with pytest.raises(InputError, match=f"port {port} cannot be used"):
        serve(None, port, print)


def test_foreign_text_is_no_markdown() -> None:
    assert cell("a|b\n<img> [x](y)") == r"a\|b \<img\> \[x\](y)"


def test_it_looks_right_in_a_browser(browser: Any, served: str, detail: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(PAGE_MS)
    page.goto(f"{served}dashboard/studies/{detail['best_trials'][0]['study_id']}")
    best = detail["best_trials"][0]
    page.wait_for_selector(f"text=Best Trial (number={best['number']})")
    page.wait_for_function(f"({NAMES}).some(name => name.startsWith('Infeasible'))")
    page.wait_for_function(f"({NAMES}).includes('Pareto front')")
    page.goto(f"{served}dashboard/studies/{best['study_id']}/trials?numbers={best['number']}")
    page.wait_for_selector("text=GiB by stage")
    assert page.evaluate("document.body.innerText").count("exhaustive ranking") >= 1
    page.close()
