"""``foretune tune --oracle primus``: an installed Primus projects the trials, and what it said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specs.figures import percent
from studies.cli.measured import PRIMUS

if TYPE_CHECKING:
    from studies.cli.common import Output
    from studies.job import Job
    from studies.primus_oracle import PrimusOracle
    from studies.training import Study

PrimusModeOption = Annotated[
    str,
    typer.Option(
        "--primus-mode",
        metavar="MODE",
        help="How --oracle primus times layers: simulate, or benchmark on this node's GPUs.",
    ),
]


def primus_of(job: Job, mode: str, storage: str | None, out: Path) -> PrimusOracle:
    """The oracle, its bias corrected by the runs that were told to the study of this name.

    Raises:
        InputError: Primus is not installed, or there is no such mode.
    """
    from studies.files import checked_folder, name_from
    from studies.primus_oracle import primus_oracle
    from studies.real_runs import MEASURED
    from studies.report.facts import measured_configs
    from studies.storage import storage_address

    name = name_from(job.experiment.name)
    oracle = primus_oracle(job, checked_folder(out) / name, mode)
    address = storage_address(storage, out / "foretune.db")
    if address.path is not None and not address.path.exists():
        return oracle
    return oracle.told(measured_configs(address, name + MEASURED))


def primus_json(study: Study) -> dict[str, dict[str, Any]]:
    """What Primus said of the baseline and the best, as far as it said something."""
    trials = {"baseline": study.baseline, "best": study.best}
    return {
        name: trial.details[PRIMUS]
        for name, trial in trials.items()
        if trial is not None and PRIMUS in trial.details
    }


def show_primus(output: Output, study: Study, oracle: PrimusOracle) -> None:
    """Prints what Primus said of the baseline and the best, and what that is worth."""
    crashed = [trial for trial in study.trials if "crash" in trial.details]
    rows = [
        (
            name,
            says["as_printed_tokens_per_s_per_gpu"],
            says["tokens_per_s_per_gpu"],
            "{:,.0f} to {:,.0f}".format(*says["interval90"]),
            says["peak_gib"],
        )
        for name, says in primus_json(study).items()
    ]
    header = ("Primus", "as printed", "to expect", "90%", "its GiB")
    bias = oracle.bias
    output.table("what Primus says (the tables above are foretune's own projection)", header, rows)
    behind = f"{bias.runs} measured runs" if bias.runs else "its documented optimism"
    output.say(
        f"runs reach {percent(bias.mean, signed=True)} of what it prints (log, sd {bias.sd:.1%}; "
        f"from {behind})",
    )
    if crashed:
        output.say(
            f"{len(crashed)} trials without a projection, such as: {crashed[0].details['crash']}"
        )
