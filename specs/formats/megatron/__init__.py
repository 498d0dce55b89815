"""Megatron-LM arguments: written for a config, and read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specs.choices import TrainingKind
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.formats.megatron.axes import read_config
from specs.formats.megatron.flags import from_flags, to_flags
from specs.formats.megatron.model import read_model, write_model
from specs.formats.megatron.overrides import environment, write_config
from specs.formats.megatron.stack import read_stack, write_stack
from specs.formats.megatron.values import Values
from specs.stack import Framework, Stack
from specs.workload import Workload

__all__ = ["ARGPARSE_DEFAULTS", "arguments", "environment", "megatron_arguments", "read_arguments"]

# Megatron-LM's own argparse defaults where they are not null, off, or what the readers assume.
ARGPARSE_DEFAULTS: dict[str, Any] = {
    "swiglu": False,
    "add_bias_linear": True,
    "gradient_accumulation_fusion": True,
    "apply_rope_fusion": True,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "moe_router_topk": 2,
    "moe_token_dispatcher_type": "allgather",
    "data_parallel_sharding_strategy": "optim_grads_params",
    "global_batch_size": None,
}


def megatron_arguments(config: TrainingConfig, workload: Workload, stack: Stack) -> dict[str, Any]:
    """Megatron-LM arguments of a job, destination name -> value.

    Raises:
        InputError: Megatron-LM has no arguments for an axis value, the model or the kind.
    """
    if workload.kind is TrainingKind.LORA:
        raise InputError("Megatron-LM has no arguments for LoRA; export for Primus.")
    written = write_model(workload.model)
    written |= {
        "seq_length": workload.seq_len,
        "max_position_embeddings": max(workload.seq_len, workload.model.learned_positions),
        "global_batch_size": workload.global_batch_size,
    }
    if workload.capacity_factor:
        written["moe_expert_capacity_factor"] = workload.capacity_factor
    written |= write_stack(stack, config.precision, workload.model.is_moe)
    return written | write_config(config, workload.model, stack, primus=False)


def arguments(config: TrainingConfig, workload: Workload, stack: Stack) -> list[str]:
    """The Megatron-LM command line (flags and values) of a job.

    Raises:
        InputError: Megatron-LM has no arguments for an axis value, the model or the kind.
    """
    return to_flags(megatron_arguments(config, workload, stack))


def read_arguments(
    flags: Sequence[str] | str, name: str = "model"
) -> tuple[TrainingConfig, Workload, Stack]:
    """The job that a Megatron-LM command line describes.

    Raises:
        InputError: a flag is missing, malformed or not supported.
    """
    values = Values(ARGPARSE_DEFAULTS | from_flags(flags), "Megatron arguments")
    model = read_model(values, name)
    workload = Workload(
        model=model,
        seq_len=values.required("seq_length"),
        global_batch_size=values.required("global_batch_size"),
        capacity_factor=values.number("moe_expert_capacity_factor") or 0.0,
    )
    stack = read_stack(values, Framework.MEGATRON, "Megatron-LM", {})
    return read_config(values, model), workload, stack
