"""The files of a plan: the plan YAML that is named, and what is written."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from specs import catalog
from specs.errors import InputError
from specs.files import path_exists
from specs.formats.plan import Plan, read_plan
from studies.files import to_json, write_atomically
from studies.plan.page import write_page
from studies.plan.run import PlanResult
from studies.plan.table import write_csv


def shipped_plans() -> dict[str, Path]:
    """Name -> file of the plans that come with foretune."""
    folder = Path(str(resources.files("studies")))
    return {path.stem: path for path in sorted(folder.glob("plan_*.yaml"))}


def find_plan(text: str, gpu_file: Path | None = None) -> Plan:
    """The plan that ``text`` names: a file, or a shipped plan; ``gpu_file`` has GPUs beside the
    catalog's.

    Raises:
        InputError: it is neither, or a file cannot be used.
    """
    return read_plan(plan_file(text), catalog.read_gpus(gpu_file))


def plan_file(text: str) -> Path:
    """The file that ``text`` names: a path, or a shipped plan.

    Raises:
        InputError: it is neither.
    """
    shipped = shipped_plans()
    path = Path(text)
    if path_exists(path):
        return path
    if text in shipped:
        return shipped[text]
    raise InputError(
        f"{text} is neither a file nor a shipped plan; the shipped plans are {', '.join(shipped)}."
    )


def write_files(result: PlanResult, csv_file: Path | None = None) -> list[Path]:
    """Writes the table as CSV and JSON, and the page with the pictures.

    Raises:
        InputError: a file cannot be written.
    """
    files = [
        write_csv(result, csv_file or result.folder / "plan.csv"),
        result.folder / "plan.json",
        write_page(result, result.folder / "plan.html"),
    ]
    listed = {**result.as_json(), "files": [str(path) for path in files]}
    write_atomically(result.folder / "plan.json", to_json(listed) + "\n")
    return files
