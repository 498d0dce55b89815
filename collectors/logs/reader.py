"""A log file into the runs that it holds."""

from __future__ import annotations

from pathlib import Path

from collectors.logs.formats import line_readers
from collectors.logs.run_log import RunLog
from collectors.text import Truncation, read_lines
from specs.errors import InputError

MAX_RUNS = 1000


def read_log(path: Path) -> list[RunLog]:
    """The runs of a log in order: a new argument dump after iterations starts the next one.

    Raises:
        InputError: the file cannot be read or holds nothing that any reader knows.
    """
    truncation = Truncation()
    readers = [(reader.keywords, reader.read) for reader in line_readers()]
    runs = [RunLog()]
    lines = 0
    for line in read_lines(path, truncation):
        lines += 1
        text, run = line.text, runs[-1]
        if " arguments ---" in text and "end of" not in text and len(run.iterations):
            if len(runs) >= MAX_RUNS:
                run.note(f"runs after the first {MAX_RUNS} of the file were left out")
                break
            run = RunLog(first_line=line.number, facts=_kept_facts(run))
            runs.append(run)
        for keywords, read in readers:
            if any(keyword in text for keyword in keywords):
                read(line, run)
    found = [run for run in runs if not run.is_empty]
    if truncation.reason:
        for run in found[-1:]:
            run.note(f"{truncation.reason}; what was read up to there counts")
    if not found:
        damage = f"; {truncation.reason}" if truncation.reason else ""
        raise InputError(
            f"{path} holds no training log that is known ({lines:,} lines read{damage}): neither "
            "iteration lines, an argument dump, MLLOG events, memory tables nor an out-of-memory "
            "error; give the output of Megatron-LM, Primus, Megatron-DeepSpeed, TorchTitan or "
            "MLPerf."
        )
    return found


_OF_THE_MACHINE = ("gpu", "torch", "date", "compact_date", "primus", "rocm-smi table", "world_size")


def _kept_facts(run: RunLog) -> dict[str, str]:
    """Facts that a later run in the same file shares."""
    return {name: run.facts[name] for name in _OF_THE_MACHINE if name in run.facts}
