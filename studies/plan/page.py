"""A plan as one HTML page that works offline: pictures, every number in a table, weak points."""

from __future__ import annotations

from pathlib import Path

from studies.files import write_atomically
from studies.pictures.plan import Size, days_by_gpus, usd_by_days
from studies.plan.run import PlanResult, PlanRow
from studies.plan.table import (
    COST_HEADER,
    SPEED_HEADER,
    by_workload,
    cost_rows,
    remarks,
    smallest_sentence,
    speed_rows,
)
from studies.report.html import Markup, bullets, join, paragraphs, table
from studies.report.page import Section, figure, page


def write_page(result: PlanResult, path: Path) -> Path:
    """Writes the page of a plan."""
    workloads = by_workload(result.rows)
    sections = [
        Section(f"workload-{number}", name, _workload(f"w{number}", name, rows))
        for number, (name, rows) in enumerate(workloads.items())
    ]
    sentences = [smallest_sentence(found) for found in result.smallest]
    lead = bullets(sentences) if sentences else paragraphs("No deadline is named.")
    foot = paragraphs(*result.notes)
    return write_atomically(path, page(f"Plan {result.plan.name}", lead, sections, foot))


def _workload(key: str, name: str, rows: list[PlanRow]) -> Markup:
    """Pictures and tables of one workload, and what is weak or impossible."""
    sizes: dict[str, list[Size]] = {}
    for row in rows:
        if row.cost and row.pair.best:
            sizes.setdefault(row.pair.cluster, []).append(_size(row))
    parts: list[Markup] = []
    if sizes:
        deadline = rows[0].deadline_days
        parts.append(
            figure(
                f"{key}-days",
                days_by_gpus(sizes, deadline),
                f"Days to train {name} over the number of GPUs, with 90% intervals.",
            )
        )
        if any(size.usd is not None for held in sizes.values() for size in held):
            parts.append(
                figure(
                    f"{key}-usd",
                    usd_by_days(sizes, deadline),
                    f"What training {name} costs over the days that it takes.",
                )
            )
    parts.append(table(f"Speed of {name}", SPEED_HEADER, speed_rows(rows), (1, 3, 4, 5, 6)))
    costs = list(cost_rows(rows))
    if costs:
        parts.append(table(f"Cost of {name}", COST_HEADER, costs, range(1, 8)))
    said = list(remarks(rows))
    if said:
        parts.append(bullets(said))
    configs = [
        (row.pair.cluster, f"{row.pair.num_gpus:,}", best.words)
        for row in rows
        for best in (row.pair.best, row.pair.in_bf16)
        if best
    ]
    if configs:
        parts.append(table(f"Best configs of {name}", ("cluster", "GPUs", "config"), configs, (1,)))
    return join(parts)


def _size(row: PlanRow) -> Size:
    assert row.cost is not None
    assert row.pair.best is not None
    money = "" if row.cost.usd is None else f"<br>{row.cost.usd:,.0f} USD"
    text = (
        f"{row.pair.cluster}, {row.pair.num_gpus:,} GPUs<br>{row.cost.days:,.1f} days"
        f"{money}<br>{row.pair.best.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    )
    return Size(row.pair.num_gpus, row.cost.days, row.cost.days90, row.cost.usd, text)
