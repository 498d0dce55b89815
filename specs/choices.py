"""The values of every axis that is not a number: one enum an axis, stored in columns as its code.

Codes are frozen: studies store them, so a new value is appended, never inserted.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Self

from specs.errors import InputError


class Choice(IntEnum):
    """A named value of an axis: an integer code in columns, a label in files and on screen."""

    label: str

    def __new__(cls, code: int, label: str) -> Self:
        member = int.__new__(cls, code)
        member._value_ = code
        member.label = label
        return member

    @classmethod
    def labels(cls) -> tuple[str, ...]:
        """All labels in the order of their codes."""
        return tuple(member.label for member in cls)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The member with this label.

        Raises:
            InputError: the text is no label of this axis.
        """
        for member in cls:
            if member.label == str(text).strip().lower():
                return member
        raise InputError(
            f"{cls.__name__} has no value {text!r}; use one of {', '.join(cls.labels())}."
        )


class Schedule(Choice):
    """Pipeline schedules of Megatron-LM, the Primus pipeline and Sea AI zero bubble."""

    ONE_F_ONE_B = 0, "1f1b"
    INTERLEAVED = 1, "interleaved"
    ZB_H1 = 2, "zb-h1"
    ZB_HEURISTIC = 3, "zb-heuristic"
    ZBV = 4, "zbv"
    V_HALF = 5, "v-half"
    V_MIN = 6, "v-min"
    GPIPE = 7, "gpipe"
    ZB_H2 = 8, "zb-h2"

    @property
    def is_v_shaped(self) -> bool:
        """Whether the first and the last chunk share rank 0."""
        return self in V_SHAPED_SCHEDULES

    @property
    def splits_weight_gradient(self) -> bool:
        """Whether the backward pass is split into input and weight gradients."""
        return self in SPLIT_SCHEDULES


V_SHAPED_SCHEDULES = (Schedule.ZBV, Schedule.V_HALF, Schedule.V_MIN)
SPLIT_SCHEDULES = (Schedule.ZB_H1, Schedule.ZB_H2, Schedule.ZB_HEURISTIC, *V_SHAPED_SCHEDULES)


class Recompute(Choice):
    """Granularity of activation recomputation (Megatron ``--recompute-granularity``)."""

    NONE = 0, "none"
    SELECTIVE = 1, "selective"
    FULL = 2, "full"


class RecomputeMethod(Choice):
    """How full recomputation picks layers (Megatron ``--recompute-method``)."""

    NONE = 0, "none"
    BLOCK = 1, "block"
    UNIFORM = 2, "uniform"


class RecomputeModules(IntFlag):
    """Modules that selective recomputation rebuilds (Megatron ``--recompute-modules``)."""

    NONE = 0
    CORE_ATTN = 1
    MOE_ACT = 2
    LAYERNORM = 4
    MLA_UP_PROJ = 8
    MLP = 16
    MOE = 32
    SHARED_EXPERTS = 64

    @classmethod
    def parse(cls, text: str) -> RecomputeModules:
        """Modules from a ``+``- or ``,``-joined list such as ``core_attn+moe_act``.

        Raises:
            InputError: a name is no module.
        """
        modules = cls.NONE
        for name in text.replace(",", "+").split("+"):
            if not (name := name.strip()) or name == "none":
                continue
            if name.upper() not in cls.__members__:
                known = ", ".join(m.lower() for m in cls.__members__)
                raise InputError(f"recompute_modules has no module {name!r}; use {known}.")
            modules |= cls[name.upper()]
        return modules

    @property
    def label(self) -> str:
        """The modules joined by ``+``, or ``none``."""
        return "+".join(m.name.lower() for m in RecomputeModules if m & self and m.name) or "none"


class MoeDispatcher(Choice):
    """How routed tokens travel to their experts."""

    ALLGATHER = 0, "allgather"
    ALLTOALL = 1, "alltoall"
    DEEPEP = 2, "deepep"
    HYBRIDEP = 3, "hybridep"


class Precision(Choice):
    """Number format of the GEMMs; everything else stays in 16 bit.

    fp8 is delayed scaling, fp8-cs per-tensor current scaling, fp8-sc sub-channel (blockwise).
    """

    BF16 = 0, "bf16"
    FP16 = 1, "fp16"
    FP32 = 2, "fp32"
    FP8 = 3, "fp8"
    FP8_CS = 4, "fp8-cs"
    FP8_SC = 5, "fp8-sc"
    MXFP8 = 6, "mxfp8"
    NVFP4 = 7, "nvfp4"
    MXFP4 = 8, "mxfp4"

    @property
    def gemm_format(self) -> str:
        """The format whose peak rate bounds the GEMMs: bf16, fp32, fp8 or fp4."""
        if self in (Precision.BF16, Precision.FP16):
            return "bf16"
        if self is Precision.FP32:
            return "fp32"
        return "fp4" if self in (Precision.NVFP4, Precision.MXFP4) else "fp8"


class Sharding(Choice):
    """What data parallelism shards; zero1 is Megatron's distributed optimizer."""

    NONE = 0, "none"
    ZERO1 = 1, "zero1"
    ZERO2 = 2, "zero2"
    ZERO3 = 3, "zero3"
    FSDP = 4, "fsdp"
    HSDP = 5, "hsdp"


class Overlap(IntFlag):
    """The overlap bundle: which communication is hidden behind compute.

    DP: gradient reduce and parameter gather; TP: tensor-parallel GEMM overlap (user buffers);
    EP: all-to-all of one microbatch behind the compute of another (with delayed weight gradient).
    """

    NONE = 0
    DP = 1
    TP = 2
    EP = 4

    @classmethod
    def parse(cls, text: str) -> Overlap:
        """An overlap bundle such as ``dp+tp`` or ``none``.

        Raises:
            InputError: a part is neither dp, tp nor ep.
        """
        overlap = cls.NONE
        for name in str(text).lower().replace(",", "+").split("+"):
            if not (name := name.strip()) or name == "none":
                continue
            if name.upper() not in cls.__members__:
                raise InputError(
                    f"overlap has no part {name!r}; use none, or dp, tp, ep joined by +."
                )
            overlap |= cls[name.upper()]
        return overlap

    @property
    def label(self) -> str:
        """The parts joined by ``+``, or ``none``."""
        return "+".join(m.name.lower() for m in Overlap if m & self and m.name) or "none"


class CpComm(Choice):
    """How context parallelism exchanges keys and values (Megatron ``--cp-comm-type``)."""

    P2P = 0, "p2p"
    A2A = 1, "a2a"
    ALLGATHER = 2, "allgather"


class TrainingKind(Choice):
    """What is trained: all weights from scratch or fine-tuned, or low-rank adapters."""

    PRETRAIN = 0, "pretrain"
    FINETUNE = 1, "finetune"
    LORA = 2, "lora"
