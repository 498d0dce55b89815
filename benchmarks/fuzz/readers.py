"""Every reader of foreign files: its samples, the damage that suits it, what must hold after."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz import mutations as m
from benchmarks.fuzz import samples

ANYTHING: tuple[m.Damage, ...] = (m.as_bytes, m.as_lines, m.as_words, m.as_nothing)


@dataclass(frozen=True)
class Reader:
    """A reader under test; ``read`` raises InputError, or reads and checks what it read."""

    name: str
    file: str
    samples: Callable[[], list[bytes]]
    damages: Sequence[m.Damage]
    read: Callable[[Path], object]


def sane(**numbers: Any) -> None:
    """Refuses numbers that no file may bring in: not finite, or negative.

    Raises:
        AssertionError: names the number.
    """
    for name, value in numbers.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert math.isfinite(value), f"{name} is {value}"
            assert value >= 0, f"{name} is {value}"


def _experiment(path: Path) -> None:
    from specs.formats.reader import read_experiment

    found = read_experiment(path)
    work = found.workload
    sane(
        parameters=float(work.model.total_parameters()),
        seq_len=float(work.seq_len),
        batch=float(work.global_batch_size),
        imbalance=work.routing_imbalance,
        capacity=work.capacity_factor,
        tokens=work.target_tokens,
        gpus=found.min_gpus,
        optimizer_bytes=found.stack.optimizer_bytes,
        **found.baseline.as_labels(),
    )
    if found.cluster is not None:
        _sane_cluster(found.cluster)


def _sane_cluster(cluster: Any) -> None:
    gpu = cluster.gpu
    rates = {f"peak_{name}": q.value for name, q in gpu.peak_flops.items()}
    sane(
        nodes=cluster.num_nodes,
        gpus=float(cluster.num_gpus),
        price=cluster.price_usd_per_gpu_hour,
        hbm=gpu.hbm_gib.value,
        link=gpu.link_bytes_per_s.value,
        nic=gpu.nic_bytes_per_s.value,
        latency=gpu.nic_latency_s.value,
        power=gpu.power_w.value,
        **rates,
    )


def _cluster(path: Path) -> None:
    from specs.formats.cluster import read_cluster

    _sane_cluster(read_cluster(str(path)))


def _gpus(path: Path) -> None:
    from specs import catalog
    from specs.cluster import Cluster

    for gpu in catalog.read_gpus(path).values():
        _sane_cluster(
            Cluster(
                name="",
                gpu=gpu,
                num_nodes=1,
                gpus_per_node=gpu.gpus_per_node,
                price_usd_per_gpu_hour=None,
            )
        )


def _result(path: Path) -> None:
    from studies.run_results import read_result

    number, outcome = read_result(_job(), "x", path, None)
    sane(run=number, speed=outcome.tokens_per_s_per_gpu, peak=outcome.peak_gib)


@cache
def _job() -> Any:
    """A job that results are told of."""
    from studies.durability import durability_job

    return durability_job("x")


def _toolbox(path: Path) -> None:
    from studies.toolbox.request import read_request

    found = read_request(str(path), {})
    sane(
        batch=found.batch,
        prompt=found.prompt,
        new_tokens=found.new_tokens,
        threshold=found.threshold,
        confidence=found.confidence,
        timeout=found.timeout_s,
        budget=found.lossy_budget,
    )


def _models(path: Path) -> None:
    from specs.errors import InputError
    from specs.models_json import models_json

    file = models_json(path)
    for name in ("llama3.1-8b", "mixtral-8x7b", "deepseek-v3"):
        try:
            sane(parameters=float(file.find(name).total_parameters()))
        except InputError:
            continue


def _megatron(path: Path) -> None:
    from specs.formats.megatron import read_arguments

    config, workload, _ = read_arguments(path.read_text(encoding="utf-8", errors="replace"))
    sane(parameters=float(workload.model.total_parameters()), **config.as_labels())


def _runs(path: Path) -> None:
    from specs import catalog
    from specs.runs import read_runs

    table = read_runs(path, catalog.model)
    for value in table.tokens_per_s_per_gpu.tolist():
        assert math.isnan(value) or 0 < value < math.inf, value


def _ingested(path: Path) -> None:
    from collectors.ingestion import ingest, operators_csv, refusals
    from specs.run_columns import runs_csv

    found = ingest(path, {})
    refusals(found.runs)
    runs_csv(run.row for run in found.runs)
    operators_csv([found])
    for run in found.runs:
        for name in ("tokens_per_s_per_gpu", "step_time_s", "peak_mem_gb", "tflops_per_gpu"):
            text = run.row.get(name, "")
            sane(**{name: float(text) if text else None})
    if found.trace is not None:
        for device in found.trace.devices:
            sane(span=getattr(device, "span_us", None), busy=getattr(device, "busy_us", None))
        for row in found.trace.operators:
            sane(total_us=row.total_us, count=row.count)


def _calibration(path: Path) -> None:
    from surrogate.calibration_file import read_calibration

    found = read_calibration(path)
    assert all(math.isfinite(error) for error in found.errors.tolist())
    sane(bias_sd=found.bias_sd)


def _learned(path: Path) -> None:
    from surrogate.learned import read_learned

    found = read_learned(path)
    assert all(math.isfinite(v) for v in found.constants.log_values.values())


def _constants(path: Path) -> None:
    from surrogate.constants import read_constants

    assert all(math.isfinite(v) for v in read_constants(path).values().values())


def _profile(path: Path) -> None:
    from specs.profile_rows import read_profile

    for row in read_profile(path).rows:
        sane(
            forward=row.forward_s,
            backward=row.backward_s,
            spread=row.spread,
            samples=float(row.samples),
            peak=float(row.peak_bytes or 0),
        )


def _plan(path: Path) -> None:
    from specs.errors import InputError
    from specs.formats.plan import read_plan

    plan = read_plan(path)
    s = plan.settings
    sane(tokens=s.tokens, days=s.deadline_days, pue=s.pue, price=s.price_usd_per_gpu_hour)
    for size in plan.clusters[:4]:
        _sane_cluster(size.cluster)
    for workload in plan.workloads[:2]:
        sane(tokens=workload.tokens, days=workload.deadline_days)
        try:
            workload.on(plan.clusters[0].cluster)
        except InputError:
            continue


def _recording(path: Path) -> None:
    from search.llm.recording import read_lines

    read_lines(path)


def parquet(content: bytes, dice: Any) -> bytes:
    """A Parquet file of damaged lines, or a damaged Parquet file."""
    import io

    import pyarrow
    import pyarrow.parquet

    lines = content.decode().splitlines()
    if dice.random() < 0.5:
        lines = m.as_json_lines(content, dice).decode("utf-8", "replace").splitlines()
    held = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"json": lines}), held)
    raw = held.getvalue()
    return raw if dice.random() < 0.2 else m.as_bytes(raw, dice)


_YAML = (m.as_yaml, m.as_yaml, m.as_yaml, *ANYTHING)
_JSON = (m.as_json, m.as_json, m.as_json, *ANYTHING)
_JSONL = (m.as_json_lines, m.as_json_lines, m.as_json_lines, *ANYTHING)
_TEXT = (m.as_words, m.as_words, m.as_lines, m.as_bytes, m.as_nothing)

READERS = (
    Reader("study YAML", "x.yaml", samples.studies, _YAML, _experiment),
    Reader("Primus YAML", "x-mi355x.yaml", samples.primus, _YAML, _experiment),
    Reader("plan YAML", "x.yaml", samples.plans, _YAML, _plan),
    Reader("cluster YAML", "mi355x.yaml", samples.clusters, _YAML, _cluster),
    Reader("GPU YAML", "gpus.yaml", samples.gpus, _YAML, _gpus),
    Reader("toolbox YAML", "x.yaml", samples.toolbox, _YAML, _toolbox),
    Reader("HF config.json", "config.json", samples.hf, _JSON, _experiment),
    Reader("models JSON", "models.json", samples.models_json, _JSON, _models),
    Reader("Megatron arguments", "args.txt", samples.megatron, _TEXT, _megatron),
    Reader("runs CSV", "runs.csv", samples.runs, (m.as_cells, m.as_cells, *ANYTHING), _runs),
    Reader("logs", "x.log", samples.logs, _TEXT, _ingested),
    Reader("smi tables", "x.txt", samples.smi_tables, _TEXT, _ingested),
    Reader("traces", "x.json", samples.traces, _JSON, _ingested),
    Reader(
        "traces, gzip",
        "x.json.gz",
        samples.traces,
        tuple(m.gzipped(damage) for damage in _JSON),
        _ingested,
    ),
    Reader("calibration", "c.json", samples.calibration, _JSON, _calibration),
    Reader("learned", "learned.json", samples.learned, _JSON, _learned),
    Reader("constants", "constants.json", samples.constants, _JSON, _constants),
    Reader("profile, JSON lines", "rows.jsonl", samples.profiles, _JSONL, _profile),
    Reader("profile, Parquet", "rows.parquet", samples.profiles, (parquet,), _profile),
    Reader("run result JSON", "result.json", samples.results, _JSON, _result),
    Reader("LLM recording", "llm.jsonl", samples.recordings, _JSONL, _recording),
)
