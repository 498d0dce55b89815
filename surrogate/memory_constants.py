"""The constants of the memory model, from their file to arrays that rows index by framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.stack import Framework, Stack
from surrogate.constants import shipped_constants

Column = NDArray[Any]

FRAMEWORKS = tuple(framework.name.lower() for framework in sorted(Framework))
VENDORS = ("nvidia", "amd")
OFFSETS = ("stack_offset", "release_offset")

EAGER = (
    Framework.TORCHTITAN,
    Framework.PYTORCH_FSDP,
    Framework.HUGGING_FACE,
    Framework.OTHER,
)
"""Families whose layers are plain PyTorch: autograd keeps what each operator saves."""
IS_EAGER = np.array([framework in EAGER for framework in sorted(Framework)])
"""The same by Framework code."""
IS_XLA = np.array([framework is Framework.MAXTEXT for framework in sorted(Framework)])
"""Families that XLA compiles as a whole, for fixed shapes, by Framework code."""


@dataclass(frozen=True)
class MemoryConstants:
    """Constants of the memory model.

    Fields are arrays: shape () where one value holds everywhere, (frameworks,) by Framework code,
    (2,) by vendor (nvidia, amd). In the file they are ``name``, ``name/framework`` and
    ``name/vendor``. Meanings and units are in the file. ``stack_offset`` maps the name of a
    framework, and ``release_offset`` name and release, to what the physics leaves of live memory.
    """

    activation_scale: Column
    compiled_activations: Column
    op_level_checkpoint: Column
    op_level_checkpoint_moe: Column
    gated_mlp_copies: Column
    norm_bytes: Column
    logits_bytes: Column
    fused_logits_bytes: Column
    compiled_logits_bytes: Column
    loss_parallel_bytes: Column
    gathered_copies: Column
    vocabulary_copies: Column
    backward_copies: Column
    checkpoint_bytes: Column
    stage_outputs: Column
    fp8_weight_bytes: Column
    fp8_saved_input: Column
    expert_output_copies: Column
    deepep_output_copies: Column
    dispatch_copies: Column
    unsharded_layers: Column
    prefetched_gradients: Column
    optimizer_temporary: Column
    reduce_bucket_gib: Column
    allocated_base_gib: Column
    fragmentation: Column
    expandable_fragmentation: Column
    reserved_base_gib: Column
    context_gib: Column
    communicator_gib: Column
    moe_device_gib: Column
    log_sd: Column
    log_sd_amd: Column
    stack_offset: Mapping[str, float]
    release_offset: Mapping[str, float]

    @classmethod
    def from_values(cls, values: Mapping[str, float]) -> MemoryConstants:
        """Arrays from ``name`` or ``name/key`` -> value."""
        columns: dict[str, Any] = {}
        for field in fields(cls):
            if field.name in OFFSETS:
                continue
            if field.name in values:
                columns[field.name] = np.array(values[field.name])
                continue
            keys = VENDORS if f"{field.name}/amd" in values else FRAMEWORKS
            columns[field.name] = np.array([values[f"{field.name}/{key}"] for key in keys])
        offsets: dict[str, Any] = {
            name: {
                key.removeprefix(f"{name}/"): value
                for key, value in values.items()
                if key.startswith(f"{name}/")
            }
            for name in OFFSETS
        }
        return cls(**columns, **offsets)

    def offset(self, stacks: Sequence[Stack]) -> Column:
        """Factor on live memory that was learned for each stack, 1 where none was."""
        return np.array(
            [
                self.stack_offset.get(stack.framework_name, 1.0)
                * self.release_offset.get(release_of(stack), 1.0)
                for stack in stacks
            ]
        )


def release_of(stack: Stack) -> str:
    """Name and release of a stack, empty where the release is not known."""
    return f"{stack.framework_name} {stack.version}" if stack.version else ""


@lru_cache(maxsize=1)
def shipped_memory_constants() -> MemoryConstants:
    """The constants that ship with the package."""
    return MemoryConstants.from_values(shipped_constants("memory_constants").values())
