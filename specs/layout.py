"""Pipeline layouts: how decoder layers, embedding, output and MTP layers fall on virtual stages.

A virtual stage is one model chunk of one pipeline rank; microbatches pass the virtual stages in
order. A layout is one of

- ``""``: an even split; what does not divide is taken from the ends first (last, first, next-last
  ...), as runs whose layer count is a multiple of the stages less two do;
- ``first=F``, ``last=L``, ``first=F,last=L``: layers of the first and last pipeline rank
  (Megatron ``--decoder-first-pipeline-num-layers``, ``--decoder-last-pipeline-num-layers``);
- ``account=embedding``, ``account=loss``, ``account=embedding+loss``: these count as one layer
  (``--account-for-embedding-in-pipeline-split``, ``--account-for-loss-in-pipeline-split``);
- a Megatron string such as ``Et*1|t*2|t*2|t*1,L`` (``--pipeline-model-parallel-layout``,
  megatron/core/transformer/pipeline_parallel_layer_layout.py): E embedding, t decoder layer,
  m MTP layer, L output and loss, ``*n`` repeats a letter or a ``(group)``, commas are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from specs.errors import InputError


class VirtualStage(NamedTuple):
    """What one model chunk holds: decoder layers from ``first_layer`` on, and the ends."""

    first_layer: int
    layers: int
    embedding: bool
    output: bool
    mtp_layers: int


_UNEVEN = re.compile(r"(first|last)=(\d+)")
_REPEAT = re.compile(r"\(([^()]*)\)\*(\d+)|([EtmL])\*(\d+)")
_MAX_STAGES = 4096


def rank_of(stage: int, num_ranks: int, v_shaped: bool) -> int:
    """Pipeline rank that holds a virtual stage: s mod p, or p up and p down where V-shaped."""
    if v_shaped:
        return stage if stage < num_ranks else 2 * num_ranks - 1 - stage
    return stage % num_ranks


def is_explicit(layout: str) -> bool:
    """Whether the layout is a Megatron string, which fixes the number of virtual stages."""
    return bool(layout) and "=" not in layout


def explicit_stages(layout: str) -> tuple[str, ...]:
    """The letters of each virtual stage of a Megatron string, repeats written out.

    Raises:
        InputError: a letter is unknown, a repeat is malformed, or E or L is not there exactly once.
    """
    text = re.sub(r"[\s,]", "", layout)
    while (match := _REPEAT.search(text)) is not None:
        unit, count = match[1] if match[1] is not None else match[3], int(match[2] or match[4])
        if count * max(len(unit), 1) + len(text) > 16 * _MAX_STAGES:
            raise InputError(f"layout {layout!r} repeats too often; write fewer stages.")
        text = text[: match.start()] + unit * count + text[match.end() :]
    if unknown := sorted(set(text) - set("EtmL|")):
        raise InputError(
            f"layout {layout!r} has {unknown[0]!r}; use E, t, m, L, |, *n and (group)*n, "
            "or first=F, last=L, account=embedding, account=loss."
        )
    if text.count("E") != 1 or text.count("L") != 1:
        raise InputError(f"layout {layout!r} needs exactly one E and one L.")
    stages = tuple(text.split("|"))
    if len(stages) > _MAX_STAGES:
        raise InputError(f"layout {layout!r} has {len(stages)} stages; at most {_MAX_STAGES}.")
    if "E" not in stages[0] or "L" not in stages[-1]:
        raise InputError(f"layout {layout!r} must start with E and end with L.")
    return stages


def layout_vpp(layout: str, pp: int) -> int:
    """Model chunks a rank that a Megatron string implies (stages / pp).

    Raises:
        InputError: the string is malformed or its stages do not divide by pp.
    """
    stages = len(explicit_stages(layout))
    if stages % pp:
        raise InputError(f"layout {layout!r} has {stages} stages, not a multiple of pp {pp}.")
    return stages // pp


def virtual_stages(
    layout: str, num_layers: int, mtp_layers: int, pp: int, vpp: int, v_shaped: bool = False
) -> tuple[VirtualStage, ...]:
    """The pp*vpp virtual stages in the order in which a microbatch passes them.

    MTP layers sit on the last stage unless a Megatron string places them; a string without ``m``
    holds none.

    Raises:
        InputError: the layout is malformed or holds other layers or stages than it should.
    """
    if is_explicit(layout):
        return _explicit(layout, num_layers, pp, vpp)
    if pp * vpp > _MAX_STAGES:
        raise InputError(
            f"pp {pp} * vpp {vpp} are {pp * vpp} virtual stages; use at most {_MAX_STAGES}."
        )
    counts = _counts(layout, num_layers, pp, vpp, v_shaped)
    last = len(counts) - 1
    stages, first_layer = [], 0
    for index, count in enumerate(counts):
        mtp = mtp_layers if index == last else 0
        stages.append(VirtualStage(first_layer, count, index == 0, index == last, mtp))
        first_layer += count
    return tuple(stages)


def layout_problem(
    layout: str, num_layers: int, mtp_layers: int, pp: int, vpp: int, v_shaped: bool = False
) -> str:
    """Why Megatron would refuse this layout, in one sentence; empty where it runs.

    Stricter than ``virtual_stages``, which also splits what does not divide.
    """
    try:
        stages = virtual_stages(layout, num_layers, mtp_layers, pp, vpp, v_shaped)
    except InputError as error:
        return str(error)
    if is_explicit(layout):
        return _mtp_problem(layout, stages, mtp_layers, pp, v_shaped)
    if layout.startswith("account="):
        extra = ("embedding" in layout) + ("loss" in layout)
        if (num_layers + extra) % (pp * vpp):
            return (
                f"{num_layers} layers and {layout} ({extra} more) do not divide by "
                f"pp*vpp {pp * vpp}."
            )
    elif not layout and num_layers % (pp * vpp):
        return f"{num_layers} layers do not divide evenly by pp*vpp {pp * vpp}; state a layout."
    elif layout and (problem := _uneven_problem(layout, num_layers, pp, vpp)):
        return problem
    return ""


def _mtp_problem(
    layout: str, stages: tuple[VirtualStage, ...], mtp_layers: int, pp: int, v_shaped: bool
) -> str:
    """MTP rules of explicit layouts: one stage, last chunk of its rank, not on the first rank."""
    held = [index for index, stage in enumerate(stages) if stage.mtp_layers]
    total = sum(stage.mtp_layers for stage in stages)
    if total != mtp_layers:
        return f"layout {layout!r} places {total} MTP layers, the model has {mtp_layers}."
    if not held:
        return ""
    if len(held) > 1:
        return f"layout {layout!r} spreads MTP layers over stages; put them into one."
    if held[0] < len(stages) - pp or (pp > 1 and rank_of(held[0], pp, v_shaped) == 0):
        return (
            f"layout {layout!r} must put MTP on the last chunk of a rank other than the first rank."
        )
    return ""


def _uneven(layout: str) -> dict[str, int]:
    """first and last of an uneven layout."""
    parts = layout.split(",")
    matches = [_UNEVEN.fullmatch(part.strip()) for part in parts]
    values = {match[1]: int(match[2]) for match in matches if match}
    if len(values) != len(parts):
        raise InputError(
            f"layout {layout!r} is not understood; use first=F, last=L, first=F,last=L, "
            "account=embedding, account=loss or a string like Et*2|t*2|t*1,L."
        )
    return values


def _uneven_problem(layout: str, num_layers: int, pp: int, vpp: int) -> str:
    """Megatron's divisibility of uneven ends, over ranks and chunks."""
    ends = _uneven(layout)
    middle, ranks = num_layers - sum(ends.values()), pp - len(ends)
    if ranks and (middle % ranks or (middle // ranks) % vpp):
        return f"layout {layout!r} leaves {middle} layers for {ranks} ranks of {vpp} chunks."
    if odd := [f"{name}={count}" for name, count in ends.items() if count % vpp]:
        return f"layout {layout!r}: {odd[0]} does not divide by vpp {vpp}."
    return ""


def _explicit(layout: str, num_layers: int, pp: int, vpp: int) -> tuple[VirtualStage, ...]:
    """Virtual stages of a Megatron string."""
    letters = explicit_stages(layout)
    if len(letters) != pp * vpp:
        raise InputError(f"layout {layout!r} has {len(letters)} stages, pp*vpp is {pp * vpp}.")
    stages, first_layer = [], 0
    for text in letters:
        count = text.count("t")
        stage = VirtualStage(first_layer, count, "E" in text, "L" in text, text.count("m"))
        stages.append(stage)
        first_layer += count
    if first_layer != num_layers:
        raise InputError(
            f"layout {layout!r} places {first_layer} decoder layers, the model has {num_layers}."
        )
    return tuple(stages)


def _counts(layout: str, num_layers: int, pp: int, vpp: int, v_shaped: bool) -> list[int]:
    """Decoder layers of each virtual stage of a layout that is no Megatron string."""
    if not layout:
        return _shortened(num_layers, pp * vpp, _ends_first(pp * vpp))
    if layout.startswith("account="):
        names = set(layout.removeprefix("account=").split("+"))
        if names - {"embedding", "loss"}:
            raise InputError(f"layout {layout!r}: account takes embedding, loss or both (+).")
        extra = [0] if "embedding" in names else []
        extra += [pp * vpp - 1] if "loss" in names else []
        counts = _shortened(num_layers + len(extra), pp * vpp, _ends_first(pp * vpp))
        for stage in extra:
            counts[stage] -= 1
        if min(counts) < 0:
            raise InputError(f"layout {layout!r} leaves a stage below zero layers.")
        return counts
    ends = _uneven(layout)
    middle, ranks = num_layers - sum(ends.values()), pp - len(ends)
    if pp < 2 or middle < 0 or (ranks == 0 and middle):
        raise InputError(f"layout {layout!r} does not place {num_layers} layers on pp {pp}.")
    inner = _shortened(middle, ranks, _ends_first(ranks)) if ranks else []
    per_rank = [ends["first"]] if "first" in ends else []
    per_rank += inner + ([ends["last"]] if "last" in ends else [])
    chunks = [_shortened(count, vpp, range(vpp)) for count in per_rank]
    held = [0] * pp
    counts = []
    for stage in range(pp * vpp):
        rank = rank_of(stage, pp, v_shaped)
        counts.append(chunks[rank][held[rank]])
        held[rank] += 1
    return counts


def _shortened(total: int, parts: int, order: Sequence[int]) -> list[int]:
    """``total`` in ``parts`` of ceil(total/parts), less one at the first places of ``order``."""
    size = -(-total // parts)
    counts = [size] * parts
    for place in order[: size * parts - total]:
        counts[place] -= 1
    return counts


@lru_cache(maxsize=1024)
def _ends_first(parts: int) -> tuple[int, ...]:
    """Positions from the outside in: last, first, next-last, second ..."""
    inward = [place for low in range((parts + 1) // 2) for place in (parts - 1 - low, low)]
    return tuple(dict.fromkeys(inward))
