"""``foretune tune``: the main job, from an input to a ranked, launchable configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specs.figures import percent
from studies.cli.common import (
    ClusterOption,
    GpuFileOption,
    GpuOption,
    InputArgument,
    JsonOption,
    OutOption,
    Output,
    SetOption,
    StorageOption,
    WhyOption,
    axis_values,
    why_values,
)
from studies.cli.llm_options import (
    HintOption,
    LlmCostOption,
    LlmDeadlineOption,
    LlmOption,
    LlmProgramOption,
    LlmTokensOption,
    LlmUrlOption,
    ReplayOption,
    llm_options,
)
from studies.cli.measured import (
    MEASURE,
    PRIMUS,
    PROFILE,
    MostRunsOption,
    OracleOption,
    is_measured,
    measured_loop,
    show_loop,
)
from studies.cli.primus import PrimusModeOption, primus_json, primus_of, show_primus
from studies.cli.project import show_job, show_stages
from studies.cli.space import PinOption, pinned_values
from studies.cli.validate import CalibrationOption

if TYPE_CHECKING:
    from studies.driving import Crew
    from studies.explanation import WhyNot
    from studies.job import Job
    from studies.profiled import Change
    from studies.result import Found, Result

TrialsOption = Annotated[
    int | None,
    typer.Option("--trials", min=1, help="Trials of the study in all (64).", show_default=False),
]
FromStudyOption = Annotated[
    str | None,
    typer.Option(
        "--from-study",
        metavar="NAME",
        help="Learn from another study: NAME in the same storage, or STORAGE#NAME.",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="TIME",
        help="Profile the shards of the shortlist on this node first (20m), and rank with that.",
        show_default=False,
    ),
]
PythonOption = Annotated[
    str | None,
    typer.Option(
        "--python",
        metavar="PATH",
        help="Interpreter whose PyTorch profiles (this one).",
        show_default=False,
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        max=256,
        help="Share the trials among this many processes here, and any foretune worker elsewhere "
        "(0: only those).",
        show_default=False,
    ),
]
LeaseOption = Annotated[
    str,
    typer.Option(
        "--lease", metavar="TIME", help="Queue a trial again after this long without its worker."
    ),
]
StudySeedOption = Annotated[
    int | None,
    typer.Option("--seed", min=0, help="Seed of every random draw (0).", show_default=False),
]


def tune_command(
    source: InputArgument,
    cluster: ClusterOption = None,
    gpu: GpuOption = None,
    gpu_file: GpuFileOption = None,
    settings: SetOption = None,
    trials: TrialsOption = None,
    storage: StorageOption = None,
    seed: StudySeedOption = None,
    pins: PinOption = None,
    why: WhyOption = None,
    from_study: FromStudyOption = None,
    calibration: CalibrationOption = None,
    profile: ProfileOption = None,
    python: PythonOption = None,
    oracle: OracleOption = "surrogate",
    runs: MostRunsOption = None,
    primus_mode: PrimusModeOption = "simulate",
    workers: WorkersOption = None,
    lease: LeaseOption = "1m",
    llm: LlmOption = None,
    llm_url: LlmUrlOption = None,
    llm_budget_tokens: LlmTokensOption = None,
    llm_cost: LlmCostOption = None,
    llm_deadline: LlmDeadlineOption = None,
    hint: HintOption = None,
    llm_program: LlmProgramOption = None,
    replay: ReplayOption = None,
    out: OutOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Find the fastest config that fits, with launch files; run it again to resume."""
    from dataclasses import replace

    from studies.calibrating import calibrated_job
    from studies.explanation import best_with, why_not
    from studies.files import name_from
    from studies.inputs import find_input, resolve
    from studies.outputs import keep_inputs_of_study, write_files, write_result
    from studies.result import result_of
    from studies.showcase import show_study
    from studies.storage import in_one_sentence, storage_address
    from studies.training import StudyOptions, run_study
    from studies.wording import wrapped

    output = Output(as_json)
    measured = is_measured(oracle)
    crew = _crew(output, workers, lease, oracle)
    if measured:
        profile = profile or PROFILE
    asked = why_values(why) if why else None
    narrowed = pinned_values(pins or [])
    job = resolve(source, cluster, gpu, axis_values(settings or [], "--set"), gpu_file, narrowed)
    read = [find_input(source), cluster, gpu_file, calibration, llm_program]
    keep_inputs_of_study(out, name_from(job.experiment.name), read)
    job = calibrated_job(job, calibration)
    if not as_json:
        show_job(output, job, "baseline")
    options = StudyOptions(
        out=out,
        storage=storage,
        trials=trials,
        seed=seed,
        from_study=from_study,
        crew=crew,
        llm=llm_options(
            llm,
            llm_url,
            llm_budget_tokens,
            llm_cost,
            llm_deadline,
            hint,
            llm_program,
            replay,
        ),
    )
    primus = primus_of(job, primus_mode, storage, out) if oracle == PRIMUS else None
    if primus is not None:
        options = replace(options, oracle_of=lambda _: primus)
    change = None
    if profile is not None:
        processes = job.cluster.gpus_per_node if measured else 0
        job, change = _profiled(job, profile, python, processes, out, output)
    study = run_study(job, options, output.progress)
    result = result_of(study, seed or 0)
    answer = why_not(study.job, result.best.config, asked) if asked else None
    rival = best_with(study.job, result.best.config, asked) if asked else ""
    result, files = write_files(result)
    output.notes(result.notes)
    address = storage_address(storage, out / "foretune.db")
    with output.progress("notes and graphs on the study", None), in_one_sentence(address):
        drawn = show_study(address, out, result.as_json(files), files)
    files = write_result(result, [*files, *drawn])
    loop = measured_loop(output, job, storage, out, python, runs, seed or 0) if measured else None
    if as_json:
        content = result.as_json(files, answer.as_json(rival) if answer else None)
        content |= {"profile": change.as_json()} if change else {}
        content |= {"primus": primus_json(study)} if primus else {}
        output.result(content | ({"measured": loop.as_json()} if loop else {}))
        return
    show_result(output, result)
    if change:
        output.say("", *change.sentences(result.best.config, result.best.speed))
    if answer:
        show_answer(output, answer)
        output.say(wrapped(rival))
    if loop:
        show_loop(output, loop)
    if primus:
        show_primus(output, study, primus)
    output.say("", f"study {study.name!r} in {study.storage}", f"files in {study.folder}:")
    output.say(*(f"  {path.name}" for path in files))


def _crew(output: Output, workers: int | None, lease: str, oracle: str) -> Crew:
    """Who evaluates the trials."""
    from specs.errors import InputError
    from studies.driving import Crew
    from studies.run_requests import duration_s

    if workers is not None and oracle in (PRIMUS, MEASURE):
        what = "an installed Primus" if oracle == PRIMUS else "runs on this node, one at a time,"
        raise InputError(
            f"--oracle {oracle} evaluates with {what} and workers with the surrogate; leave out "
            "--workers."
        )
    return Crew(
        workers=workers,
        lease_s=duration_s(lease, "--lease"),
        told=lambda sentence: output.notes([sentence]),
    )


def _profiled(
    job: Job, budget: str, python: str | None, processes: int, out: Path, output: Output
) -> tuple[Job, Change]:
    """The job as it is projected after this node was profiled, and what that changed."""
    import sys

    from studies.files import checked_folder, name_from
    from studies.profiled import ProfileOptions, duration_s, profile_first

    folder = checked_folder(out) / name_from(job.experiment.name) / "profile"
    seconds = duration_s(budget, "--profile")
    options = ProfileOptions(
        folder=folder, budget_s=seconds, python=python or sys.executable, processes=processes
    )
    after, change = profile_first(job, options, output.progress)
    output.notes(change.found.notes)
    return after, change


def show_result(output: Output, result: Result) -> None:
    """Prints baseline and best, what each change brings, memory, bottleneck and shortlist."""
    from studies.explanation import bottleneck
    from studies.wording import (
        TRUST,
        config_line,
        difference,
        gain_in_words,
        peaks_in_words,
        wrapped,
    )

    study, best = result.study, result.best
    ranking = study.ranking
    proved = "" if ranking.projected == ranking.legal else " and the others proved no better"
    output.say(
        "",
        f"{ranking.legal:,} legal configs, {ranking.projected:,} projected{proved}; of these "
        f"{ranking.refused_by_memory:,} do not fit",
        f"{len(study.trials)} trials, {study.rejected_by_memory} of them refused by memory; "
        f"{len(study.illegal)} further proposals were illegal",
    )
    rows = [("baseline", result.baseline)] if result.baseline else []
    rows.append(("best", best))
    kept, rival = result.in_baseline_format, result.rival
    if kept:
        rows.append((f"best in {kept.config.precision.label}", kept))
    if rival:
        rows.append(("fastest that may fit", rival))
    output.table("", _HEADER, [_row(name, found) for name, found in rows])
    output.say(peaks_in_words(study.job.cluster.gpu, [found.config for _, found in rows]))
    output.say("", config_line("best: ", best.config))
    if kept:
        output.say(config_line(f"best in {kept.config.precision.label}: ", kept.config))
    if rival:
        changed = difference(best.config, rival.config)
        output.say(wrapped(f"fastest that may fit: {changed}", 2))
    grade = str(best.projection["throughput"]["trust"])
    output.say(f"best: trust {grade}: {TRUST[grade]}", f"best: {bottleneck(best.projection)}")
    output.say(
        f"best: P(best) {best.probability_best:.0%}; {result.shrunk_tokens_per_s_per_gpu:,.0f} "
        "tokens/s/GPU after shrinkage for having been picked as the best of many estimates"
    )
    held = result.reference
    if held is not None:
        given = "" if held.is_baseline else " (the given baseline does not fit)"
        output.say(f"best over {held.words}: {percent(held.gain(best.speed), signed=True)}{given}")
    if result.attribution:
        effects = [
            (
                effect.change,
                gain_in_words(effect.alone),
                _yes(effect.alone_fits),
                gain_in_words(effect.last) if effect.last is not None else "",
                effect.needed,
            )
            for effect in result.attribution.effects
        ]
        header = ("change", "alone", "fits alone", "on top of the others", "in the best")
        output.table("", header, effects)
        for pair in result.attribution.synergies:
            if abs(pair.gain) >= 0.005:
                word = "more" if pair.gain > 0 else "less"
                output.say(
                    f"together {abs(pair.gain):.1%} {word} than apart: "
                    f"{pair.first}  with  {pair.second}"
                )
    output.say("", *(wrapped(line, 2) for line in result.sensitivity.sentences()))
    show_stages(output, best.projection["memory"]["stages"])
    output.table(
        "shortlist, to run for real: 1 is in best.*, number k in shortlist_k.*",
        _HEADER,
        [_row(str(number), found) for number, found in enumerate(result.shortlist, 1)],
    )
    for number, found in enumerate(result.shortlist, 1):
        output.say(config_line(f"  {number}  ", found.config))


_HEADER = ("", "tokens/s/GPU", "90%", "GiB", "P(fits)", "P(best)", "MFU")


def _row(name: str, found: Found) -> tuple[str | float, ...]:
    speed, memory = found.projection["throughput"], found.projection["memory"]
    low, high = speed["interval90"]
    return (
        name,
        speed["tokens_per_s_per_gpu"],
        f"{low:,.0f} to {high:,.0f}",
        memory["peak_gib"],
        f"{memory['fit_probability']:.0%}",
        f"{found.probability_best:.0%}",
        f"{speed['mfu']:.1%}",
    )


def _yes(answer: bool | None) -> str:
    return "" if answer is None else "yes" if answer else "no"


def show_answer(output: Output, answer: WhyNot) -> None:
    """Prints why a config is not better than the best."""
    from studies.wording import config_line

    output.say("", config_line("why not ", answer.config, "?"), *answer.sentences)
