"""The files of a study: launch files, its picture and its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from studies.files import checked_folder, keep_inputs, to_json, write_atomically
from studies.launch import write_launch_files
from studies.picture import picture
from studies.result import Result

WRITTEN = ("best.*", "shortlist_*", "study.svg", "result.json")
"""Files of a study that it writes again, or removes, whenever it is run."""


def keep_inputs_of_study(out: Path, name: str, inputs: Iterable[Path | str | None]) -> None:
    """Refuses to tune from a file that the study would write over, as its own ``best.yaml``.

    Args:
        out: folder of results.
        name: of the study; where its inputs change, a hash is added to it.
        inputs: what the command reads; None, and what is no file, is passed over.

    Raises:
        InputError: one of the inputs is a file that the study writes, or ``out`` is no folder.
    """
    for folder in (out / name, *checked_folder(out).glob(f"{name}-*")):
        for written in WRITTEN:
            keep_inputs(folder.glob(written), inputs)


def write_files(result: Result) -> tuple[Result, list[Path]]:
    """Writes launch files of the best and the shortlist, the picture and the result itself.

    Number k of the shortlist is in ``shortlist_k``; the first, which is the best, in ``best``.

    Returns:
        The result with what could not be written, and the files.

    Raises:
        InputError: a file cannot be written.
    """
    study, folder = result.study, result.study.folder
    launches = [("best", result.best.config)]
    launches += [
        (f"shortlist_{number}", found.config)
        for number, found in enumerate(result.shortlist, 1)
        if found.config != result.best.config
    ]
    files: list[Path] = []
    refusals: dict[str, list[str]] = {}
    for stem, config in launches:
        written, refused = write_launch_files(study.job, config, folder, stem)
        files += written
        for name, reason in refused.items():
            refusals.setdefault(reason, []).append(name)
    _remove_others(folder, files)
    files.append(write_atomically(folder / "study.svg", picture(result)))
    unwritten = tuple(f"no {', '.join(names)}: {reason}" for reason, names in refusals.items())
    result = replace(result, unwritten=unwritten)
    return result, write_result(result, files)


def _remove_others(folder: Path, launch_files: Sequence[Path]) -> None:
    """Removes launch files of numbers that an earlier, longer shortlist had."""
    for path in folder.glob("shortlist_*"):
        if path.suffix in (".yaml", ".sh") and path not in launch_files:
            path.unlink()


def write_result(result: Result, files: Sequence[Path]) -> list[Path]:
    """Writes the result with the files that belong to it; gives them with its own at the end."""
    path = result.study.folder / "result.json"
    every = [*(file for file in files if file != path), path]
    write_atomically(path, to_json(result.as_json(every)) + "\n")
    return every
