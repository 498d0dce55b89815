"""Primus experiment YAML: the writer of experiments that reproduce a config."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from specs.choices import TrainingKind
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.files import atomic_text
from specs.formats.experiment import Experiment
from specs.formats.megatron.model import write_model
from specs.formats.megatron.overrides import write_config
from specs.formats.megatron.stack import write_stack
from specs.formats.primus.presets import find_root, is_primus_key, load_presets
from specs.formats.primus.reader import is_primus, read_module
from specs.formats.primus.torchtitan_writer import torchtitan_overlay
from specs.formats.yaml_files import deep_merge, fill_environment, read_chain
from specs.stack import Framework, Stack
from specs.text import comment_lines
from specs.workload import Workload

_NOT_IN_A_NAME = re.compile(r"[^\w.+-]")
"""Primus makes a folder of ``exp_name``, and ``${...}`` ends at the first closing brace."""


def overlay(config: TrainingConfig, workload: Workload, stack: Stack) -> dict[str, Any]:
    """The complete overrides of a config: merged over any baseline they reproduce it.

    Raises:
        InputError: the framework has no keys for an axis value.
    """
    if stack.framework is Framework.TORCHTITAN:
        return torchtitan_overlay(config, workload)
    return {
        "seq_length": workload.seq_len,
        "max_position_embeddings": max(workload.seq_len, workload.model.learned_positions),
        "global_batch_size": workload.global_batch_size,
        "mtp_num_layers": workload.model.mtp_layers,
        "moe_expert_capacity_factor": workload.capacity_factor or None,
    } | write_config(config, workload.model, stack, primus=True)


def write_experiment(experiment: Experiment, config: TrainingConfig) -> dict[str, Any]:
    """A Primus experiment that runs ``config`` on the experiment's workload.

    The experiment's own Primus YAML is kept, with the overlay merged into its overrides; without
    one a self-contained experiment over ``language_model.yaml`` is made.

    Raises:
        InputError: the framework has no keys for an axis value, the model or the stack, or the
            Primus checkout does not know a key and would drop it.
    """
    written = overlay(config, experiment.workload, experiment.stack)
    source, content = experiment.source, _own_yaml(experiment)
    if source is not None and content is not None:
        return _over(content, source, written)
    if experiment.stack.framework not in (Framework.PRIMUS, Framework.MEGATRON):
        raise InputError(f"Primus does not run {experiment.stack.framework_name}.")
    return _alone(experiment, config, written)


def _own_yaml(experiment: Experiment) -> dict[str, Any] | None:
    """The Primus YAML that an experiment was read from; None where it is from another file."""
    source = experiment.source
    if source is None or source.suffix not in (".yaml", ".yml"):
        return None
    content = read_chain(source)
    return content if is_primus(content) else None


def is_from_primus(experiment: Experiment) -> bool:
    """Whether an experiment is written over a Primus YAML of its own."""
    return _own_yaml(experiment) is not None


def _over(content: dict[str, Any], source: Path, written: dict[str, Any]) -> dict[str, Any]:
    """The source's own content with the overlay in its overrides."""
    filled = fill_environment(content, str(source))
    module = read_module(filled, source)
    root = find_root(source)
    if root is not None and module.framework == "megatron":
        presets = load_presets(root, module.framework, module.config, module.model)
        dropped = [key for key in written if key not in presets and is_primus_key(key)]
        if lost := [key for key in dropped if not _is_neutral(written[key])]:
            raise InputError(
                f"the Primus checkout {root} does not know {', '.join(lost)} and would drop it; "
                "use a newer checkout or leave that axis at its baseline."
            )
        written = {key: value for key, value in written.items() if key not in dropped}
    overrides = {"modules": {module.name: {"overrides": written}}}
    return deep_merge(content, overrides)


def _is_neutral(value: Any) -> bool:
    """Whether a key says what holds without it: off, none, or a group of one."""
    return value is None or value is False or (type(value) is int and value in (0, 1))


def _alone(
    experiment: Experiment, config: TrainingConfig, written: dict[str, Any]
) -> dict[str, Any]:
    """An experiment that needs no preset of the model: every size is among its overrides."""
    workload, stack = experiment.workload, experiment.stack
    overrides: dict[str, Any] = {
        "mock_data": True,
        "tokenizer_type": "NullTokenizer",
        "attention_softmax_in_fp32": True,
    }
    is_moe = workload.model.is_moe
    if is_moe:
        overrides["moe_router_force_load_balancing"] = True
    overrides |= write_model(workload.model) | write_stack(stack, config.precision, is_moe)
    if stack.turbo:
        overrides["use_turbo_attention"] = True
        overrides["use_turbo_grouped_gemm"] = is_moe and stack.grouped_gemm
    name, preset = "pre_trainer", "pre_trainer.yaml"
    if workload.kind is not TrainingKind.PRETRAIN:
        name, preset = "post_trainer", "sft_trainer.yaml"
        lora = workload.kind is TrainingKind.LORA
        overrides |= {"stage": "sft", "lora": {"enabled": lora, "dim": workload.lora_rank or 32}}
    return {
        "work_group": "${PRIMUS_TEAM:amd}",
        "user_name": "${PRIMUS_USER:root}",
        "exp_name": f"${{PRIMUS_EXP_NAME:{_NOT_IN_A_NAME.sub('_', experiment.name)}}}",
        "workspace": "${PRIMUS_WORKSPACE:./output}",
        "modules": {
            name: {
                "framework": "megatron",
                "config": preset,
                "model": "language_model.yaml",
                "overrides": overrides | written,
            }
        },
    }


def write_overlay(
    path: Path, experiment: Experiment, config: TrainingConfig, comments: tuple[str, ...] = ()
) -> None:
    """Writes the experiment that runs ``config`` as a YAML file, whole or not at all.

    Raises:
        InputError: see ``write_experiment``, or the file cannot be written.
    """
    content = write_experiment(experiment, config)
    source = experiment.source if is_from_primus(experiment) else None
    write_yaml(path, content, (*comments, *_not_for_training(content, source)))


_NOT_FOR_TRAINING = {
    "mock_data": "tokens are made up, which measures speed and trains nothing; give your data",
    "moe_router_force_load_balancing": "experts get equal shares of the tokens whatever the router "
    "says, which measures speed; leave it out to train",
}
"""Switches of Primus that benchmarks set and a training must not, and what they do."""


def _not_for_training(content: Mapping[str, Any], source: Path | None) -> list[str]:
    """A sentence for each switch of an experiment that is on and must be off to train."""
    found = _switched_on(fill_environment(dict(content), str(source or "the experiment")))
    where = f", as in {source.name}" if source else ""
    return [
        f"{key} is on{where}: {what}." for key, what in _NOT_FOR_TRAINING.items() if key in found
    ]


def _switched_on(content: Any) -> set[str]:
    """Keys anywhere in a mapping that are true."""
    if not isinstance(content, Mapping):
        return set()
    own = {str(key) for key, value in content.items() if value is True}
    return own.union(*(_switched_on(value) for value in content.values()))


def write_yaml(path: Path, content: Mapping[str, Any], comments: tuple[str, ...] = ()) -> None:
    """Writes an experiment as a YAML file under comments, whole or not at all.

    Raises:
        InputError: the file cannot be written.
    """
    head = "".join(f"{line}\n" for line in comment_lines(comments))
    text = head + yaml.safe_dump(dict(content), sort_keys=False, width=1000, allow_unicode=True)
    try:
        with atomic_text(path) as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}.") from None
