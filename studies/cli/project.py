"""``foretune project``: memory and throughput of one config, or of every row of a table of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from studies.cli.common import (
    ClusterOption,
    GpuFileOption,
    GpuOption,
    JsonOption,
    Output,
    SetOption,
    axis_values,
)
from studies.cli.figures import duration
from studies.cli.validate import CalibrationOption, ModelsOption

if TYPE_CHECKING:
    from studies.job import Job

SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT",
        help="Primus YAML, study YAML, HF config.json, or the name of a shipped study.",
        show_default=False,
    ),
]
RunsOption = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        metavar="R.csv",
        help="Project every row of a table of runs instead of one INPUT.",
        show_default=False,
    ),
]
CsvOption = Annotated[
    Path | None,
    typer.Option("--csv", metavar="OUT", help="Where --runs writes.", show_default=False),
]


def project_command(
    source: SourceArgument = None,
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    runs: RunsOption = None,
    models: ModelsOption = None,
    csv: CsvOption = None,
    calibration: CalibrationOption = None,
    as_json: JsonOption = False,
) -> None:
    """Memory and throughput of one config before it is run, or of every row of a table."""
    from specs.errors import InputError
    from studies.calibrating import calibrated_job
    from studies.cli.project_runs import project_runs
    from studies.inputs import resolve
    from studies.oracles import projection

    output = Output(as_json)
    if (source is None) == (runs is None):
        raise InputError("project takes either INPUT or --runs R.csv; give one of them.")
    if source is None:
        assert runs is not None
        given = {"--cluster": cluster, "--gpu": gpu, "--set": settings}
        unused = [name for name, value in given.items() if value]
        if unused:
            raise InputError(
                f"the rows of --runs state what {' and '.join(unused)} would say; change the table."
            )
        project_runs(output, runs, models, gpu_file, csv, calibration)
        return
    if csv is not None or models is not None:
        raise InputError("--csv and --models belong to project --runs R.csv; leave them out.")
    stated = axis_values(settings or [], "--set")
    job = resolve(source, cluster, gpu, stated, gpu_file, as_stated=True)
    job = calibrated_job(job, calibration)
    output.notes(job.notes)
    reasons = job.why_illegal(job.baseline)
    if reasons:
        raise InputError(
            f"the config cannot run on {job.cluster.name}: "
            f"{' '.join([*reasons, *default_batch(job, reasons)])}"
        )
    content = projection(job, job.baseline)
    copies = quantised_copies(job, content)
    if as_json:
        content["throughput"]["mfu_peak"] = mfu_peak(job)
        notes = [*job.notes, *copies]
        output.result({"config": job.baseline.as_labels(), **content, **about(job), "notes": notes})
    else:
        show_job(output, job)
        show_projection(output, job, content)
        output.notes(copies)


def default_batch(job: Job, reasons: Sequence[str]) -> list[str]:
    """What to do where a global batch that nobody stated is why a config is illegal."""
    from specs.formats.reader import NO_WORKLOAD

    workload, config = job.experiment.workload, job.baseline
    assumed = any(note.startswith(NO_WORKLOAD) and "gbs" in note for note in job.notes)
    if not assumed or not any("global batch size" in reason for reason in reasons):
        return []
    batch = workload.global_batch_size
    ranks = max(job.cluster.num_gpus // (config.tp * config.pp * config.cp), 1)
    step = config.mbs * ranks
    possible = max(round(batch / step), 1) * step
    return [
        f"The input states no global batch: {batch} is the default, and --set gbs=... changes it, "
        f"for example --set gbs={possible}."
    ]


def quantised_copies(job: Job, content: Mapping[str, Any]) -> list[str]:
    """A note where weights take more memory in an 8- or 4-bit format than in 16 bit."""
    from specs.choices import Precision
    from studies.oracles import projection

    if job.baseline.precision < Precision.FP8:
        return []
    plain = projection(job, job.baseline.changed(precision=Precision.BF16))
    here, there = (
        max(stage["weights_gib"] for stage in found["memory"]["stages"])
        for found in (content, plain)
    )
    if here <= there:
        return []
    return [
        f"weights take {here - there:.1f} GiB more than in bf16: {job.baseline.precision.label} "
        "keeps quantised copies beside the 16-bit weights (docs/study_yaml.md, Precisions)."
    ]


def about(job: Job) -> dict[str, Any]:
    """What was projected: workload, cluster, stack and notes as JSON."""
    experiment = job.experiment
    workload = experiment.workload
    return {
        "workload": {
            "model": workload.model.name,
            "parameters": workload.model.total_parameters(),
            "seq_len": workload.seq_len,
            "global_batch_size": workload.global_batch_size,
            "kind": workload.kind.label,
        },
        "cluster": {
            "name": job.cluster.name,
            "gpu": job.cluster.gpu.name,
            "num_nodes": job.cluster.num_nodes,
            "gpus_per_node": job.cluster.gpus_per_node,
            "num_gpus": job.cluster.num_gpus,
        },
        "stack": {
            "framework": experiment.stack.framework_name,
            "version": experiment.stack.version,
        },
        "notes": list(job.notes),
    }


def show_job(output: Output, job: Job, config: str = "config") -> None:
    """Prints what is projected and on what; ``config`` is what the input's own config is called."""
    from studies.wording import config_line

    workload = job.experiment.workload
    billions = workload.model.total_parameters() / 1e9
    output.say(
        f"{workload.model.name} ({billions:.1f} B parameters), sequence {workload.seq_len:,}, "
        f"global batch {workload.global_batch_size:,}, {workload.kind.label}",
        f"{job.cluster.shape} = {job.cluster.num_gpus:,} GPUs, "
        f"{job.experiment.stack.framework_name}",
        config_line(f"{config}: ", job.baseline),
    )


def mfu_peak(job: Job) -> dict[str, Any]:
    """What MFU is a share of, as JSON: the dense peak in the format of the config's GEMMs."""
    name = job.baseline.precision.gemm_format
    peak = job.cluster.gpu.peak_flops[name]
    return {
        "tflops": peak.value / 1e12,
        "format": name,
        "kind": peak.kind,
        "source": peak.source,
    }


def show_projection(output: Output, job: Job, content: dict[str, Any]) -> None:
    """Prints throughput, what MFU refers to, where the time goes and memory by stage."""
    from studies.explanation import bottleneck, step_shares
    from studies.wording import peaks_in_words

    speed, memory = content["throughput"], content["memory"]
    low, high = speed["interval90"]
    output.say(
        "",
        f"{speed['tokens_per_s_per_gpu']:,.0f} tokens/s/GPU (90%: {low:,.0f} to {high:,.0f}, "
        f"{speed['trust']}), {duration(speed['step_time_s'])} a step, "
        f"{speed['tflops_per_gpu']:,.0f} TFLOP/s/GPU, MFU {speed['mfu']:.1%}",
        peaks_in_words(job.cluster.gpu, [job.baseline]),
        f"{memory['peak_gib']:.1f} of {memory['capacity_gib']:.0f} GiB, "
        f"{'fits' if memory['fits'] else 'does not fit'} (P(fits) {memory['fit_probability']:.0%})",
        bottleneck(content),
    )
    unit, scale = ("s", 1.0) if speed["step_time_s"] >= 1 else ("ms", 1e3)
    shares = [
        (name, seconds * scale, f"{share:.1%}") for name, seconds, share in step_shares(content)
    ]
    output.table("", ("where a step goes", unit, "share"), shares)
    show_stages(output, memory["stages"])


def show_stages(output: Output, stages: list[dict[str, Any]]) -> None:
    """Prints the memory of every stage in GiB; many equal stages become one row."""
    header = list(stages[0])
    rows: list[list[Any]] = []
    for stage in stages:
        cells = [round(stage[name], 2) for name in header[1:]]
        if rows and rows[-1][1:] == cells:
            rows[-1][0] = f"{str(rows[-1][0]).split('-')[0]}-{stage['stage']}"
        else:
            rows.append([str(stage["stage"]), *cells])
    output.table("GiB by stage", [name.removesuffix("_gib") for name in header], rows)
