"""Showcase: writes the result, notes, graphs and artifacts of a finished study on the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.boards import Board, artifact_folder
from studies.files import to_json, write_atomically
from studies.pictures.axis_effects import axis_effects
from studies.pictures.changes import Change, changes
from studies.pictures.gantt import gantt
from studies.pictures.incumbent import incumbent
from studies.pictures.interactions import interactions
from studies.pictures.measured import measured
from studies.pictures.memory import memory_by_stage
from studies.pictures.pareto import pareto
from studies.pictures.style import Picture, titled
from studies.pictures.svg import svg
from studies.real_runs import MEASURED
from studies.report.evidence import comparisons
from studies.report.facts import RESULT, StudyFacts, load, read_facts, study_names
from studies.report.timetable import timetable
from studies.report.whatif import neighbours
from studies.run_notes import in_words, run_note, runs_section, told_note
from studies.storage import StorageAddress
from studies.trial_notes import study_note, trial_note
from studies.wording import change_in_words

if TYPE_CHECKING:
    from studies.real_runs import AskedRun, RealRuns
    from studies.run_ranking import Ranked

BOARD_AXES = 10
"""Axes that a graph of optuna-dashboard has room for."""
DRAWN = ("memory", "pipeline")
"""Graphs that the best trial also carries as files."""
OMITTED = ("files", "illegal_proposals", "why")
"""Parts of the JSON of ``tune`` that the study keeps elsewhere or not at all."""


def show_study(
    address: StorageAddress, out: Path, result: Mapping[str, Any], files: Sequence[Path]
) -> list[Path]:
    """Makes a study readable in any optuna-dashboard; gives the pictures that it wrote for that.

    Args:
        address: storage of the study.
        out: folder of results, where artifacts go if the storage is a server.
        result: the JSON of ``tune``.
        files: launch files, pictures and whatever else belongs to the study.
    """
    import json

    name = str(result["study_name"])
    study = load(address, name)
    kept = json.loads(to_json({k: v for k, v in result.items() if k not in OMITTED}))
    if study.user_attrs.get(RESULT) != kept:
        study.set_user_attr(RESULT, kept)
    facts = read_facts(address, name)
    board = Board(study, artifact_folder(address.path, out))
    pictures = show_board(board, facts, facts.runs)
    best = [trial.number for trial in facts.trials if trial.config == facts.best.config]
    drawn = [
        write_atomically(files[0].parent / f"{key}.svg", svg(pictures[key][1], pictures[key][0]))
        for key in DRAWN
        if key in pictures and files
    ]
    for path in (*files, *drawn):
        board.artifact(path)
        if path.stem in ("best", *DRAWN):
            for number in best:
                board.artifact(path, number)
    return drawn


def show_board(
    board: Board, facts: StudyFacts, runs: Sequence[AskedRun]
) -> dict[str, tuple[str, Picture]]:
    """Writes the graphs and notes of a study; gives the graphs.

    Args:
        board: of the study.
        facts: what the study says now.
        runs: its real runs.
    """
    pictures = graphs(facts)
    for key, (title, picture) in pictures.items():
        board.graph(key, titled(picture, title))
    board.note(study_note(facts, [title for title, _ in pictures.values()], runs_section(runs)))
    for trial in facts.trials:
        ran = [in_words(run) for run in runs if run.config == trial.config]
        board.note(trial_note(facts, trial, ran), trial.number)
    return pictures


def show_told(
    address: StorageAddress, out: Path, runs: RealRuns, entries: Sequence[Ranked]
) -> None:
    """Writes what runs taught on their study, and on the study of the job where it has a result.

    Args:
        address: storage of both.
        out: folder of results.
        runs: that were told.
        entries: the ranking now.
    """
    board = Board(load(address, runs.name), artifact_folder(address.path, out))
    asked = runs.runs()
    board.note(told_note(asked, entries))
    for run in asked:
        board.note(run_note(run), run.number)
    name = runs.name.removesuffix(MEASURED)
    if name in study_names(address) and RESULT in (study := load(address, name)).user_attrs:
        parent = Board(study, artifact_folder(address.path, out))
        show_board(parent, read_facts(address, name), asked)


def graphs(facts: StudyFacts) -> dict[str, tuple[str, Picture]]:
    """Pictures of a study by name, each with its title; only those that show something."""
    compared = [("baseline", facts.baseline), ("best", facts.best)]
    stages = {name: answer.memory["stages"] for name, answer in compared if answer}
    found: dict[str, tuple[str, Picture]] = {
        "incumbent": ("Best config over the trials", incumbent(facts.attempts)),
        "memory": ("Memory by stage", memory_by_stage(stages, facts.capacity_gib)),
        "pareto": ("Throughput against memory", pareto(facts.attempts, facts.capacity_gib)),
    }
    near = neighbours(facts.job, facts.best.config, facts.result["space"]["axes"])
    if near:
        found["axes"] = ("The best config with one axis changed", axis_effects(near, BOARD_AXES))
    attribution = facts.result["attribution"]
    if attribution and attribution["effects"]:
        words = {e["change"]: change_in_words(e["axes"]) for e in attribution["effects"]}
        effects = [
            Change(words[e["change"]], e["alone"], e["last"]) for e in attribution["effects"]
        ]
        found["changes"] = ("What each change brings", changes(effects))
        pairs = [
            (words[p["first"]], words[p["second"]], p["gain"]) for p in attribution["synergies"]
        ]
        if pairs:
            names = list(words.values())
            found["interactions"] = ("Pairs of changes", interactions(names, pairs))
    if facts.best.config.pp > 1:
        line = timetable(facts.job, facts.best.config)
        shown = gantt(line.slots, line.end_s, line.part)
        found["pipeline"] = ("Pipeline of the best config", shown)
    runs = comparisons(facts)
    if runs:
        found["measured"] = ("Projected against measured", measured(runs))
    return found
