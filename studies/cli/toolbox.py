"""``foretune toolbox``: which inference optimisations of a model to keep, proven by measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from studies.cli.common import JsonOption, OutOption, Output
from studies.cli.llm_options import (
    LlmCostOption,
    LlmDeadlineOption,
    LlmOption,
    LlmTokensOption,
    LlmUrlOption,
    ReplayOption,
    llm_options,
)

if TYPE_CHECKING:
    from studies.toolbox.study import ToolboxResult
    from studies.toolbox.verdicts import Outcome

_HELP = {"show_default": False}


def toolbox_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Hugging Face folder or name, config.json (random weights), module:factory "
            "(imports and runs that code), or a toolbox study: a YAML or a shipped name.",
            show_default=False,
        ),
    ],
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, or cuda for NVIDIA and AMD GPUs (cpu).")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Prompts a run (8).")] = None,
    prompt: Annotated[int | None, typer.Option("--prompt", help="Tokens a prompt (256).")] = None,
    new_tokens: Annotated[
        int | None, typer.Option("--new-tokens", help="Tokens generated for each (512).")
    ] = None,
    ragged: Annotated[
        bool | None,
        typer.Option("--ragged/--even", help="Prompts of differing lengths, padded left (even)."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Format of the baseline: checkpoint, float32, bfloat16 ..."),
    ] = None,
    planner: Annotated[
        str | None,
        typer.Option(
            "--planner", help="acquisition (default), greedy, random, tpe, exhaustive, llm."
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", help="Bundles evaluated in all (16).")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="Gain worth keeping, a fraction (0.02).")
    ] = None,
    pairs: Annotated[
        int | None, typer.Option("--pairs", help="Runs of each arm between restarts (8).")
    ] = None,
    lossy_budget: Annotated[
        float | None,
        typer.Option(
            "--lossy-budget",
            help="KL divergence that quantisation may cost, in units of what bfloat16 rounding "
            "costs; without it lossy tools are not tried.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", help="CPU threads of each process (1).")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", help="Seconds without an answer before a worker is ended (1800)."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of every draw (0).")] = None,
    storage: Annotated[
        str | None,
        typer.Option("--storage", metavar="URL", help="Where trials are kept; OUT/foretune.db."),
    ] = None,
    llm: LlmOption = None,
    llm_url: LlmUrlOption = None,
    llm_budget_tokens: LlmTokensOption = None,
    llm_cost: LlmCostOption = None,
    llm_deadline: LlmDeadlineOption = None,
    replay: ReplayOption = None,
    out: OutOption = Path("results"),
    as_json: JsonOption = False,
) -> None:
    """Profile a model, try inference optimisations, keep those that are proven; rerun to resume."""
    from specs.errors import InputError
    from studies.toolbox.request import read_request
    from studies.toolbox.study import run_toolbox

    output = Output(as_json)
    request = read_request(
        model,
        {
            "device": device,
            "batch": batch,
            "prompt": prompt,
            "new_tokens": new_tokens,
            "ragged": ragged,
            "dtype": dtype,
            "planner": planner,
            "trials": trials,
            "threshold": threshold,
            "pairs": pairs,
            "lossy_budget": lossy_budget,
            "threads": threads,
            "timeout_s": timeout,
            "seed": seed,
        },
    )
    asked = llm_options(llm, llm_url, llm_budget_tokens, llm_cost, llm_deadline, replay=replay)
    if (asked is None) is (request.planner == "llm"):
        raise InputError("--planner llm and --llm MODEL belong together; give both or neither.")
    result = run_toolbox(request, out, storage, output.progress, asked, output.step)
    output.notes(result.notes)
    if as_json:
        output.result(result.as_json())
        return
    show_result(output, result)


def show_result(output: Output, result: ToolboxResult) -> None:
    """Prints profile, verdicts, the stack measured again and the files."""
    known, useful = result.baseline, result.request.work.useful_tokens
    seconds = known.seconds["wall_s"]
    output.say(
        "",
        f"{result.request.source}: {result.request.work} on "
        f"{known.host.gpu or known.host.device}, {known.host.dtype}",
        f"baseline: {useful / seconds:,.1f} tokens/s, {known.bound.run_s / seconds:.1%} of the "
        f"roofline ({useful / known.bound.run_s:,.0f} tokens/s; peaks {known.peaks.source})",
        *result.bottlenecks,
    )
    for phase in ("prefill", "decode"):
        output.table(
            f"operators of {phase} by their own time",
            ("operator", "share", "calls"),
            [
                (
                    row["operator"][:60],
                    f"{row['own_s'] / known.profile[phase]['busy_s']:.1%}",
                    row["calls"],
                )
                for row in known.profile[phase]["operators"][:5]
            ],
        )
    show_outcomes(output, "bundles against the baseline", result.outcomes)
    if result.final:
        show_outcomes(output, "the best stack, measured again", result.final.whole)
        show_outcomes(output, "each tool left out", result.final.leave_one_out)
    output.say("", result.answer)
    output.say(*(f"{name}: {said}" for name, said in result.programs_said.items()))
    output.say(f"study {result.name!r} in {result.storage}", f"files in {result.folder}:")
    output.say(*(f"  {path.name}" for path in result.files))


def show_outcomes(output: Output, title: str, outcomes: Sequence[Outcome]) -> None:
    """Prints outcomes as a table and their reasons below it."""
    if not outcomes:
        return
    # Most tables hold nothing that compiles, and are narrow enough for a terminal without it.
    prepared = any(outcome.details.get("compile") for outcome in outcomes)
    rows = []
    for number, outcome in enumerate(outcomes, 1):
        found = outcome.details.get("measurement", {})
        compiled = outcome.details.get("compile", {})
        timed = outcome.ratio is not None
        rows.append(
            (
                number,
                outcome.verdict.value,
                f"{outcome.ratio:.3f}" if timed else "",
                f"{outcome.lower:.3f} to {outcome.upper:.3f}" if timed else "",
                f"±{found['control_half_width']:.1%}" if found else "",
                f"{found['prefill_ratio']:.2f}/{found['decode_ratio']:.2f}" if found else "",
                outcome.tokens_per_s,
                *((compiled.get("compile_s"), compiled.get("break_even_tokens")) * prepared),
            )
        )
    header = (
        "", "verdict", "times as fast", "interval", "A/A", "prefill/decode", "tokens/s",
        *(("compile s", "break-even tokens") * prepared),
    )  # fmt: skip
    output.table(title, header, rows)
    for number, outcome in enumerate(outcomes, 1):
        name = _left_out(outcome) if len(outcome.base) else str(outcome.bundle)
        output.say(f"  {number}  {name}: {outcome.sentence}")


def _left_out(outcome: Outcome) -> str:
    """The bundle and the tools that its base lacks."""
    missing = [f"{tool}={setting}" for tool, setting in outcome.bundle if tool not in outcome.base]
    return f"{outcome.bundle}, with over without {', '.join(missing)}"
