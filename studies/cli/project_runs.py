"""The part of ``foretune project`` that takes a table of runs."""

from __future__ import annotations

from pathlib import Path

from studies.cli.common import Output


def project_runs(
    output: Output,
    runs: Path,
    models: Path | None,
    gpu_file: Path | None,
    csv: Path | None,
    calibration: Path | None,
) -> None:
    """Projects every row of a table and writes the results to ``csv``.

    Raises:
        InputError: a file cannot be used, or none of its rows; ``csv`` is missing or cannot be
            written.
    """
    from specs.errors import InputError
    from studies.accuracy import defaults_in_words, read_table
    from studies.calibrating import calibrated_by
    from studies.files import checked_file
    from studies.run_projections import projected_rows, write_rows
    from studies.run_refusals import by_reason, check_some_usable

    if csv is None:
        raise InputError("project --runs needs --csv OUT, where the projections go.")
    checked_file(csv, "--csv", [runs, models, gpu_file, calibration])
    table = read_table(runs, models, gpu_file, with_results=False)
    rows = projected_rows(table, calibrated_by(calibration))
    write_rows(csv, rows)
    refused = [row for row in rows if row["error"]]
    refusals = [{"run_id": row["run_id"], "reason": row["error"]} for row in refused]
    output.say(
        f"{len(rows) - len(refused)} of {len(rows)} rows projected, written to {csv}",
        *(f"  {line}" for line in by_reason(refusals)),
    )
    if table.defaults:
        output.notes([defaults_in_words(table.defaults)])
    output.result(
        {
            "rows": len(rows),
            "projected": len(rows) - len(refused),
            "errors": [{"run_id": r["run_id"], "error": r["error"]} for r in refused],
            "defaults": dict(table.defaults),
            "csv": str(csv),
        }
    )
    check_some_usable(table, runs)
