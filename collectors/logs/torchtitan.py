"""Logs of TorchTitan, alone or as the backend of Primus: ``[titan] ... step: 10 loss: ...``."""

from __future__ import annotations

import re
from typing import ClassVar

from collectors.logs.format import Description, LogFormat
from collectors.logs.reading import LineReader, RecordReader
from collectors.logs.run_log import RunLog
from collectors.text import Line, grouped_number
from specs import catalog
from specs.errors import InputError
from specs.model import Model

_NUMBER = r"(\d[\d,]{0,15}(?:\.\d{1,9})?)"
_STEP = re.compile(r"step:\s{0,12}(\d{1,12})\s{1,12}loss:")
_FIELDS = (
    ("tokens_per_s_per_gpu", re.compile(rf"\b(?:tps|wps): ?{_NUMBER}")),
    ("tflops", re.compile(rf"\btflops: ?{_NUMBER}")),
)
_MEMORY = re.compile(rf"\bmemory: {{0,8}}{_NUMBER}GiB")


class StepLines(RecordReader):
    """``step: 10  loss: 7.1  memory: 66.91GiB(37.51%)  tps: 10,007  tflops: 313.36  mfu: ...``.

    ``tps`` counts the tokens of one GPU, ``memory`` is the peak that the allocator reserved since
    the last line (torchtitan/components/metrics.py).
    """

    keywords = ("step:",)

    def read(self, line: Line, run: RunLog) -> None:
        text = line.text[:4096]
        if not (match := _STEP.search(text)):
            return
        number = float(match[1])
        values = {
            name: value
            for name, pattern in _FIELDS
            if (found := pattern.search(text)) and (value := grouped_number(found[1]))
        }
        if "tokens_per_s_per_gpu" not in values:
            run.note("step lines that were cut before their tps were left out")
            return
        if found := _MEMORY.search(text):
            run.see_memory("reserved", line.rank, grouped_number(found[1]))
        run.fact("titan", "step lines")
        self.keep(number, values, run)


class Announcements(LineReader):
    """What TorchTitan says before the first step: mesh, batch, model, GPU, what was applied."""

    keywords = (
        *("Building device mesh", "-D device mesh", "Trainer is initialized", "CUDA capacity"),
        *("total parameters", "activation checkpointing", "pipeline schedule", "loat8", "XFP8"),
        *("Applied FSDP", "Applied HSDP", "with torch.compile"),
    )

    _patterns: ClassVar[tuple[tuple[str, re.Pattern[str]], ...]] = (
        ("date", re.compile(r"\[titan\] (20\d\d-[01]\d-[0-3]\d)")),
        ("titan mesh", re.compile(r"device mesh with parallelism: ([a-z_0-9=, ]{1,200})")),
        ("titan axes", re.compile(r"-D device mesh with (\[[^\]]{1,120}\], \[[\d, ]{1,60}\])")),
        ("titan mbs", re.compile(r"local batch size (\d{1,9})")),
        ("titan gbs", re.compile(r"global batch size (\d{1,9})")),
        ("titan seq_len", re.compile(r"sequence length (\d{1,9})")),
        ("titan model", re.compile(r"Model (\S{1,40} \S{1,40}) size: [\d,]{1,24} total param")),
        ("titan parameters", re.compile(r" size: ([\d,]{1,24}) total parameters")),
        ("gpu", re.compile(r"CUDA capacity: (?:NVIDIA |AMD )?(?:Instinct )?([\w -]{2,60}) with")),
        ("titan recompute", re.compile(r"Applied (selective|full) activation checkpointing")),
        ("titan schedule", re.compile(r"pipeline schedule (\w{1,40})")),
        ("titan fp8", re.compile(r"((?:F|f)loat8 training active|MXFP8 training active)")),
        ("titan compile", re.compile(r"(with torch\.compile)")),
    )

    def read(self, line: Line, run: RunLog) -> None:
        text = line.text[:4096]
        for name, pattern in self._patterns:
            if name not in run.facts and (match := pattern.search(text)):
                run.fact(name, match[1])


SCHEDULES = {"1f1b": "1f1b", "interleaved1f1b": "interleaved"}
"""TorchTitan's schedule -> ours, where they are the same."""
_PARAMETERS_AGREE = 0.002
"""Norm and position parameters may be counted differently; another size may not."""


class TorchTitan(LogFormat):
    """TorchTitan: FSDP2, DTensor and pipelining of PyTorch."""

    name = "TorchTitan"
    readers = (StepLines, Announcements)

    def recognises(self, run: RunLog) -> bool:
        return any(name.startswith("titan") for name in run.facts) and not run.arguments

    def describe(self, run: RunLog, where: str) -> Description:  # noqa: ARG002
        facts = run.facts
        found = Description(columns={"framework": self.name})
        columns = found.columns
        columns |= _mesh(facts)
        for column in ("mbs", "gbs", "seq_len"):
            if f"titan {column}" in facts:
                columns[column] = facts[f"titan {column}"]
        if "titan mesh" in facts or "titan axes" in facts:
            columns["recompute"] = facts.get("titan recompute", "none")
            columns["precision"] = "fp8" if "titan fp8" in facts else "bf16"
        schedule = facts.get("titan schedule", "").lower()
        if schedule in SCHEDULES:
            columns["schedule"] = SCHEDULES[schedule]
        elif schedule:
            found.notes.append(f"the schedule {schedule!r} is not one that is projected")
        if "titan model" in facts:
            found.model = model_called(facts["titan model"], facts.get("titan parameters", ""))
            if found.model is None:
                called = facts["titan model"]
                found.notes.append(f"{called!r} is no model of the catalog; --set model names it")
            else:
                columns["model"] = found.model.name
        if "titan compile" in facts:
            found.words.append("compiled")
        return found


def _mesh(facts: dict[str, str]) -> dict[str, str]:
    """Columns of the device mesh; empty where the log does not print one."""
    degrees = {"dp_replicate": 1, "dp_shard": 1, "dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1}
    if "titan mesh" in facts:
        pairs = re.findall(r"([a-z_]{1,20})=(\d{1,7})", facts["titan mesh"])
    elif "titan axes" in facts:
        names, _, sizes = facts["titan axes"].partition("], [")
        pairs = list(
            zip(re.findall(r"[a-z_]{2,20}", names), re.findall(r"\d{1,7}", sizes), strict=False)
        )
    else:
        return {}
    degrees |= {name: int(size) for name, size in pairs if name in degrees and int(size) > 0}
    replicas, shards = degrees["dp_replicate"], degrees["dp_shard"]
    dp = replicas * shards * degrees["dp"]
    gpus = dp * degrees["tp"] * degrees["pp"] * degrees["cp"]
    sharding = ("hsdp" if replicas > 1 else "fsdp") if shards > 1 else "none"
    columns = {name: str(degrees[name]) for name in ("tp", "pp", "cp", "ep")}
    return columns | {"dp": str(dp), "num_gpus": str(gpus), "sharding": sharding}


def model_called(name: str, parameters: str) -> Model | None:
    """The catalog's model of a TorchTitan name (``llama3 8B``), if it is as large as printed."""
    family, _, size = name.lower().partition(" ")
    total = grouped_number(parameters) if parameters else 0.0
    for text in (f"{family}-{size}", f"{family}.1-{size}", family.replace("_", "-"), size):
        try:
            model = catalog.model(text)
        except InputError:
            continue
        if not total or abs(model.total_parameters() / total - 1) <= _PARAMETERS_AGREE:
            return model
    return None
