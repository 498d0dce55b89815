"""The real logs and traces, against numbers that are computed here in another way."""

from __future__ import annotations

import gzip
import json
import re
import statistics
from pathlib import Path

import pytest

from collectors.ingestion import ingest, refusals


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


@pytest.fixture
def lumi(shared) -> Path:
    path = shared / "logs" / "megatron_deepspeed_175b_mi250x_16nodes.log.gz"
    if not path.is_file():
        pytest.skip(f"the log {path} is not there")
    return path


def test_megatron_deepspeed_175b_on_128_mi250x(lumi):
    run = ingest(lumi, {}).runs[0]
    text = _text(lumi)
    times = [float(t) for t in re.findall(r"elapsed time per iteration \(s\): ([\d.]+)", text)]
    assert run.iterations == len(times) == 4
    assert run.counted == [2, 3, 4]
    step = statistics.median(times[1:])
    assert float(run.row["step_time_s"]) == step == 346.67
    tokens = 1024 * 2048 / step / 128
    assert float(run.row["tokens_per_s_per_gpu"]) == pytest.approx(tokens, rel=1e-5)
    assert float(run.row["tflops_per_gpu"]) == 67.03
    # The log counts 8 FLOPs a parameter and token (with recomputation): 177.63e9 parameters.
    assert 8 * 177.6286e9 * tokens / 1e12 == pytest.approx(67.03, rel=0.003)
    peaks = [float(m) for m in re.findall(r"\| max allocated: ([\d.]+)", text)]
    assert run.memory["allocated"]["max_gib"] == max(peaks) / 1024
    assert run.memory["allocated"]["min_gib"] == min(peaks) / 1024
    assert run.memory["allocated"]["ranks"] == 64
    sizes = {"tp": "8", "pp": "8", "dp": "2", "mbs": "2", "gbs": "1024", "seq_len": "2048"}
    kinds = {"precision": "bf16", "recompute": "full", "sharding": "zero1", "gpu": "MI250X"}
    assert {name: run.row[name] for name in (*sizes, *kinds)} == sizes | kinds
    assert run.model is not None
    assert (run.model.num_layers, run.model.hidden_size) == (70, 14336)
    assert run.model.embedding_norm
    assert not refusals([run])


def test_parameters_of_the_175b_log_are_the_printed_ones(lumi):
    """``UNIQUE_PARAMS`` of DeepSpeed counts the padded embedding once."""
    run = ingest(lumi, {}).runs[0]
    assert run.model is not None
    printed = int(re.findall(r"UNIQUE_PARAMS=(\d+)", _text(lumi))[0])
    padded = run.model.model_copy(update={"vocab_size": 51200})
    # Norms and biases that TP replicates are counted once per TP rank there.
    assert padded.total_parameters() == pytest.approx(printed, rel=2e-3)


def test_mlperf_lora_on_8_mi300x(shared):
    path = shared / "logs" / "mlperf_llama2_70b_lora_mi300x_8gpu.log.gz"
    if not path.is_file():
        pytest.skip(f"the log {path} is not there")
    run = ingest(path, {"precision": "fp8", "recompute": "full"}).runs[0]
    rates = [float(r) for r in re.findall(r'"throughput": ([\d.]+)', _text(path))]
    rate = statistics.median(rates)
    assert run.iterations == len(rates) == 7
    assert float(run.row["step_time_s"]) == pytest.approx(8 / rate, rel=1e-5)
    assert float(run.row["tokens_per_s_per_gpu"]) == pytest.approx(rate * 8192 / 8, rel=1e-5)
    assert (run.row["model"], run.row["kind"], run.row["gpu"]) == ("llama2-70b", "lora", "MI300X")
    assert not refusals([run])


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("b200_eager.json.gz", "B200"),
        ("mi210_gpu_only.json.gz", ""),
        ("mi300x_bert-small.json.gz", "MI300X"),
        ("mi300x_qwen1.5-0.5b.json.gz", "MI300X"),
    ],
)
def test_traces_against_a_plain_sweep(shared, name, gpu):
    path = shared / "traces" / name
    if not path.is_file():
        pytest.skip(f"the trace {path} is not there")
    trace = ingest(path, {}).trace
    assert trace is not None
    assert trace.gpu == gpu
    events = json.loads(_text(path))["traceEvents"]
    busy = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kernels = [e for e in busy if e["cat"] == "kernel"]
    talk = [e for e in kernels if "nccl" in e["name"] or "multimem_all_reduce" in e["name"]]
    compute = [e for e in kernels if e not in talk]
    whole = trace.devices[0].whole
    assert whole.compute_us == pytest.approx(_covered(compute), abs=0.5)
    assert whole.communication_us == pytest.approx(_covered(talk), abs=0.5)
    exposed = _covered(kernels) - _covered(compute)
    assert whole.exposed_communication_us == pytest.approx(exposed, abs=0.5)
    total = max(e["ts"] + e["dur"] for e in busy) - min(e["ts"] for e in busy)
    assert whole.total_us == pytest.approx(total, abs=0.01)
    assert whole.idle_us == pytest.approx(total - _covered(busy), abs=0.5)
    assert sum(row.calls for row in trace.operators) == len(busy)
    assert sum(row.share for row in trace.operators) == pytest.approx(1)
    assert sum(r.total_us for r in trace.operators if r.category == "other") < 0.01 * total


def _covered(events: list[dict]) -> float:
    """Time in which any of the events runs."""
    covered, reach = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e["ts"]):
        stop = event["ts"] + event["dur"]
        covered += max(stop - max(event["ts"], reach), 0.0)
        reach = max(reach, stop)
    return covered


def test_document_shows_what_is_read(shared):
    """Every number of the table of traces in docs/ingest.md."""
    text = (Path(__file__).parents[2] / "docs" / "ingest.md").read_text()
    names = ("b200_eager", "mi210_gpu_only", "mi300x_bert-small", "mi300x_qwen1.5-0.5b")
    for name in names:
        path = shared / "traces" / f"{name}.json.gz"
        if not path.is_file():
            pytest.skip(f"the trace {path} is not there")
        trace = ingest(path, {}).trace
        assert trace is not None
        whole = trace.devices[0].whole
        times = (
            *(whole.total_us, whole.compute_us, whole.communication_us),
            *(whole.exposed_communication_us, whole.idle_us),
        )
        assert f"| {name} | " + " | ".join(f"{t / 1000:.3f}" for t in times) + " |" in text
