"""The options of the commands that may ask a language model. None is asked unless it is named."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from studies.llm import LlmOptions

LlmOption = Annotated[
    str | None,
    typer.Option(
        "--llm",
        metavar="MODEL",
        help="Also ask this language model, as LiteLLM names it (openai/gpt-4o). Keys come from "
        "the environment.",
        show_default=False,
    ),
]
LlmUrlOption = Annotated[
    str | None,
    typer.Option(
        "--llm-url",
        metavar="URL",
        help="OpenAI-compatible server of --llm; its key is $FORETUNE_LLM_API_KEY.",
        show_default=False,
    ),
]
LlmTokensOption = Annotated[
    int | None,
    typer.Option(
        "--llm-budget-tokens",
        min=0,
        help="Tokens that the study may spend in all (200000).",
        show_default=False,
    ),
]
LlmCostOption = Annotated[
    float | None,
    typer.Option(
        "--llm-cost",
        metavar="USD",
        min=0.0,
        help="US dollars that the study may spend in all.",
        show_default=False,
    ),
]
LlmDeadlineOption = Annotated[
    str | None,
    typer.Option(
        "--llm-deadline",
        metavar="TIME",
        help="Longest wait for the advice of one round (1m).",
        show_default=False,
    ),
]
HintOption = Annotated[
    list[str] | None,
    typer.Option(
        "--hint",
        metavar="TEXT",
        help="What you know of the job, told to the model; repeat for more.",
        show_default=False,
    ),
]
LlmProgramOption = Annotated[
    Path | None,
    typer.Option(
        "--llm-program",
        metavar="FILE",
        help="Compiled program (foretune llm compile) that the model is asked with.",
        show_default=False,
    ),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option(
        "--replay",
        metavar="FILE",
        help="Take the model's answers from the recording of a study (llm.jsonl), offline.",
        show_default=False,
    ),
]


def llm_options(
    llm: str | None,
    url: str | None = None,
    tokens: int | None = None,
    cost: float | None = None,
    deadline: str | None = None,
    hints: list[str] | None = None,
    program: Path | None = None,
    replay: Path | None = None,
) -> LlmOptions | None:
    """What the options say; None where no model and no recording is named.

    Raises:
        InputError: an option is given that belongs to a model and none is named, or it contradicts
            a replay.
    """
    others = {
        "--llm-url": url,
        "--llm-budget-tokens": tokens,
        "--llm-cost": cost,
        "--llm-deadline": deadline,
        "--hint": hints,
        "--llm-program": program,
    }
    given = [name for name, value in others.items() if value]
    if llm is None and replay is None and not given:
        return None

    from search.llm.budget import DEFAULT_TOKENS, Caps
    from search.llm.consultant import DEADLINE_S
    from specs.errors import InputError
    from studies.llm import LlmOptions, check_usable
    from studies.run_requests import duration_s

    if replay is not None:
        if llm is not None or given:
            names = ", ".join((*(["--llm"] if llm else []), *given))
            raise InputError(f"a replay asks no model; leave out {names}.")
        return LlmOptions(replay=replay)
    if llm is None:
        raise InputError(f"{given[0]} is for a model; name it with --llm.")
    if not llm.strip() or "/" not in llm:
        raise InputError(f"--llm {llm!r} names no provider; write for example openai/gpt-4o.")
    if url is not None and not url.startswith(("http://", "https://")):
        raise InputError("--llm-url is no http:// or https:// address.")
    options = LlmOptions(
        model=llm.strip(),
        url=url,
        caps=Caps(DEFAULT_TOKENS if tokens is None else tokens, cost),
        deadline_s=duration_s(deadline, "--llm-deadline") if deadline else DEADLINE_S,
        hints=tuple(hints or ()),
        program=program,
    )
    check_usable(options)
    return options
