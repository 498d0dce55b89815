"""Elementary operators of a layer: what a block of work takes, part by part.

Every operator takes work over peak times utilisation, plus what it moves through HBM. Forward,
input-gradient and weight-gradient GEMMs have the same sizes in another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specs.choices import Precision, TrainingKind
from surrogate.cases import Cases, Column
from surrogate.communication import Network
from surrogate.kernels.columns import attention_constants, gemm_constants
from surrogate.kernels.utilisation import GemmConstants, gemm_time_s
from surrogate.time_rates import TimeRates

PARTS = ("gemm", "expert_gemm", "attention", "elementwise", "host", "tp", "cp", "ep")
"""What the time of a layer is made of; the last three are exposed communication."""
GEMM, EXPERT, ATTENTION, ELEMENTWISE, HOST, TP, CP, EP = range(len(PARTS))
COMPUTE = slice(GEMM, HOST)

BYTES = 2
"""Bytes of an activation element (bf16 or fp16)."""


@dataclass
class Block:
    """Seconds by part, arrays of shape (parts, u)."""

    forward: Column
    input_gradient: Column
    weight_gradient: Column

    @classmethod
    def zero(cls, rows: int) -> Block:
        """No time."""
        return cls(*(np.zeros((len(PARTS), rows)) for _ in range(3)))

    def __add__(self, other: Block) -> Block:
        return Block(
            self.forward + other.forward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
        )

    @property
    def backward(self) -> Column:
        """Both gradients."""
        both: Column = self.input_gradient + self.weight_gradient
        return both


class Operators:
    """Sizes, rates and elementary operators of u rows."""

    def __init__(self, cases: Cases, rates: TimeRates) -> None:
        self.cases, self.rates = cases, rates
        self.config, self.model, self.cluster = cases.config, cases.model, cases.cluster
        config, cluster = self.config, cases.cluster
        self.tp = config.tp.astype(np.float64)
        self.sequence_shards = np.where(config.sequence_parallel, self.tp, 1.0)
        self.seq = cases.workload.seq_len / config.cp
        self.tokens = config.mbs * self.seq
        self.hbm = cluster.hbm_bytes_per_s * rates.memory_utilisation
        self.network = Network.of(cluster, rates)
        self.domain = cluster.scale_up_gpus
        precision = config.precision
        self.is_fp8 = (precision >= int(Precision.FP8)) & (precision <= int(Precision.MXFP8))
        self.is_fp4 = precision >= int(Precision.NVFP4)
        efficiency = rates.stack_efficiency
        self.kernels = _slowed(
            gemm_constants(cases, precision), rates.gemm_utilisation * efficiency
        )
        self.kernels_16bit = _slowed(
            gemm_constants(cases, np.zeros_like(cases.cluster.gpu)),
            rates.gemm_utilisation_16bit * efficiency,
        )
        attention = attention_constants(cases)
        reached = attention.utilisation_max * rates.attention_utilisation * efficiency
        self.attention = replace(attention, utilisation_max=np.minimum(reached, 1.0))
        self.gemm_rate = self.kernels.peak_flops * self.kernels.utilisation_max
        self.flops_16bit = cluster.peak_bf16_flops * np.minimum(efficiency, 1.0)
        self.is_lora = cases.workload.kind == int(TrainingKind.LORA)
        self.gradient_traffic = 2.0 * cases.stack.gradient_bytes / self.hbm
        passes = rates.elementwise_passes * np.where(
            cases.stack.compiled, rates.compiled_passes, 1.0
        )
        self.norm_moved = passes * BYTES / (self.hbm * np.minimum(efficiency, 1.0))

    def rows(self) -> int:
        return len(self.config)

    def linear(self, m: Any, n: Any, k: Any, kernels: GemmConstants | None = None) -> Block:
        """A linear layer C[m, n] = A[m, k] B[k, n]: a GEMM forward, two backward, accumulation."""
        kernels = kernels or self.kernels
        block = Block.zero(self.rows())
        block.forward[GEMM] = gemm_time_s(m, n, k, kernels, quantise=False)
        block.input_gradient[GEMM] = gemm_time_s(m, k, n, kernels, quantise=False)
        weight = gemm_time_s(n, k, m, kernels, quantise=False) + n * k * self.gradient_traffic
        block.weight_gradient[GEMM] = np.where(self.is_lora, 0.0, weight)
        return block + self._adapter(m, n, k) if np.any(self.is_lora) else block

    def _adapter(self, m: Any, n: Any, k: Any) -> Block:
        """The two thin GEMMs of a low-rank adapter, in 16 bit, with both gradients."""
        rank = np.where(self.is_lora, self.cases.workload.lora_rank, 0)
        rate = self.kernels_16bit.peak_flops * self.kernels_16bit.utilisation_max
        block = Block.zero(self.rows())
        once = 2.0 * m * rank * (n + k) / rate
        block.forward[GEMM] = block.input_gradient[GEMM] = block.weight_gradient[GEMM] = once
        return block

    def moved(self, forward: Any, backward: Any) -> Block:
        """Element-wise kernels that move so many 16-bit elements."""
        block = Block.zero(self.rows())
        block.forward[ELEMENTWISE] = forward * self.norm_moved
        block.input_gradient[ELEMENTWISE] = backward * self.norm_moved
        return block

    def quantised(self, forward: Any, backward: Any) -> Block:
        """Casts of GEMM operands to 8 or 4 bit: read 16 bit, write rows and columns."""
        cost = np.where(self.is_fp8, 4.0, np.where(self.is_fp4, 3.0, 0.0))
        cost = cost * self.rates.quantise_passes / self.hbm
        block = Block.zero(self.rows())
        block.forward[ELEMENTWISE] = forward * cost
        block.input_gradient[ELEMENTWISE] = backward * cost
        return block


def _slowed(kernels: GemmConstants, factor: Any) -> GemmConstants:
    """The kernels at a share of their rate, never above the peak."""
    return replace(kernels, utilisation_max=np.minimum(kernels.utilisation_max * factor, 1.0))
