"""A plan as rows: tables for a person, CSV for a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specs.csv_files import write_rows
from specs.errors import InputError
from specs.files import atomic_text
from studies.plan.costs import Smallest
from studies.plan.pair import PairResult
from studies.plan.run import PlanResult, PlanRow
from studies.wording import wrapped

SPEED_HEADER = ("cluster", "GPUs", "format", "tokens/s/GPU", "90%", "P(fits)", "scaling", "trust")
MOST_PLACES = 6
"""Clusters that a remark names; of more it says how many."""
COST_HEADER = ("cluster", "GPUs", "days", "90%", "GPU-days", "USD", "MWh", "in time")


def by_workload(rows: Iterable[PlanRow]) -> dict[str, list[PlanRow]]:
    """The rows of each workload, in order."""
    groups: dict[str, list[PlanRow]] = {}
    for row in rows:
        groups.setdefault(row.pair.workload, []).append(row)
    return groups


def remarks(rows: Iterable[PlanRow]) -> Iterator[str]:
    """Why pairs cannot run, weak points and what was assumed: each once, with where it holds."""
    said = (
        (row.pair, sentence)
        for row in rows
        for sentence in ((row.pair.why,) if row.pair.why else row.pair.notes)
    )
    for sentence, where in _places(said).items():
        named = ", ".join(where[:MOST_PLACES])
        more = len(where) - MOST_PLACES
        yield f"{named}{f' and {more} more' if more > 0 else ''}: {sentence}"


def config_lines(rows: Iterable[PlanRow]) -> Iterator[str]:
    """The best configs, each once behind where it is best, in lines of 80 columns."""
    found = (
        (row.pair, best.words) for row in rows for best in (row.pair.best, row.pair.in_bf16) if best
    )
    for config, where in _places(found).items():
        yield wrapped(f"  {', '.join(where)}: {config}", 4)


def _places(said: Iterable[tuple[PairResult, str]]) -> dict[str, list[str]]:
    """Each text once, in order, with the pairs that it is said of, as ``MI300X (16, 32)``."""
    places: dict[str, dict[str, list[str]]] = {}
    for pair, text in said:
        places.setdefault(text, {}).setdefault(pair.cluster, []).append(f"{pair.num_gpus:,}")
    return {
        text: [f"{cluster} ({', '.join(gpus)})" for cluster, gpus in clusters.items()]
        for text, clusters in places.items()
    }


def speed_rows(rows: list[PlanRow]) -> Iterator[tuple[Any, ...]]:
    """Cells of the projected speed of the pairs of one workload.

    A pair has a row of its best and, where that is not in bf16, one of the best in bf16.
    """
    for row in rows:
        head = (row.pair.cluster, f"{row.pair.num_gpus:,}")
        if row.pair.best is None:
            yield (*head, "", "-", row.pair.state, "", "", "")
        scaling = "" if row.scaling is None else f"{row.scaling:.0%}"
        for best, scales in ((row.pair.best, scaling), (row.pair.in_bf16, "")):
            if best is not None:
                low, high = best.interval90
                yield (
                    *head,
                    best.precision,
                    f"{best.tokens_per_s_per_gpu:,.0f}",
                    f"{low:,.0f} to {high:,.0f}",
                    f"{best.fit_probability:.0%}",
                    scales,
                    best.trust,
                )


def cost_rows(rows: list[PlanRow]) -> Iterator[tuple[Any, ...]]:
    """Cells of what the pairs of one workload cost; pairs that cannot run are left out."""
    for row in rows:
        spent = row.cost
        if spent is None:
            continue
        fast, slow = spent.days90
        yield (
            row.pair.cluster,
            f"{row.pair.num_gpus:,}",
            brief(spent.days),
            f"{brief(fast)} to {brief(slow)}",
            brief(spent.gpu_days),
            "" if spent.usd is None else brief(spent.usd),
            brief(spent.energy_mwh),
            "" if spent.in_time is None else f"{spent.in_time:.0%}",
        )


def smallest_sentence(found: Smallest) -> str:
    """Which size of a cluster meets a deadline, as one sentence."""
    what = f"{found.workload} in {found.deadline_days:g} days on {found.cluster}"
    if found.expected is None:
        return f"{what}: no size tried is big enough, up to {max(found.tried):,} GPUs."
    if found.surely is None:
        return f"{what}: {found.expected:,} GPUs as expected; no size tried with 95% probability."
    if found.surely == found.expected:
        return f"{what}: {found.expected:,} GPUs, with 95% probability."
    return f"{what}: {found.expected:,} GPUs as expected, {found.surely:,} with 95% probability."


def brief(value: float) -> str:
    """A quantity of any size in at most six characters: 4.56, 45.6, 4,560, 45.6k, 4.56M."""
    for limit, divisor, unit in ((1e4, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if value < limit:
            scaled = value / divisor
            digits = 0 if scaled >= 100 else 1 if scaled >= 10 else 2
            return f"{scaled:,.{digits}f}{unit}"
    return f"{value / 1e9:.3g}G"


def write_csv(result: PlanResult, path: Path) -> Path:
    """Writes one row a pair.

    Raises:
        InputError: the file cannot be written.
    """
    records = [_record(row) for row in result.rows]
    try:
        with atomic_text(path) as file:
            write_rows(file, list(records[0]), records)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}.") from None
    return path


def _record(row: PlanRow) -> dict[str, Any]:
    pair, best, plain, spent = row.pair, row.pair.best, row.pair.in_bf16, row.cost
    return {
        "workload": pair.workload,
        "cluster": pair.cluster,
        "gpu": pair.gpu,
        "num_nodes": pair.num_nodes,
        "num_gpus": pair.num_gpus,
        "state": pair.state,
        "precision": best and best.precision,
        "tokens_per_s_per_gpu": best and best.tokens_per_s_per_gpu,
        "lo90": best and best.interval90[0],
        "hi90": best and best.interval90[1],
        "fit_probability": best and best.fit_probability,
        "peak_gib": best and best.peak_gib,
        "trust": best and best.trust,
        "scaling": row.scaling,
        "tokens": spent and spent.tokens,
        "days": spent and spent.days,
        "days_lo90": spent and spent.days90[0],
        "days_hi90": spent and spent.days90[1],
        "gpu_days": spent and spent.gpu_days,
        "usd": spent and spent.usd,
        "energy_mwh": spent and spent.energy_mwh,
        "deadline_days": row.deadline_days,
        "in_time_probability": spent and spent.in_time,
        "missing_gib": pair.missing_gib,
        "legal_configs": pair.legal,
        "config": best and best.words,
        "bf16_tokens_per_s_per_gpu": plain and plain.tokens_per_s_per_gpu,
        "bf16_config": plain and plain.words,
        "why": pair.why,
        "notes": " ".join(pair.notes),
    }
