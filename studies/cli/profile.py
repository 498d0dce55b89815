"""``foretune profile``: measures on this node what would teach most about a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from studies.cli.common import (
    ClusterOption,
    GpuFileOption,
    GpuOption,
    InputArgument,
    JsonOption,
    OutOption,
    Output,
    SetOption,
    axis_values,
)

if TYPE_CHECKING:
    from specs.profile_rows import PlanItem, Profile
    from surrogate.profile_calibration import ProfileCalibration

BudgetOption = Annotated[
    str, typer.Option("--budget", metavar="TIME", help="Time to measure: 90s, 10m, 1h.")
]
PythonOption = Annotated[
    str, typer.Option("--python", metavar="PATH", help="Interpreter whose PyTorch measures.")
]
ProcessesOption = Annotated[
    int,
    typer.Option("--processes", min=0, help="Processes on this node (0: one a GPU; 1 on a CPU)."),
]
NodesOption = Annotated[int, typer.Option("--nodes", min=1, help="Nodes that measure together.")]
RankOption = Annotated[int, typer.Option("--node-rank", min=0, help="Which of the nodes this is.")]
RendezvousOption = Annotated[
    str, typer.Option("--rendezvous", metavar="HOST:PORT", help="Where the nodes meet.")
]
PlanOnlyOption = Annotated[
    bool,
    typer.Option(
        "--plan-only",
        help="Write the plan and node_profile.py to the folder, to run them in a container.",
    ),
]
RowsOption = Annotated[
    Path | None,
    typer.Option(
        "--rows",
        metavar="FILE",
        help="Learn from rows that were measured before (.jsonl, .parquet); measure nothing.",
        show_default=False,
    ),
]


def profile_command(
    source: InputArgument,
    budget: BudgetOption = "10m",
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    python: PythonOption = sys.executable,
    processes: ProcessesOption = 0,
    nodes: NodesOption = 1,
    node_rank: RankOption = 0,
    rendezvous: RendezvousOption = "",
    plan_only: PlanOnlyOption = False,
    rows: RowsOption = None,
    out: OutOption = Path("profile"),
    as_json: JsonOption = False,
) -> None:
    """Measure layers, kernels and collectives of a job's shards on this node; resumes."""
    from search.shortlist import shortlist
    from search.space import Space
    from specs.errors import InputError
    from specs.profile_rows import read_profile
    from studies import profiled
    from studies.cli.project import show_job
    from studies.files import checked_folder, keep_inputs
    from studies.inputs import find_input, resolve
    from studies.training import check_baseline, rank_space

    output = Output(as_json)
    options = profiled.ProfileOptions(
        folder=checked_folder(out),
        budget_s=profiled.duration_s(budget, "--budget"),
        python=python,
        processes=processes,
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=rendezvous,
    )
    keep_inputs([options.plan_file], [find_input(source), cluster, gpu_file])
    job = resolve(source, cluster, gpu, axis_values(settings or [], "--set"), gpu_file)
    check_baseline(job)
    if not as_json:
        show_job(output, job)
    ranking = rank_space(job, Space.of(job.experiment, job.cluster, full=False), output.progress)
    configs = [ranking.table.config(row) for row in shortlist(ranking, SHORTLIST)]
    here = 0
    if rows is None and not plan_only:
        here = profiled.processes_of(options)
    plan = profiled.plan_of(job, configs, here or processes or job.cluster.gpus_per_node, nodes)
    profile: Profile | None = None
    files: list[str] = []
    if rows is not None:
        profile = read_profile(rows)
    else:
        files.append(str(profiled.write_plan(plan, options)))
        if plan_only:
            files.append(str(_copied(options.folder)))
        else:
            output.say("", f"measuring {len(plan)} items for {budget} with {here} process(es)")
            profile = profiled.measure(options, here)
            if profile is None:
                output.say(f"node {node_rank} took part; the first node wrote the rows.")
                return
            files += [str(options.rows_file), str(profiled.close(options))]
    found: ProfileCalibration | None = None
    notes: list[str] = []
    if profile is not None and profiled.is_of(profile, job.cluster.gpu):
        try:
            found = profiled.learned_from(job, configs, profile)[1]
            notes += found.notes
        except InputError as error:
            notes.append(str(error))
    elif profile is not None:
        notes.append(
            f"measured on {profile.device_name!r}: the rows say nothing about "
            f"{job.cluster.gpu.name}, so that nothing was learned from them"
        )
    if as_json:
        output.result(_json(plan, profile, found, files, notes))
        return
    _show(output, plan, profile, found)
    output.notes(notes)
    if plan_only:
        ranks = processes or job.cluster.gpus_per_node
        output.say(
            "",
            "in the container, in a copy of the folder:",
            f"  torchrun --standalone --nproc-per-node {ranks} node_profile.py --plan plan.json "
            f"--out rows.jsonl --budget {options.budget_s:g}",
            f"then here: foretune profile {source} --rows rows.jsonl",
        )
    output.say("", *(f"wrote {path}" for path in files))


SHORTLIST = 5


def _copied(folder: Path) -> Path:
    """The program that measures, beside its plan."""
    from studies.files import write_atomically
    from studies.profiled import PROGRAM

    return write_atomically(folder / PROGRAM.name, PROGRAM.read_text(encoding="utf-8"))


def _json(
    plan: list[PlanItem],
    profile: Profile | None,
    found: ProfileCalibration | None,
    files: list[str],
    notes: list[str],
) -> dict[str, Any]:
    """Plan, rows, and what they taught."""
    rows = profile.rows if profile else ()
    return {
        "plan": [{"key": item.key, "why": item.why} for item in plan],
        "environment": dict(profile.environment) if profile else None,
        "rows": [
            {
                "key": row.item.key,
                "kind": row.item.kind,
                "forward_s": row.forward_s,
                "backward_s": row.backward_s,
                "spread": row.spread,
                "rounds": row.rounds,
                "peak_bytes": row.peak_bytes,
                "saved_bytes": row.saved_bytes,
            }
            for row in rows
        ],
        "failed": dict(profile.failed) if profile else {},
        "learned": found.as_json() if found else None,
        "files": files,
        "notes": notes,
    }


def _show(
    output: Output,
    plan: list[PlanItem],
    profile: Profile | None,
    found: ProfileCalibration | None,
) -> None:
    """Prints what was measured and what it changed."""
    if profile is None:
        body = [(item.key[:72], item.why) for item in plan]
        output.table("to measure, most instructive first", ("item", "why"), body)
        return
    output.say(f"on {profile.device_name}, PyTorch {profile.environment.get('torch', 'unknown')}")
    rows = [
        (
            row.item.key[:64],
            row.forward_s * 1e3,
            None if row.backward_s is None else row.backward_s * 1e3,
            f"{row.spread:.1%}",
            row.rounds,
        )
        for row in profile.rows
    ]
    output.table("measured", ("item", "forward ms", "backward ms", "spread", "rounds"), rows)
    if found is not None:
        show_learned(output, found)


def show_learned(output: Output, found: ProfileCalibration) -> None:
    """Prints how far the constants moved."""
    moved = [
        (name, f"x {factor:.3f}", f"{found.prior_sd[name]:.0%}", f"{found.posterior_sd[name]:.0%}")
        for name, factor in found.factors.items()
    ]
    output.table("", ("constant", "factor", "uncertain before", "after"), moved)
    before, after = found.error(after=False), found.error(after=True)
    output.say(
        f"median error of {len(found.checks)} expected times: {before:.1%} before, "
        f"{after:.1%} after"
    )
