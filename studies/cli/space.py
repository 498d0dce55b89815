"""``foretune space``: the legal space, counted and written, and why a config is not in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from studies.cli.common import (
    ClusterOption,
    GpuFileOption,
    GpuOption,
    InputArgument,
    JsonOption,
    Output,
    SetOption,
    WhyOption,
    axis_values,
    why_values,
)

if TYPE_CHECKING:
    from search.space import Space
    from specs.config import TrainingConfig
    from studies.job import Job

PinOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="AXIS=VALUE",
        help="Keep an axis at a value; repeat for another axis, or for more values of one.",
        show_default=False,
    ),
]
CsvOption = Annotated[
    Path | None,
    typer.Option(
        "--csv",
        metavar="FILE",
        help="Write every legal config, with the columns of a table of runs.",
        show_default=False,
    ),
]
FullOption = Annotated[
    bool,
    typer.Option(
        "--full",
        help="Vary every axis; without it tp, pp, vpp, cp, ep, mbs, schedule and recompute "
        "granularity vary and the others are held at the baseline.",
    ),
]


def space_command(
    source: InputArgument,
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    pins: PinOption = None,
    csv_file: CsvOption = None,
    why: WhyOption = None,
    full: FullOption = False,
    as_json: JsonOption = False,
) -> None:
    """The legal configs: how many, with which values, and why another is not one of them."""
    from search.space import Space
    from specs.errors import InfeasibleError
    from studies.cli.project import about, show_job
    from studies.files import checked_file
    from studies.inputs import find_input, resolve
    from studies.space_csv import write_space

    output = Output(as_json)
    asked = why_values(why) if why else None
    pinned = pinned_values(pins or [])
    if csv_file is not None:
        checked_file(csv_file, "--csv", [find_input(source), cluster, gpu_file])
    job = resolve(source, cluster, gpu, axis_values(settings or [], "--set"), gpu_file, pinned)
    space = Space.of(job.experiment, job.cluster, full)
    output.notes(job.notes)
    answer = why_not_in(job, space, asked) if asked is not None else None
    if not len(space) and answer is None:
        raise InfeasibleError(f"no config of this space is legal: {space.why_empty()}.")
    files = []
    if csv_file is not None:
        with output.progress(f"writing {csv_file}", len(space)) as advance:
            files.append(str(write_space(space, csv_file, advance)))
    if as_json:
        output.result({**space_json(space), "why": answer, "files": files, **about(job)})
        return
    show_job(output, job)
    show_space(output, space)
    if answer:
        show_answer(output, answer)
    output.say(*(f"wrote {len(space):,} configs to {file}" for file in files))


def pinned_values(pins: list[str]) -> dict[str, list[str]]:
    """The values of each pinned axis: ``tp=2``, or ``tp=2,4``, or the axis given again.

    A comma is part of the value of ``layout`` and of ``recompute_layer_ids``.

    Raises:
        InputError: a text is not ``axis=value``.
    """
    values: dict[str, list[str]] = {}
    for pin in pins:
        for name, text in axis_values([pin], "--pin").items():
            whole = name in ("layout", "recompute_layer_ids")
            values.setdefault(name, []).extend([text] if whole else text.split(","))
    return values


def space_json(space: Space) -> dict[str, Any]:
    """The space as JSON: how many configs are legal, values of each axis and counts of each."""
    from specs.config import AXES

    return {
        "legal": len(space),
        "form": "full" if space.full else "core",
        "axes": {n: [AXES[n].label(v) for v in values] for n, values in space.axes.items()},
        "narrowed": sorted(space.narrowed),
        "counts": space.counts(),
    }


def why_not_in(job: Job, space: Space, asked: dict[str, str]) -> dict[str, Any]:
    """Why the baseline with these changes (and what they entail) is not in the space.

    ``compared`` says of a legal one whether it fits, and how fast it is against a legal baseline.

    Raises:
        InputError: an axis or a value does not exist.
    """
    from search.companions import with_companions
    from specs.config import AXES
    from specs.errors import InputError
    from studies.explanation import why_not

    unknown = [name for name in asked if name not in AXES]
    if unknown:
        raise InputError(f"--why: there is no axis {unknown[0]!r}; the axes are {', '.join(AXES)}.")
    changes = {name: AXES[name].parse(text) for name, text in asked.items()}
    config = with_companions(job.baseline, changes)
    illegal = job.why_illegal(config)
    comparable = not illegal and not job.why_illegal(job.baseline)
    return {
        "config": config.as_labels(),
        "followed": _followed(job.baseline, config, changes),
        "illegal": illegal,
        "outside": _outside(space, config),
        "compared": why_not(job, job.baseline, asked).sentences if comparable else (),
    }


def _followed(
    baseline: TrainingConfig, config: TrainingConfig, changes: dict[str, Any]
) -> dict[str, Any]:
    """Axes that had to follow the changes, with their values."""
    before, after = baseline.as_labels(), config.as_labels()
    return {n: after[n] for n in after if n not in changes and before[n] != after[n]}


def _outside(space: Space, config: TrainingConfig) -> list[str]:
    """Axes whose value the space does not try, each as a sentence."""
    from specs.config import AXES

    sentences = []
    for name, values in space.axes.items():
        value = getattr(config, name)
        if value not in values:
            tried = ", ".join(str(AXES[name].label(v)) for v in values[:12])
            more = " ..." if len(values) > 12 else ""
            sentences.append(f"{name} {AXES[name].label(value)} is not tried here: {tried}{more}.")
    return sentences


def show_space(output: Output, space: Space) -> None:
    """Prints how many configs are legal and with which values."""
    form = "every axis varies" if space.full else "core axes vary, the others are held"
    output.say("", f"{len(space):,} legal configs ({form})")
    rows, held = [], []
    for name, counts in space.counts().items():
        if len(counts) == 1 and name not in space.narrowed:
            held.append(f"{name}={_short(next(iter(counts)))}")
            continue
        shown = [f"{_short(value)}: {count:,}" for value, count in list(counts.items())[:8]]
        more = [f"{len(counts) - 8} more"] if len(counts) > 8 else []
        narrowed = "pinned" if len(counts) == 1 else "narrowed"
        mark = narrowed if name in space.narrowed else ""
        rows.append((name, mark, ", ".join(shown + more)))
    output.table("", ("axis", "", "value: legal configs"), rows)
    output.say("", f"one value: {', '.join(held)}")


def _short(value: object) -> str:
    """A value of an axis in a table: long layouts and lists are cut."""
    text = str(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


_WIDEST = 32


def show_answer(output: Output, answer: dict[str, Any]) -> None:
    """Prints why a config is illegal, not in the space, too big or slower than the baseline."""
    if answer["followed"]:
        followed = ", ".join(f"{name}={value}" for name, value in answer["followed"].items())
        output.say("", f"with it goes {followed}")
    if answer["illegal"]:
        output.say("illegal:", *(f"  {sentence}" for sentence in answer["illegal"]))
    else:
        output.say("legal", *(f"  {sentence}" for sentence in answer["compared"]))
    output.say(*(f"  {sentence}" for sentence in answer["outside"]))
