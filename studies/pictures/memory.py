"""Memory: what fills each pipeline stage of some configs, against the capacity of the GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from studies.pictures.style import STACK, Picture, line, note, picture

PARTS = ("weights", "gradients", "optimizer", "activations", "logits", "buffers", "overhead")


def memory_by_stage(
    stages: Mapping[str, Sequence[Mapping[str, float]]], capacity_gib: float
) -> Picture:
    """Stacked bars of GiB by stage.

    Args:
        stages: name of a config -> its stages in rank order, with ``stage`` and ``weights_gib`` to
            ``overhead_gib`` as in the JSON of ``foretune project``.
        capacity_gib: what the GPU holds.
    """
    places = [
        [name for name, rows in stages.items() for _ in rows],
        [f"{int(row['stage'])}" for rows in stages.values() for row in rows],
    ]
    rows = [row for many in stages.values() for row in many]
    traces = [
        {
            "type": "bar",
            "name": part,
            "x": places,
            "y": [row[f"{part}_gib"] for row in rows],
            "marker": {"color": color},
            "hovertemplate": f"%{{x}}<br>{part} %{{y:.1f}} GiB<extra></extra>",
        }
        for part, color in zip(PARTS, STACK, strict=False)
        if any(row[f"{part}_gib"] > 0 for row in rows)
    ]
    words = note(
        f"capacity {capacity_gib:.0f} GiB", x=1, xref="paper", xanchor="right", y=capacity_gib,
        yanchor="bottom",
    )  # fmt: skip
    return picture(
        traces,
        {"title": {"text": "pipeline stage"}, "type": "multicategory"},
        "GiB",
        barmode="stack",
        shapes=[line(y=capacity_gib)],
        annotations=[words],
    )
