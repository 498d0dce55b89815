"""What legality rules look at: a config table with its workload, cluster and stack."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs.choices import SPLIT_SCHEDULES, V_SHAPED_SCHEDULES, Precision, Schedule, Sharding
from specs.cluster import Cluster
from specs.config import AXES, ConfigTable
from specs.layout import layout_problem
from specs.stack import Framework, Stack
from specs.workload import Workload

Column = NDArray[Any]
Mask = NDArray[np.bool_]

MEGATRON_FAMILY = frozenset(
    {Framework.MEGATRON, Framework.PRIMUS, Framework.NEMO, Framework.MEGATRON_BRIDGE}
)
"""Frameworks that run Megatron core."""


@dataclass(frozen=True)
class Scope:
    """n configs with the rest of the job; columns are computed once, whichever rule asks first."""

    table: ConfigTable
    workload: Workload
    cluster: Cluster
    stack: Stack

    @property
    def num_gpus(self) -> int:
        """GPUs of the job."""
        return self.cluster.num_gpus

    @property
    def is_moe(self) -> bool:
        """Whether the model has experts."""
        return self.workload.model.is_moe

    @property
    def zero_bubble_runtime(self) -> bool:
        """Whether the stack is the Sea AI zero-bubble fork of Megatron."""
        return "zero-bubble" in self.stack.framework_name.lower().replace(" ", "-")

    @cached_property
    def etp(self) -> Column:
        """Expert tensor parallel size, 0 read as Megatron's null: as tp."""
        return np.where(self.table.etp == 0, self.table.tp, self.table.etp)

    @cached_property
    def dense_ranks(self) -> Column:
        """tp*pp*cp: GPUs of one data-parallel replica."""
        return np.asarray(self.table.tp * self.table.pp * self.table.cp)

    @cached_property
    def expert_ranks(self) -> Column:
        """etp*ep*pp: GPUs of one replica of the experts."""
        return np.asarray(self.etp * self.table.ep * self.table.pp)

    @cached_property
    def is_world_exact(self) -> Mask:
        """Whether the GPUs divide into whole replicas."""
        return np.asarray(self.num_gpus % self.dense_ranks == 0)

    @cached_property
    def dp(self) -> Column:
        """Data-parallel size, rounded down and at least 1."""
        return np.asarray(np.maximum(self.num_gpus // self.dense_ranks, 1))

    @cached_property
    def edp(self) -> Column:
        """Data-parallel size of the experts, rounded down and at least 1."""
        return np.asarray(np.maximum(self.num_gpus // self.expert_ranks, 1))

    @cached_property
    def microbatches(self) -> Column:
        """Micro-batches a step, rounded down."""
        return np.asarray(self.workload.global_batch_size // (self.table.mbs * self.dp))

    @cached_property
    def is_v_shaped(self) -> Mask:
        """Whether the schedule is V-shaped."""
        return among(self.table.schedule, V_SHAPED_SCHEDULES)

    @cached_property
    def splits_weight_gradient(self) -> Mask:
        """Whether the schedule splits the backward pass."""
        return among(self.table.schedule, SPLIT_SCHEDULES)

    @cached_property
    def is_interleaved(self) -> Mask:
        """Whether several model chunks run under Megatron's interleaved schedule."""
        return np.asarray((self.table.vpp > 1) & (self.table.schedule == Schedule.INTERLEAVED))

    @cached_property
    def microbatch_group(self) -> Column:
        """Microbatches per virtual-stage group, 0 read as pp."""
        group = self.table.microbatch_group
        return np.where(group == 0, self.table.pp, group)

    @cached_property
    def is_torch_fsdp(self) -> Mask:
        """Whether PyTorch FSDP2 shards (plain or hybrid)."""
        return among(self.table.sharding, (Sharding.FSDP, Sharding.HSDP))

    @cached_property
    def is_low_precision(self) -> Mask:
        """Whether GEMMs run in fp8 or fp4."""
        low = [p for p in Precision if p.gemm_format in ("fp8", "fp4")]
        return among(self.table.precision, low)

    @cached_property
    def layout_problems(self) -> tuple[Column, tuple[str, ...]]:
        """(index of each row's problem, problems); problem 0 is none.

        A row's problem depends on layout, pp, vpp and the shape of the schedule alone, so each
        combination is judged once.
        """
        table = self.table
        fits = (table.pp <= _MAX_STAGES) & (table.vpp <= _MAX_STAGES)
        fits &= table.pp * table.vpp <= _MAX_STAGES
        key = (table.layout << 33) | (table.pp << 17) | (table.vpp << 1) | self.is_v_shaped
        found, index = _unique(np.where(fits, key, 0))
        problems = [""]
        numbers = np.zeros(len(found), dtype=np.int64)
        for place, code in enumerate(found.tolist()):
            problem = self._layout_problem(code)
            if problem:
                numbers[place] = len(problems)
                problems.append(problem)
        return numbers[index], tuple(problems)

    def _layout_problem(self, code: int) -> str:
        if code == 0:
            return f"a pipeline has at most {_MAX_STAGES} stages; lower pp or vpp"
        layout, pp, vpp = code >> 33, (code >> 17) & 0xFFFF, (code >> 1) & 0xFFFF
        model = self.workload.model
        v_shaped = bool(code & 1) and vpp == 2
        text = self.table.layouts[layout]
        return layout_problem(text, model.num_layers, model.mtp_layers, pp, vpp, v_shaped)

    def facts(self, row: int) -> dict[str, object]:
        """Everything that a message about one row may quote."""
        config = self.table.config(row)
        model, gpu = self.workload.model, self.cluster.gpu
        numbers, problems = self.layout_problems
        return {
            **{name: AXES[name].label(getattr(config, name)) for name in AXES},
            "etp": int(self.etp[row]),
            "num_gpus": self.num_gpus,
            "dense_ranks": int(self.dense_ranks[row]),
            "expert_ranks": int(self.expert_ranks[row]),
            "dp": int(self.dp[row]),
            "edp": int(self.edp[row]),
            "microbatches": int(self.microbatches[row]),
            "microbatch_group": int(self.microbatch_group[row]),
            "layout_problem": problems[int(numbers[row])],
            "model": model,
            "gpu": gpu,
            "gbs": self.workload.global_batch_size,
            "seq_len": self.workload.seq_len,
            "stack": self.stack,
            "framework": self.stack.framework_name,
            "precisions": ", ".join(gpu.precisions),
            "last_layer": model.num_layers + model.mtp_layers - 1,
        }


def among(column: Column, values: Any) -> Mask:
    """Whether each (small, non-negative) code is one of ``values``: a table look-up."""
    codes = [int(value) for value in values]
    table = np.zeros(_CODES, dtype=bool)
    table[codes] = True
    mask: Mask = table[column]
    return mask


_MAX_STAGES = 4096
_CODES = 1024
"""More than any enum code or flag combination of an axis."""


def _unique(key: Column) -> tuple[Column, Column]:
    """Distinct keys and each row's index among them; sorted runs are cheap, as in enumerations."""
    edges = np.flatnonzero(key[1:] != key[:-1]) + 1
    starts = np.concatenate(([0], edges))
    if len(starts) > len(key) // 4:
        found, index = np.unique(key, return_inverse=True)
        return found, index
    found, of_run = np.unique(key[starts], return_inverse=True)
    return found, np.repeat(of_run, np.diff(np.concatenate((starts, [len(key)]))))
