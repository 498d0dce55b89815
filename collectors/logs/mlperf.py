"""MLPerf training logs: MLLOG events in between any framework's output."""

from __future__ import annotations

import re
from typing import NamedTuple

from collectors.logs.format import Description, LogFormat
from collectors.logs.mlperf_events import MlperfEvents
from collectors.logs.run_log import RunLog
from specs import catalog
from specs.errors import InputError


class Benchmark(NamedTuple):
    """What the rules of an MLPerf training benchmark fix (mlcommons/training_policies)."""

    model: str
    seq_len: int
    kind: str


BENCHMARKS = {
    "llama2_70b_lora": Benchmark("llama2-70b", 8192, "lora"),
    "llama31_8b": Benchmark("llama3.1-8b", 8192, "pretrain"),
    "llama31_405b": Benchmark("llama3.1-405b", 8192, "pretrain"),
    "gpt3": Benchmark("gpt3-175b", 2048, "pretrain"),
}

_SYSTEMS = re.compile(r"(?:^|[^\d])(\d{1,5})x")
_PER_SYSTEM = re.compile(r"x(\d{1,3})x")


class Mlperf(LogFormat):
    """The submission's own settings; what MLLOG does not state (layout, precision) stays open."""

    name = "MLPerf"
    readers = (MlperfEvents,)

    _settings = (
        ("gbs", "global_batch_size"),
        ("lora_rank", "lora_rank"),
        ("num_gpus", "num_gpus"),
        ("seq_len", "max_sequence_length"),
        ("seq_len", "sequence_length"),
        ("tp", "tensor_model_parallel_size"),
        ("pp", "pipeline_model_parallel_size"),
        ("cp", "context_parallel_size"),
        ("mbs", "micro_batch_size"),
    )

    def recognises(self, run: RunLog) -> bool:
        return "submission_benchmark" in run.events or "mlperf time" in run.facts

    def describe(self, run: RunLog, where: str) -> Description:  # noqa: ARG002
        found = Description()
        events = run.events
        organisation = str(events.get("submission_org", "")).strip()[:40]
        framework = f"MLPerf ({organisation})" if organisation else "MLPerf"
        found.columns = {"framework": framework}
        for column, key in self._settings:
            value = events.get(key)
            if isinstance(value, int | float) and value > 0 and value == int(value):
                found.columns.setdefault(column, str(int(value)))
        name = str(events.get("submission_benchmark", ""))
        benchmark = BENCHMARKS.get(name)
        if benchmark is None:
            found.notes.append(f"the benchmark {name[:40]!r} is not one whose model is known")
        else:
            found.model = catalog.model(benchmark.model)
            found.columns["model"] = benchmark.model
            found.columns.setdefault("seq_len", str(benchmark.seq_len))
            found.columns["kind"] = benchmark.kind
        self._gpus(run, found)
        return found

    def _gpus(self, run: RunLog, found: Description) -> None:
        """GPU and GPU count from the platform, and the layout where only one is possible."""
        platform = str(run.events.get("submission_platform", ""))[:80]
        gpu = gpu_in(platform)
        if gpu:
            found.columns["gpu"] = gpu
        systems = _SYSTEMS.search(platform)
        if "num_gpus" not in found.columns and gpu and systems:
            per_system = _PER_SYSTEM.search(platform)
            each = int(per_system[1]) if per_system else catalog.gpu(gpu).gpus_per_node
            found.columns["num_gpus"] = str(int(systems[1]) * each)
            found.columns["gpus_per_node"] = str(each)
            found.notes.append(
                f"the platform {platform!r} is read as {systems[1]} node(s) of {each} GPUs"
            )
        self._layout(run, found)

    def _layout(self, run: RunLog, found: Description) -> None:
        """gbs = dp * mbs * accumulation: with one sample a GPU and step, dp takes every GPU."""
        steps = run.events.get("gradient_accumulation_steps")
        columns = found.columns
        if "tp" in columns or not isinstance(steps, int) or not columns.get("num_gpus"):
            return
        if int(columns.get("gbs", "0")) == int(columns["num_gpus"]) * steps:
            columns |= {"tp": "1", "pp": "1", "cp": "1", "mbs": "1"}
            found.notes.append(
                "tp, pp, cp and mbs are taken as 1: the batch is one sequence a GPU and step"
            )


def gpu_in(text: str) -> str:
    """Catalog name of the GPU that a text names; empty where it names none."""
    for word in re.split(r"[^A-Za-z0-9]+", text):
        found = re.fullmatch(r"(?:\d+x)?((?:MI|A|H|B|GB)\d{2,3}[A-Z]?)", word, re.IGNORECASE)
        if found:
            try:
                return catalog.gpu(found[1]).name
            except InputError:
                continue
    return ""
