"""Gantt: which pipeline rank works on what at what time of a step.

Where a rank has more tasks than can be told apart, those of one kind and chunk in a row are drawn
as one block, and those of different kinds that take turns, as in the steady part, as another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from studies.pictures.style import BLUE, GREEN, ORANGE, PURPLE, Picture, picture

IN_TURN = "forward and backward in turn"
KINDS = {
    "forward": BLUE,
    "backward": ORANGE,
    "input gradient": ORANGE,
    "weight gradient": GREEN,
    IN_TURN: PURPLE,
}
OTHER_CHUNKS = {"forward": "#8ab6e3", "backward": "#eeb277", "input gradient": "#eeb277"}
"""Lighter for every second model chunk, so that interleaving can be seen."""


FINE = 400
"""Tasks from which lines between them would cover them."""
MOST_A_RANK = 120
"""Tasks of a rank that a picture of a thousand pixels shows apart, eight pixels each; in blocks a
pause that is narrower is not drawn."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A task of a rank, or ``tasks`` of them from ``microbatch`` on drawn as one.

    ``kind`` is a key of KINDS, times are seconds from the start.
    """

    rank: int
    kind: str
    microbatch: int
    chunk: int
    start_s: float
    end_s: float
    tasks: int = 1


def gantt(slots: Sequence[Slot], until_s: float, note: str = "") -> Picture:
    """Bars of tasks by rank up to ``until_s``, the axis that pictures to be compared share.

    ``note`` says below the picture what of the step is drawn.
    """
    ranks = sorted({slot.rank for slot in slots})
    many = len({slot.chunk for slot in slots}) > 1
    pause_s = until_s / MOST_A_RANK
    slots, blocks = drawn(slots, pause_s)
    within = f"pauses below {pause_s:.2g} s are not drawn"
    notes = [note, within] if blocks else [note]
    about = "".join(f"; {part}" for part in notes if part)
    traces = []
    for kind, color in KINDS.items():
        for lighter in (False, True):
            shown = [s for s in slots if s.kind == kind and _is_lighter(s) is lighter]
            if not shown:
                continue
            named = many and kind in OTHER_CHUNKS
            chunks = (", odd chunks" if lighter else ", even chunks") if named else ""
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": kind + chunks,
                    "y": [f"rank {slot.rank}" for slot in shown],
                    "base": [round(slot.start_s, 6) for slot in shown],
                    "x": [round(slot.end_s - slot.start_s, 6) for slot in shown],
                    "text": [_words(slot) for slot in shown],
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
        {"title": {"text": f"seconds of the step{about}"}, "range": [0, until_s]},
        {"title": {"text": ""}, "categoryorder": "array", "categoryarray": order[::-1]},
        height=130 + max(26 * len(ranks), 80),
        barmode="overlay",
        bargap=0.15,
    )


def drawn(slots: Sequence[Slot], pause_s: float) -> tuple[list[Slot], bool]:
    """The bars of a picture, and whether they are blocks: as few as can be told apart.

    A pause of ``pause_s`` seconds or more parts blocks.
    """
    by_rank = {
        rank: sorted(own, key=lambda slot: slot.start_s)
        for rank, own in groupby(sorted(slots, key=lambda slot: slot.rank), lambda slot: slot.rank)
    }
    if max(map(len, by_rank.values()), default=0) <= MOST_A_RANK:
        return list(slots), False
    return [block for own in by_rank.values() for block in _blocks(own, pause_s)], True


def _blocks(slots: Sequence[Slot], pause_s: float) -> list[Slot]:
    """The tasks of a rank in order, those without a pause between them joined.

    First come rows of one kind and chunk; of these, single tasks that follow each other take turns.
    """
    rows = _joined(slots, pause_s, lambda last, slot: _work(last) == _work(slot))
    return _joined(rows, pause_s, lambda last, slot: _alternates(last) and _alternates(slot))


def _work(slot: Slot) -> tuple[str, int]:
    return slot.kind, slot.chunk


def _alternates(slot: Slot) -> bool:
    return slot.tasks == 1 or slot.kind == IN_TURN


def _joined(
    slots: Iterable[Slot], pause_s: float, belong: Callable[[Slot, Slot], bool]
) -> list[Slot]:
    """The slots, neighbours that belong together and have no pause between them as one."""
    found: list[Slot] = []
    for slot in slots:
        last = found[-1] if found else None
        if last is None or slot.start_s - last.end_s >= pause_s or not belong(last, slot):
            found.append(slot)
            continue
        kind = last.kind if _work(last) == _work(slot) else IN_TURN
        tasks = last.tasks + slot.tasks
        found[-1] = replace(last, kind=kind, end_s=slot.end_s, tasks=tasks)
    return found


def _is_lighter(slot: Slot) -> bool:
    """Whether a bar has the colour of odd chunks."""
    return slot.chunk % 2 == 1 and slot.kind != IN_TURN


def _words(slot: Slot) -> str:
    """What a bar is, where the pointer rests on it."""
    if slot.kind == IN_TURN:
        return f"{slot.tasks} tasks in turn, from microbatch {slot.microbatch} on"
    if slot.tasks > 1:
        return f"{slot.tasks} tasks from microbatch {slot.microbatch} on, chunk {slot.chunk}"
    return f"microbatch {slot.microbatch}, chunk {slot.chunk}"
