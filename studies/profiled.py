"""Profiles of a node in a study: what to measure for a job, how, and what it teaches."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import collectors
from collectors.logs.mlperf import gpu_in
from search.distributions import config_key
from search.profile_plan import Node, profile_plan
from search.shortlist import shortlist
from search.space import Space
from specs.catalog import normalised
from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.figures import percent
from specs.gpu import Gpu
from specs.profile_rows import PlanItem, Profile, close_profile, plan_json, read_profile
from studies.files import to_json, write_atomically
from studies.job import Job
from studies.progress import Progress
from studies.training import check_baseline, rank_space
from studies.wording import describe
from surrogate.learned import Learned
from surrogate.profile_calibration import ProfileCalibration, calibrate, profiled

PROGRAM = Path(next(iter(collectors.__path__))) / "node_profile.py"
"""The program that measures; it runs without this package."""

GRACE_S = 120.0
"""Time beyond the budget until a measurement that hangs is ended."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", re.IGNORECASE)
_UNIT_S = {"s": 1.0, "": 60.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """How a node is profiled.

    ``python`` is the interpreter whose PyTorch measures; ``processes`` on this node (0: one a GPU,
    or one on a CPU); with ``nodes`` above 1 every node runs the same command with its own
    ``node_rank`` and they meet at ``rendezvous`` (HOST:PORT).
    """

    folder: Path
    budget_s: float
    python: str = sys.executable
    processes: int = 0
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str = ""
    rounds: int = 5

    @property
    def plan_file(self) -> Path:
        """Where the plan lies."""
        return self.folder / "plan.json"

    @property
    def rows_file(self) -> Path:
        """Where rows are appended while measuring."""
        return self.folder / "rows.jsonl"


def duration_s(text: str, option: str) -> float:
    """Seconds of ``90s``, ``10m``, ``1h`` or ``10`` (minutes).

    Raises:
        InputError: it is no positive duration.
    """
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_S[(match[2] or "").lower()] if match else 0.0
    if not 0 < seconds <= 86_400:
        raise InputError(f"{option} {text!r} is no duration; use 90s, 10m or 1h (at most a day).")
    return seconds


def processes_of(options: ProfileOptions) -> int:
    """Processes on this node: as stated, or one a GPU that PyTorch sees, or one.

    Raises:
        InputError: the interpreter is missing or has no PyTorch.
    """
    question = "import torch; print(torch.cuda.device_count())"
    interpreter = shutil.which(options.python)
    if interpreter is None:
        raise InputError(f"there is no interpreter {options.python!r}; name one by --python.")
    answer = subprocess.run(
        [interpreter, "-c", question], capture_output=True, text=True, check=False, timeout=120
    )
    if answer.returncode or not answer.stdout.strip().isdigit():
        raise InputError(
            f"{interpreter} has no PyTorch that starts; name an interpreter that has by --python, "
            "or use --plan-only and run node_profile.py in the container that trains."
        )
    return options.processes or max(int(answer.stdout), 1)


def plan_of(job: Job, configs: list[TrainingConfig], processes: int, nodes: int) -> list[PlanItem]:
    """What to measure for these configs, most instructive first."""
    table = ConfigTable.from_configs(configs)
    node = Node(processes, nodes)
    constants = job.belief.constants
    workload, gpu = job.experiment.workload, job.cluster.gpu
    return profile_plan(table, job.cases(table), workload, gpu, constants, node)


def write_plan(plan: list[PlanItem], options: ProfileOptions) -> Path:
    """Writes the plan into the folder of the profile."""
    return write_atomically(options.plan_file, to_json(plan_json(plan)) + "\n")


def command(options: ProfileOptions, processes: int, program: Path = PROGRAM) -> list[str]:
    """The command line that measures the plan."""
    start = [options.python]
    if processes * options.nodes > 1:
        start += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        if options.nodes == 1:
            start += ["--standalone"]
        else:
            start += ["--nnodes", str(options.nodes), "--node-rank", str(options.node_rank)]
            # Static: with the c10d backend torchrun ignores the rank, and any node may write.
            host, _, port = options.rendezvous.rpartition(":")
            start += ["--master-addr", host, "--master-port", port]
    files = ["--plan", str(options.plan_file), "--out", str(options.rows_file)]
    limits = ["--budget", f"{options.budget_s:g}", "--rounds", str(options.rounds)]
    return [*start, str(program), *files, *limits]


def measure(options: ProfileOptions, processes: int) -> Profile | None:
    """Runs the measurement of a plan that is written; goes on where an earlier one stopped.

    None on a node other than the first, which writes the rows of all.

    Raises:
        InputError: nodes cannot meet, or nothing could be measured.
    """
    if options.nodes > 1 and not re.fullmatch(r"\S+:\d+", options.rendezvous):
        raise InputError("--nodes above 1 needs --rendezvous HOST:PORT, the same on every node.")
    line = command(options, processes)
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    try:
        code = child.wait(timeout=options.budget_s + GRACE_S)
    except subprocess.TimeoutExpired:
        child.terminate()
        code = child.wait()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise
    if options.node_rank > 0 and code == 0:
        return None
    if not options.rows_file.exists():
        raise InputError(
            f"nothing was measured (exit code {code}); see what it printed, or run it by hand: "
            f"{shlex.join(line)}"
        )
    return read_profile(options.rows_file)


def close(options: ProfileOptions) -> Path:
    """The rows as Parquet."""
    return close_profile(options.rows_file, options.folder / "rows.parquet")


def is_of(profile: Profile, gpu: Gpu) -> bool:
    """Whether the profile was measured on this GPU, as drivers or catalogs call it."""
    measured = profile.device_name
    names = {normalised(name) for name in (gpu.name, *gpu.aliases)}
    return normalised(measured) in names or gpu_in(measured) == gpu.name


def learned_from(
    job: Job, configs: list[TrainingConfig], profile: Profile
) -> tuple[Learned, ProfileCalibration]:
    """What is believed of a job after the profile of its GPU.

    Raises:
        InputError: the profile is of another device, or holds nothing that teaches.
    """
    gpu = job.cluster.gpu
    if not is_of(profile, gpu):
        raise InputError(
            f"the profile was measured on {profile.device_name!r}, but the job runs on {gpu.name}: "
            "profile a node of the cluster, or name the GPU by --cluster."
        )
    table = ConfigTable.from_configs(configs)
    found = calibrate(profile, gpu, job.cases(table), job.belief)
    if not found.factors:
        raise InputError("the profile holds no item that teaches a constant; give more --budget.")
    return profiled(job.belief, found), found


@dataclass(frozen=True)
class Change:
    """What a profile changed: the best config before, what it is worth before and after, and the
    factors that were learned."""

    best_before: TrainingConfig
    speed_before: float
    speed_after: float
    found: ProfileCalibration
    reused: bool

    def sentences(self, best_after: TrainingConfig, speed_best: float) -> list[str]:
        """What changed, against the best config of the study that followed."""
        moved = {
            name: factor for name, factor in self.found.factors.items() if abs(factor - 1) >= 0.01
        }
        learned = ", ".join(f"{name} x {factor:.2f}" for name, factor in moved.items())
        said = [f"profile: {learned or 'nothing moved by 1% or more'}"]
        gain = percent(self.speed_after / self.speed_before - 1, signed=True)
        said.append(
            f"profile: the best config before ({describe(self.best_before)}) is projected at "
            f"{self.speed_after:,.0f} tokens/s/GPU, not {self.speed_before:,.0f} ({gain})"
        )
        if config_key(best_after) == config_key(self.best_before):
            said.append("profile: it is still the best")
        else:
            said.append(
                f"profile: now best is {describe(best_after)} "
                f"({percent(speed_best / self.speed_after - 1, signed=True)} over it)"
            )
        return said

    def as_json(self) -> dict[str, Any]:
        """The change as JSON."""
        return {
            "best_before": self.best_before.as_labels(),
            "tokens_per_s_per_gpu_before": self.speed_before,
            "tokens_per_s_per_gpu_after": self.speed_after,
            "reused": self.reused,
            **self.found.as_json(),
        }


def profile_first(
    job: Job, options: ProfileOptions, progress: Progress, size: int = 5
) -> tuple[Job, Change]:
    """Ranks the space, profiles the shards of the shortlist on this node, and learns.

    A profile of the folder that holds every item of the plan is used again.

    Returns:
        The job as it is projected after the profile, and what the profile changed.

    Raises:
        InputError: the node cannot be profiled, or is of another GPU than the job's.
        InfeasibleError: no config is legal, or none fits.
    """
    check_baseline(job)
    ranking = rank_space(job, Space.of(job.experiment, job.cluster, full=True), progress)
    configs = [ranking.table.config(row) for row in shortlist(ranking, size)]
    processes = processes_of(options)
    plan = plan_of(job, configs, processes, options.nodes)
    profile = _complete(options, plan)
    reused = profile is not None
    if profile is None:
        write_plan(plan, options)
        profile = measure(options, processes)
        assert profile is not None, "the first node writes the rows"
        close(options)
    learned, found = learned_from(job, configs, profile)
    after = replace(job, learned=learned)
    best = ConfigTable.from_configs(configs[:1])
    before_s, after_s = (float(j.project(best).tokens_per_s_per_gpu[0]) for j in (job, after))
    return after, Change(configs[0], before_s, after_s, found, reused)


def _complete(options: ProfileOptions, plan: list[PlanItem]) -> Profile | None:
    """The profile of the folder, if it holds every item of the plan."""
    if not options.rows_file.exists():
        return None
    try:
        profile = read_profile(options.rows_file)
    except InputError:
        return None
    known = {row.item.key for row in profile.rows} | set(profile.failed)
    return profile if {item.key for item in plan} <= known else None
