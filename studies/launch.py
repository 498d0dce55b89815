"""Launch files: what reproduces a config on the cluster, for Primus and for Megatron-LM."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from collectors.trainer.from_config import REFERENCE_TRAINER, settings_of
from collectors.trainer.settings import flags
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.megatron import arguments, environment
from specs.formats.primus.writer import is_from_primus, write_overlay
from specs.text import comment_lines
from studies.files import write_atomically
from studies.job import Job
from studies.oracles import projection
from studies.wording import describe

LAUNCH_FILES = (".yaml", ".sh")
"""What launch files end in: Primus, and Megatron-LM or the reference trainer."""
REFERENCE_STEPS = 30
"""Steps in the launch file of the reference trainer; the first are warm-up."""


def write_launch_files(
    job: Job, config: TrainingConfig, folder: Path, stem: str
) -> tuple[list[Path], dict[str, str]]:
    """Writes ``stem.yaml`` (Primus) and ``stem.sh`` (Megatron-LM), as far as each can run it.

    A job of the reference trainer gets the ``stem.sh`` that starts it. What is not written is not
    there afterwards.

    Returns:
        The files, and for the name of each one that was not written the reason.

    Raises:
        InputError: neither framework can run the config, or a file cannot be written.
    """
    head = header(job, config, projection(job, config))
    refusals: dict[str, str] = {}
    files: list[Path] = []
    writers = [(folder / f"{stem}.yaml", _primus), (folder / f"{stem}.sh", _megatron)]
    if job.experiment.stack.framework_name == REFERENCE_TRAINER:
        writers = [(folder / f"{stem}.sh", _reference_trainer)]
    for path, write in writers:
        try:
            write(job, config, path, head)
            files.append(path)
        except InputError as error:
            path.unlink(missing_ok=True)  # of an earlier config: it would launch another one
            refusals[path.name] = str(error)
    if not files:
        raise InputError(f"no launch file can be written: {' '.join(refusals.values())}")
    return files, refusals


def header(job: Job, config: TrainingConfig, projected: Mapping[str, Any]) -> tuple[str, ...]:
    """What a launch file says about itself: the job, the config and what was projected."""
    workload, speed, memory = job.experiment.workload, projected["throughput"], projected["memory"]
    low, high = speed["interval90"]
    return (
        f"{workload.model.name}, sequence {workload.seq_len}, global batch "
        f"{workload.global_batch_size}, on {job.cluster.shape}.",
        f"Config: {describe(config)}",
        f"Projected by foretune: {speed['tokens_per_s_per_gpu']:.0f} tokens/s/GPU "
        f"(90%: {low:.0f} to {high:.0f}), {speed['step_time_s']:.3g} s a step, "
        f"{memory['peak_gib']:.1f} of {memory['capacity_gib']:.0f} GiB "
        f"(P(fits) {memory['fit_probability']:.0%}), trust: {speed['trust']}.",
    )


def _env(job: Job, config: TrainingConfig) -> list[tuple[str, str]]:
    amd = job.cluster.gpu.vendor == "amd"
    return sorted(environment(config, job.experiment.stack, amd).items())


def _primus(job: Job, config: TrainingConfig, path: Path, head: tuple[str, ...]) -> None:
    # A YAML sets no environment, so it says what must be set; the scripts export it themselves.
    variables = _env(job, config)
    needed = (f"{name}={value} must be set in the environment." for name, value in variables)
    theirs = () if is_from_primus(job.experiment) else left_to_the_user(job)
    write_overlay(path, job.experiment, config, (*head, *needed, *theirs))


def _megatron(job: Job, config: TrainingConfig, path: Path, head: tuple[str, ...]) -> None:
    line = arguments(config, job.experiment.workload, job.experiment.stack)
    lines = [
        "#!/usr/bin/env bash",
        *comment_lines(head),
        "# Run on every node from a Megatron-LM checkout, with NODE_RANK and MASTER_ADDR set; add",
        "# --train-iters, --lr, data, tokenizer and checkpoints, or --mock-data, after its name.",
        *comment_lines(left_to_the_user(job)),
        "set -euo pipefail",
        *(f"export {name}={shlex.quote(value)}" for name, value in _env(job, config)),
        "CONFIG=(",
        *(f"  {line}" for line in _by_flag(line)),
        ")",
        f"torchrun --nnodes {job.cluster.num_nodes} "
        f"--nproc-per-node {job.cluster.gpus_per_node} \\",
        '  --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" \\',
        '  --master-port "${MASTER_PORT:-29500}" pretrain_gpt.py "${CONFIG[@]}" "$@"',
    ]
    write_atomically(path, "\n".join(lines) + "\n")
    path.chmod(0o755)


def left_to_the_user(job: Job) -> tuple[str, ...]:
    """What is not known of a model, one sentence each: it changes training, not speed."""
    model = job.experiment.workload.model
    if model.learned_positions:
        return ()
    known = {"rotary base": model.rotary_base, "norm epsilon": model.norm_epsilon}
    defaults = [name for name, value in known.items() if value is None]
    scaling = "No scaling of the rotary frequencies is written: state that of the model, if any."
    if not defaults:
        return (scaling,)
    verb = "are" if len(defaults) > 1 else "is"
    return (f"The {' and the '.join(defaults)} {verb} Megatron's: state your own.", scaling)


def _reference_trainer(job: Job, config: TrainingConfig, path: Path, head: tuple[str, ...]) -> None:
    workload, gpus = job.experiment.workload, job.cluster.gpus_per_node
    settings = settings_of(config, workload, job.cluster.num_gpus, REFERENCE_STEPS)
    lines = [
        "#!/usr/bin/env bash",
        *comment_lines(head),
        "# Run on every node, with NODE_RANK and MASTER_ADDR set.",
        "set -euo pipefail",
        "CONFIG=(",
        *(f"  {line}" for line in _by_flag(flags(settings))),
        ")",
        f"torchrun --nnodes {job.cluster.num_nodes} --nproc-per-node {gpus} \\",
        '  --node-rank "${NODE_RANK:-0}" --master-addr "${MASTER_ADDR:-localhost}" \\',
        '  --master-port "${MASTER_PORT:-29500}" -m collectors.trainer "${CONFIG[@]}" "$@"',
    ]
    write_atomically(path, "\n".join(lines) + "\n")
    path.chmod(0o755)


def _by_flag(flags: Iterable[str]) -> list[str]:
    """One line a flag, with its values."""
    lines: list[str] = []
    for word in flags:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += " " + shlex.quote(word)
    return lines
