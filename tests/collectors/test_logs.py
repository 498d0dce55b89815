"""Each format's sample read into the row that was written into it; damage of every kind."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from collectors.ingestion import ingest, refusals
from collectors.logs.formats import FORMATS
from specs.errors import InputError
from tests.collectors.conftest import SAMPLES

GIB = 2**30


def test_megatron_lm(sample):
    run = sample("megatron_lm.log", gpu="H100-SXM").runs[0]
    row = run.row
    stated = {
        **{"framework": "Megatron-LM", "model": "llama3-8b", "num_gpus": "16", "dp": "4"},
        **{"tp": "2", "pp": "2", "cp": "1", "mbs": "1", "gbs": "128", "seq_len": "8192"},
        **{"precision": "bf16", "sharding": "zero1", "sequence_parallel": "1", "overlap": "dp"},
        **{"recompute": "selective", "recompute_modules": "core_attn", "schedule": "1f1b"},
        **{"source_date": "2026-02-03", "memory_counter": "allocated", "memory_unit": "GiB"},
    }
    assert {name: row[name] for name in stated} == stated
    # 12 iterations: one compiles, one is slow, one saves; the median of the other nine.
    assert run.warm_up == 1
    assert run.counted == [3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert float(row["step_time_s"]) == pytest.approx(8.7298)
    assert float(row["tokens_per_s_per_gpu"]) == pytest.approx(128 * 8192 / 8.7298 / 16, rel=1e-5)
    assert float(row["peak_mem_gb"]) == pytest.approx(60123.25 / 1024, rel=1e-5)
    assert run.memory["reserved"]["max_gib"] == pytest.approx((60123.25 + 3072) / 1024)
    assert not run.missing
    assert not refusals([run])


def test_primus_with_colours_and_prefixes(sample):
    run = sample("primus_mi300x.log").runs[0]
    row = run.row
    stated = {
        **{"framework": "Primus", "model": "mixtral-8x7b", "gpu": "MI300X", "num_gpus": "8"},
        **{"ep": "8", "etp": "1", "moe_dispatcher": "alltoall", "mbs": "2", "gbs": "256"},
        **{"recompute": "full", "recompute_method": "block", "recompute_layers": "4"},
        **{"source_date": "2026-03-04", "memory_counter": "device", "vendor": "amd"},
    }
    assert {name: row[name] for name in stated} == stated
    assert float(row["step_time_s"]) == pytest.approx(10.897)
    assert float(row["peak_mem_gb"]) == 174.25  # the busiest rank, printed by rocm-smi
    assert "Primus-Turbo" in row["notes"]
    assert not refusals([run])


@pytest.mark.parametrize("printed", ["A100-PCIE-40GB", "H100 NVL"])
def test_a_variant_that_the_catalog_lacks_is_not_taken_for_another(printed, tmp_path):
    text = (SAMPLES / "torchtitan_h100.log").read_text()
    path = tmp_path / "h100" / "train.log"
    path.parent.mkdir()
    path.write_text(text.replace("NVIDIA H100 80GB HBM3", f"NVIDIA {printed}"))
    run = ingest(path, {}).runs[0]
    assert "gpu" not in run.row
    assert "gpu" in run.missing
    assert any(f"gpu is left empty: there is no GPU {printed!r}" in note for note in run.notes)


def test_torchtitan(sample):
    run = sample("torchtitan_h100.log").runs[0]
    stated = {
        **{"framework": "TorchTitan", "model": "llama3-8b", "gpu": "H100-SXM", "num_gpus": "16"},
        **{"tp": "2", "pp": "1", "dp": "8", "mbs": "2", "gbs": "16", "seq_len": "8192"},
        **{"sharding": "fsdp", "recompute": "selective", "precision": "bf16"},
        **{"source_date": "2026-02-11", "memory_counter": "reserved"},
    }
    assert {name: run.row[name] for name in stated} == stated
    # Step 1 compiles and step 10 averages over what it compiled: the median of the other six.
    assert run.counted == [20, 30, 40, 50, 60, 70]
    tokens = (6447 + 6448) / 2
    assert float(run.row["tokens_per_s_per_gpu"]) == pytest.approx(tokens, rel=1e-5)
    assert float(run.row["step_time_s"]) == pytest.approx(16 * 8192 / tokens / 16, rel=1e-5)
    assert float(run.row["peak_mem_gb"]) == 46.63  # the fuller of the two ranks that printed
    assert "compiled" in run.row["notes"]
    assert not run.missing
    assert not refusals([run])


def test_torchtitan_of_another_size_is_not_named_after_the_catalog(read_text):
    text = (SAMPLES / "torchtitan_h100.log").read_text()
    run = read_text(text.replace("8,030,261,248", "6,270,976")).runs[0]
    assert run.model is None
    assert run.missing == ["model"]
    assert any("'llama3 8B' is no model of the catalog" in note for note in run.notes)


def test_megatron_deepspeed_with_rank_prefixes(sample):
    run = sample("megatron_deepspeed_mi250x.log").runs[0]
    row = run.row
    stated = {
        **{"framework": "Megatron-DeepSpeed", "gpu": "MI250X", "num_gpus": "32", "tp": "2"},
        **{"pp": "4", "precision": "fp16", "sharding": "zero1", "recompute": "full"},
        **{"recompute_method": "uniform", "recompute_layers": "1", "gpus_per_node": "8"},
    }
    assert {name: row[name] for name in stated} == stated
    assert "no flash attention" in row["notes"]
    assert run.model is not None
    assert run.model.vocab_size == 50257
    allocated = run.memory["allocated"]
    assert (allocated["max_rank"], allocated["ranks"]) == (0, 8)
    assert allocated["max_gib"] == pytest.approx(26000.5 / 1024)
    assert allocated["min_gib"] == pytest.approx((26000.5 - 2800) / 1024)
    assert run.memory["device"]["max_gib"] == pytest.approx(0.67 * 64)
    assert not refusals([run])


def test_mlperf(sample):
    run = sample("mlperf.log").runs[0]
    row = run.row
    stated = {"model": "llama3.1-8b", "gpu": "MI325X", "num_gpus": "16", "gbs": "32", "tp": "1"}
    assert {name: row[name] for name in stated} == stated
    assert run.warm_up == 1
    assert float(row["step_time_s"]) == pytest.approx(32 / 41.25, rel=1e-5)
    assert not refusals([run])


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("rocm_smi_meminfo.txt", (150323855360 + 7 * 1073741824) / GIB),
        ("nvidia_smi.txt", 72345 / 1024),
        ("nvidia_smi_query.csv", 61234 / 1024),
    ],
)
def test_memory_tables(sample, name, gib):
    run = sample(name).runs[0]
    assert run.memory["device"]["max_gib"] == pytest.approx(gib)
    assert run.format == "memory"


def test_out_of_memory_is_a_labelled_lower_bound(sample):
    run = sample("oom_cuda.log", gpu="H100-SXM").runs[0]
    assert run.row["run_id"] == "oom_cuda-oom"
    # Rank 3 held less than rank 1 but asked for more: 72.41 + 3.91.
    assert float(run.row["peak_mem_gb"]) == pytest.approx(76.32)
    assert run.row["memory_counter"] == "allocated"
    assert "expandable_segments" not in run.row["notes"]  # the error only advises it
    assert not refusals([run])
    old_words = sample("oom_hip.log").runs[0]
    assert float(old_words.row["peak_mem_gb"]) == pytest.approx(62.12)


def test_every_format_has_a_sample():
    read = {run.format for path in SAMPLES.iterdir() for run in ingest(path, {}).runs}
    assert {log_format.name for log_format in FORMATS} <= read


def test_rows_survive_the_csv(sample, tmp_path):
    from specs.models_json import models_json, models_text
    from specs.run_columns import runs_csv
    from specs.runs import read_runs

    names = ("primus_mi300x.log", "megatron_deepspeed_mi250x.log", "mlperf.log")
    runs = [sample(name).runs[0] for name in names]
    (tmp_path / "runs.csv").write_text(runs_csv(run.row for run in runs))
    (tmp_path / "models.json").write_text(models_text(run.model for run in runs))
    file = models_json(tmp_path / "models.json")
    assert [file.find(run.model.name) for run in runs] == [
        run.model.model_copy(update={"name": run.model.name}) for run in runs
    ]
    table = read_runs(tmp_path / "runs.csv", file.find)
    assert not table.refused
    assert table.tokens_per_s_per_gpu == pytest.approx(
        [float(run.row["tokens_per_s_per_gpu"]) for run in runs]
    )
    assert list(table.config.recompute_layers) == [4, 1, 0]


LINES = (SAMPLES / "megatron_lm.log").read_text().splitlines()
START = next(i for i, line in enumerate(LINES) if " iteration " in line)


def test_interleaved_ranks_and_merged_records(read_text):
    """Two records printed into one line are two; another rank's copies count once."""
    lines = [*LINES[:START], LINES[START] + LINES[START + 1], *LINES[START + 2 :]]
    mixed = [text for line in lines for text in (line, f"  7: {line}", "12: noise")]
    run = read_text("\n".join(mixed)).runs[0]
    assert run.iterations == 12
    assert float(run.row["step_time_s"]) == pytest.approx(8.7298)


def test_cut_lines_say_nothing(read_text):
    cut = [line[: line.index("(ms): ") + 8] if " iteration " in line else line for line in LINES]
    run = read_text("\n".join([*cut, *LINES[-2:]])).runs[0]
    assert run.iterations == 2
    assert any("cut" in note for note in run.notes)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_foreign_locales(tmp_path, encoding):
    """Decimal commas, and bytes of any encoding."""
    text = "\n".join(LINES).replace("training ...", "Trainingslauf für Müller: läuft")
    for line in LINES[START:]:
        if "(ms)" in line:
            text = text.replace(line, line.replace(".", ","))
    path = tmp_path / "lauf.log"
    path.write_bytes(text.encode(encoding))
    run = ingest(path, {}).runs[0]
    assert float(run.row["step_time_s"]) == pytest.approx(8.7298)


def test_second_run_in_one_file(read_text):
    runs = read_text("\n".join([*LINES, *LINES])).runs
    assert [run.row["run_id"] for run in runs] == ["run-1", "run-2"]
    assert [run.iterations for run in runs] == [12, 12]


def test_batch_ramp_up_is_left_out(read_text):
    steps = [line for line in LINES if " iteration " in line]
    ramp = [line.replace("batch size:   128", "batch size:    32") for line in steps[:4]]
    run = read_text("\n".join([*LINES[:START], *ramp, *steps[4:]])).runs[0]
    assert run.row["gbs"] == "128"
    assert run.iterations == 8
    assert any("another global batch size" in note for note in run.notes)


def test_cut_argument_dump_leaves_the_results(read_text):
    place = next(i for i, line in enumerate(LINES) if " seq_length " in line)
    run = read_text("\n".join([*LINES[:place], *LINES[START:]])).runs[0]
    assert float(run.row["step_time_s"]) == pytest.approx(8.7298)
    assert "tp" in run.missing


def test_truncated_gzip_gives_what_is_there(tmp_path):
    packed = gzip.compress((SAMPLES / "megatron_lm.log").read_bytes())
    path = tmp_path / "cut.log.gz"
    path.write_bytes(packed[: int(len(packed) * 0.9)])
    run = ingest(path, {}).runs[0]
    assert run.row["tp"] == "2"
    assert any("cut or damaged" in note for note in run.notes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no training log"),
        (b"hello\nworld\n", "holds no training log"),
        (bytes(range(8)) * 5000, "neither text nor a trace"),
        (b'{"traceEvents": []}', "none of a GPU"),
        (b"\x1f\x8b not gzip", "cut or damaged"),
    ],
)
def test_what_is_no_log_is_one_sentence(tmp_path, content, words):
    path = tmp_path / "x.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        ingest(path, {})


def test_missing_file_folder_and_column(tmp_path):
    for path in (tmp_path / "nothing.log", tmp_path):
        with pytest.raises(InputError):
            ingest(path, {})
    with pytest.raises(InputError, match="no column 'colour'"):
        ingest(SAMPLES / "mlperf.log", {"colour": "red"})
    with pytest.raises(InputError, match="no GPU"):
        ingest(SAMPLES / "mlperf.log", {"gpu": "MI9000"})


def test_host_out_of_memory_is_no_point(read_text):
    text = "\n".join([*LINES, "slurmstepd: error: Detected 1 oom-kill event(s) in step 1.0"])
    run = read_text(text).runs[0]
    assert not run.out_of_memory
    assert any("host ran out of memory" in note for note in run.notes)


def test_what_the_user_states_wins(sample):
    run = sample("mlperf.log", tp="2", precision="fp8", num_gpus="32").runs[0]
    assert (run.row["tp"], run.row["precision"]) == ("2", "fp8")
    assert float(run.row["tokens_per_s_per_gpu"]) == pytest.approx(41.25 * 8192 / 32, rel=1e-5)


def test_long_lines_are_cut_not_held(tmp_path: Path):
    path = tmp_path / "long.log"
    with path.open("w") as file:
        for _ in range(64):
            file.write("x" * 2**20)
        file.write("\n" + "\n".join(LINES))
    assert ingest(path, {}).runs[0].iterations == 12


def test_rates_that_are_not_positive_were_not_measured(tmp_path):
    text = (SAMPLES / "torchtitan_h100.log").read_text()
    path = tmp_path / "train.log"
    path.write_text(text.replace("tflops: ", "tflops: -"))
    run = ingest(path, {}).runs[0]
    assert "tflops_per_gpu" not in run.row
    assert run.row["tokens_per_s_per_gpu"]
