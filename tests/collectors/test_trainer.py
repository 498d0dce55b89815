"""The reference trainer: however a run is split over ranks, it learns the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collectors.ingestion import ingest
from collectors.trainer.from_config import settings_of
from collectors.trainer.settings import Settings, SettingsError, flags, parse
from specs.choices import Precision, Recompute, RecomputeMethod, Schedule, Sharding
from specs.config import TrainingConfig
from specs.errors import InputError
from specs.model import Model
from specs.workload import Workload
from tests.nursery import python_with
from tests.warm import TORCH

pytest.importorskip("torch", reason="the reference trainer needs PyTorch")

ROOT = Path(__file__).resolve().parents[2]
SIZES = {
    **{"num-layers": 4, "hidden-size": 64, "ffn-hidden-size": 96, "num-attention-heads": 4},
    **{"num-query-groups": 2, "kv-channels": 16, "vocab-size": 128, "seq-length": 32},
    **{"global-batch-size": 8, "train-iters": 3, "lr": "1e-2"},
}
DENSE = " ".join(f"--{name} {value}" for name, value in SIZES.items()) + " --skip-memory-step"
MOE = DENSE + " --num-experts 4 --moe-ffn-hidden-size 48"
TP = " --tensor-model-parallel-size 2 --sequence-parallel"
PP = " --pipeline-model-parallel-size 2"
TWO_CHUNKS = PP + " --virtual-pipeline-model-parallel-size 2"
EP = " --expert-model-parallel-size 2"
FULL = " --recompute-granularity full"

ALONE = {
    "dense": DENSE,
    "dense, full recomputation": DENSE + FULL,
    "dense, mbs 4": DENSE + " --micro-batch-size 4",
    "moe": MOE,
    "bf16": DENSE + " --bf16",
}
ON_TWO = {
    "dense": {
        "replicas": DENSE,
        "ZeRO-1": DENSE + " --sharding zero1",
        "FSDP2, mbs 2, full recomputation": DENSE + FULL + " --sharding fsdp --micro-batch-size 2",
        "TP": DENSE + " --tensor-model-parallel-size 2",
        "TP with SP, full recomputation": DENSE + TP + FULL,
        "TP with SP, selective recomputation": DENSE + TP + " --recompute-granularity selective",
        "1F1B": DENSE + PP,
        "GPipe": DENSE + PP + " --pipeline-schedule gpipe",
        "interleaved": DENSE + TWO_CHUNKS + " --pipeline-schedule interleaved",
        "ZB-H1": DENSE + PP + " --pipeline-schedule zb-h1",
        "ZBV, full recomputation": DENSE + TWO_CHUNKS + FULL + " --pipeline-schedule zbv",
    },
    "moe": {
        "MoE replicas": MOE,
        "EP, ZeRO-1": MOE + EP + " --sharding zero1",
        "EP, FSDP2": MOE + EP + " --sharding fsdp",
        "TP, EP": MOE + TP + EP,
        "MoE, ZBV": MOE + TWO_CHUNKS + " --pipeline-schedule zbv",
    },
    "bf16": {
        "bf16 FSDP2": DENSE + " --bf16 --sharding fsdp",
        "bf16 ZBV": DENSE + " --bf16 --pipeline-schedule zbv" + TWO_CHUNKS,
    },
}


def launched(
    ranks: int, *program: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """A torchrun of this machine; ``python`` runs the ranks."""
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHON_EXEC": python}
    return subprocess.run(
        [python_with(TORCH), *start, *program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | environment,
        cwd=ROOT,
    )


def losses(folder: Path, ranks: int, cases: dict[str, str]) -> dict[str, list[float]]:
    """Losses of each step of each case."""
    out = folder / f"losses_{ranks}.json"
    split = {name: line.split() for name, line in cases.items()}
    cases_of = ("tests/collectors/trainer_cases.py", str(out), json.dumps(split))
    done = launched(ranks, *cases_of, python=python_with(TORCH))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[float]] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("alone"), 1, ALONE)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    cases = {name: line for group in ON_TWO.values() for name, line in group.items()}
    return losses(tmp_path_factory.mktemp("two"), 2, cases)


def test_the_loss_moves_with_the_weights(alone):
    # Each step sees other random tokens, so that losses stay near ln(128): what must show is
    # that steps differ by more than the tolerance of the comparisons below.
    dense = alone["dense"]
    assert len(dense) == 3
    assert max(dense) - min(dense) > 1e-3
    assert abs(alone["bf16"][2] / dense[2] - 1) > 1e-6


@pytest.mark.parametrize("name", ["dense, full recomputation", "dense, mbs 4"])
def test_recomputation_and_accumulation_change_no_loss(alone, name):
    assert alone[name] == pytest.approx(alone["dense"], rel=2e-5)


@pytest.mark.parametrize(
    ("reference", "name"),
    [(reference, name) for reference, group in ON_TWO.items() for name in group],
)
def test_two_ranks_learn_what_one_learns(alone, on_two, reference, name):
    tolerance = 2e-3 if reference == "bf16" else 2e-5
    assert on_two[name] == pytest.approx(alone[reference], rel=tolerance)


def test_log_is_read_back(tmp_path):
    line = (DENSE + TWO_CHUNKS + FULL + " --bf16 --pipeline-schedule zbv").split()
    line.remove("--skip-memory-step")
    warm = python_with(TORCH)
    done = launched(2, "-m", "collectors.trainer", *line, "--train-iters", "4", python=warm)
    assert done.returncode == 0, done.stderr[-3000:]
    log = tmp_path / "run.log"
    log.write_text(done.stdout)
    run = ingest(log, {"gpu": "MI300X"}).runs[0]
    stated = {
        **{"framework": "foretune trainer", "num_gpus": "2", "tp": "1", "pp": "2", "vpp": "2"},
        **{"mbs": "1", "gbs": "8", "seq_len": "32", "precision": "bf16", "sharding": "none"},
        **{"schedule": "zbv", "recompute": "full", "memory_counter": "allocated"},
    }
    assert {name: run.row[name] for name in stated} == stated
    assert float(run.row["step_time_s"]) > 0
    # Weights in bf16, gradients, masters and two moments in fp32: 18 bytes a parameter at least.
    model = run.model
    assert model is not None
    first_stage = 2 * (model.total_parameters() - 2 * 128 * 64 - 64) // 4 + 128 * 64
    assert float(run.row["peak_mem_gb"]) * 2**30 > 18 * first_stage
    assert run.memory["reserved"]["ranks"] == 2


def test_memory_runs_out_for_real(tmp_path):
    sizes = "--hidden-size 512 --ffn-hidden-size 1408 --vocab-size 4096 --train-iters 1"
    line = [*sizes.split(), "--memory-limit-gib", "0.45"]
    done = launched(2, "-m", "collectors.trainer", *line)
    assert done.returncode != 0
    assert "DefaultCPUAllocator: can't allocate memory" in done.stderr
    log = tmp_path / "run.log"
    log.write_text(done.stdout + done.stderr)
    run = ingest(log, {}).runs[0]
    assert run.out_of_memory
    assert run.row["tp"] == "1"


def test_command_line_round_trip():
    settings = Settings(sequence_parallel=True, pipeline_schedule="zbv", lr=0.25, num_experts=8)
    assert parse(flags(settings)) == settings


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tensor_model_parallel_size": 3}, "tp"),
        ({"micro_batch_size": 3}, "gbs"),
        ({"expert_model_parallel_size": 2}, "ep"),
        ({"pipeline_model_parallel_size": 2, "pipeline_schedule": "zbv"}, "zbv"),
        ({"num_layers": 5, "pipeline_model_parallel_size": 2}, "layers"),
    ],
)
def test_impossible_settings_are_refused(changes, word):
    with pytest.raises(SettingsError, match=word):
        Settings(**changes).check(2)


GPT = Model(
    **{"name": "tiny", "num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 96},
    **{"num_attention_heads": 4, "num_query_groups": 2, "head_dim": 16, "vocab_size": 128},
)
WORKLOAD = Workload(model=GPT, seq_len=32, global_batch_size=8)


def test_config_becomes_settings():
    config = TrainingConfig(
        **{"pp": 2, "vpp": 2, "schedule": Schedule.ZBV, "mbs": 2, "precision": Precision.BF16},
        **{"recompute": Recompute.FULL, "recompute_method": RecomputeMethod.UNIFORM},
        **{"recompute_layers": 1, "sharding": Sharding.FSDP},
    )
    settings = settings_of(config, WORKLOAD, 2, steps=5, memory_limit_gib=0.5)
    assert settings.bf16
    assert settings.sharding == "none"  # one replica has nothing to shard
    assert (settings.pipeline_schedule, settings.chunks) == ("zbv", 4)
    assert (settings.recompute_granularity, settings.recompute_num_layers) == ("full", 1)
    assert (settings.train_iters, settings.memory_limit_gib) == (5, 0.5)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"cp": 2}, "context"),
        ({"schedule": Schedule.V_MIN, "pp": 2, "vpp": 2}, "v-min"),
        ({"precision": Precision.FP8}, "fp8"),
        ({"mbs": 3, "sharding": Sharding.NONE}, "gbs"),
    ],
)
def test_what_the_trainer_lacks_is_said(changes, word):
    with pytest.raises(InputError, match=word):
        settings_of(TrainingConfig(**changes), WORKLOAD, 2, steps=1)
