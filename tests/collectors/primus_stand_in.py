"""A stand-in for an installed Primus: prints what its projection prints, or fails as it fails.

It checks the command as Primus' argument parser would, and reads the experiment that it is given.
"""

from __future__ import annotations

import stat
import sys
from pathlib import Path

SAMPLES = Path(__file__).parent / "primus_samples"

PROGRAM = """#!{python}
import argparse, json, os, pathlib, sys, time
import yaml
samples, how = pathlib.Path({samples!r}), {how!r}
assert sys.argv[1:4] == ["direct", "--", "projection"], sys.argv
parser = argparse.ArgumentParser()
suites = parser.add_subparsers(dest="suite", required=True)
both = []
for suite in ("memory", "performance"):
    one = suites.add_parser(suite)
    one.add_argument("--config", required=True)
    one.add_argument("--target-nodes", type=int)
    one.add_argument("--pipeline-schedule-algorithm")
    both.append(one)
memory, performance = both
memory.add_argument("--memory-mode", choices=["simulate", "benchmark", "both"])
memory.add_argument("--load-benchmark")
performance.add_argument("--profiling-mode", choices=["simulate", "benchmark", "both"])
performance.add_argument("--gpu-arch", choices=["mi300x", "mi325x", "mi355x"])
performance.add_argument("--benchmark-gpus", type=int)
performance.add_argument("--save-benchmark")
performance.add_argument("--enable-zero-bubble", action="store_true")
performance.add_argument("--enable-deepep", action="store_true")
performance.add_argument("--sync-free-stage", type=int)
performance.add_argument("--num-virtual-stages-per-pipeline-rank", type=int)
asked = parser.parse_args(sys.argv[4:])
overrides = yaml.safe_load(open(asked.config))["modules"]["pre_trainer"]["overrides"]
with open({calls!r}, "a") as file:
    json.dump({{**vars(asked), "nnodes": os.environ["NNODES"], "overrides": overrides}}, file)
    file.write("\\n")
if how == "crash":
    print("Traceback (most recent call last):\\n  File \\"simulator.py\\", line 1, in run")
    print("ZeroDivisionError: float division by zero", file=sys.stderr)
    sys.exit(1)
if how == "garbage":
    print("Tokens/s/GPU: many"); sys.exit(0)
if how == "hang":
    time.sleep(600)
if asked.suite == "memory":
    if asked.memory_mode == "benchmark":
        assert json.load(open(asked.load_benchmark)) == "a benchmark"
    print((samples / f"memory_{{asked.memory_mode}}.txt").read_text()); sys.exit(0)
if asked.save_benchmark:
    json.dump("a benchmark", open(asked.save_benchmark, "w"))
gpus = asked.target_nodes * int(os.environ["GPUS_PER_NODE"])
speed = 4000.0 + 300 * overrides["micro_batch_size"]
tokens = overrides["global_batch_size"] * overrides["seq_length"]
claimed = speed * (2 if how == "contradiction" else 1)
text = (samples / "performance.txt").read_text()
text = text.replace("@ITERATION@", f"{{tokens / speed / gpus * 1e3:,.3f}}")
print(text.replace("@SPEED@", f"{{claimed:,.0f}}"))
"""


def install(folder: Path, how: str = "works") -> Path:
    """Writes the stand-in as ``primus-cli`` into a folder; calls are logged beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "primus-cli"
    program.write_text(
        PROGRAM.format(
            python=sys.executable,
            samples=str(SAMPLES),
            how=how,
            calls=str(folder / "calls.jsonl"),
        )
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program
