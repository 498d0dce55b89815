"""The registry of log formats, tried in order: what is more special comes first."""

from __future__ import annotations

from collectors.logs.format import LogFormat
from collectors.logs.megatron import MegatronDeepSpeed, MegatronLm, Primus
from collectors.logs.mlperf import Mlperf
from collectors.logs.out_of_memory import OutOfMemoryErrors
from collectors.logs.reading import (
    Arguments,
    CommandLine,
    Facts,
    IterationLines,
    LineReader,
    MemoryLines,
)
from collectors.logs.reference_trainer import ReferenceTrainer
from collectors.logs.run_log import RunLog
from collectors.logs.smi import NvidiaSmi, NvidiaSmiNames, RocmSmi
from collectors.logs.torchtitan import TorchTitan

FORMATS: tuple[LogFormat, ...] = (
    *(Mlperf(), MegatronDeepSpeed(), TorchTitan(), ReferenceTrainer(), Primus(), MegatronLm()),
)

SHARED_READERS: tuple[type[LineReader], ...] = (
    *(Arguments, CommandLine, IterationLines, MemoryLines, Facts),
    *(RocmSmi, NvidiaSmi, NvidiaSmiNames, OutOfMemoryErrors),
)


def line_readers() -> list[LineReader]:
    """Fresh readers of every kind of line."""
    special = [reader for log_format in FORMATS for reader in log_format.readers]
    return [reader() for reader in (*SHARED_READERS, *special)]


def format_of(run: RunLog) -> LogFormat | None:
    """The format that the run is in; None where it has only memory tables or errors."""
    return next((f for f in FORMATS if f.recognises(run)), None)
