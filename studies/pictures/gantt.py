"""Gantt: which pipeline rank works on what at what time of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from studies.pictures.style import BLUE, GREEN, ORANGE, PURPLE, Picture, picture

KINDS = {
    "forward": BLUE,
    "backward": ORANGE,
    "input gradient": ORANGE,
    "weight gradient": GREEN,
}
OTHER_CHUNKS = {"forward": "#8ab6e3", "backward": "#eeb277", "input gradient": "#eeb277"}
"""Lighter for every second model chunk, so that interleaving can be seen."""


FINE = 400
"""Tasks from which lines between them would cover them."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A task of a rank: ``kind`` is a key of KINDS, times are seconds from the start."""

    rank: int
    kind: str
    microbatch: int
    chunk: int
    start_s: float
    end_s: float


def gantt(slots: Sequence[Slot], until_s: float) -> Picture:
    """Bars of tasks by rank up to ``until_s``, the axis that pictures to be compared share."""
    ranks = sorted({slot.rank for slot in slots})
    traces = []
    for kind, color in KINDS.items():
        for lighter in (False, True):
            shown = [s for s in slots if s.kind == kind and (s.chunk % 2 == 1) is lighter]
            if not shown:
                continue
            many = len({slot.chunk for slot in slots}) > 1
            chunks = (", odd chunks" if lighter else ", even chunks") if many else ""
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": kind + chunks,
                    "y": [f"rank {slot.rank}" for slot in shown],
                    "base": [round(slot.start_s, 6) for slot in shown],
                    "x": [round(slot.end_s - slot.start_s, 6) for slot in shown],
                    "text": [f"microbatch {s.microbatch}, chunk {s.chunk}" for s in shown],
                    "textposition": "none",
                    "hovertemplate": "%{text}<br>%{x:.3g} s from %{base:.3g} s<extra></extra>",
                    "marker": {
                        "color": OTHER_CHUNKS.get(kind, PURPLE) if lighter else color,
                        "line": {"width": 0.5 if len(slots) < FINE else 0, "color": "#ffffff"},
                    },
                }
            )
    order = [f"rank {rank}" for rank in ranks]
    return picture(
        traces,
        {"title": {"text": "seconds from the start of the step"}, "range": [0, until_s]},
        {"title": {"text": ""}, "categoryorder": "array", "categoryarray": order[::-1]},
        height=130 + max(26 * len(ranks), 80),
        barmode="overlay",
        bargap=0.15,
    )
