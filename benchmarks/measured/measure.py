"""Measures every config of the ground truth with the reference trainer, in rounds, resumably.

    OMP_NUM_THREADS=1 python -m benchmarks.measured.measure --minutes 11 --out runs.jsonl

Each run is two processes forked from this one, which has PyTorch imported but never used it: they
are as fresh as torchrun's without the seconds of importing. Rounds are interleaved: the second
round of a config comes after the first of all others, so that drift of the machine shows.
``others_s`` of a run is processor time that other programs took meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._tools
import torch.distributed.pipelining

from benchmarks.measured.space import STUDIES, ground_truth
from collectors.trainer.from_config import settings_of
from collectors.trainer.loop import OUT_OF_MEMORY, is_out_of_memory, train
from collectors.trainer.settings import Settings
from studies.inputs import resolve
from studies.job import Job

STEPS = 4
NEAR = 0.8
"""Share of the memory limit below which a config is not run again under it: it fits."""
RUN_LIMIT_S = 60.0


def child(settings: Settings, rank: int, world: int, folder: Path) -> None:
    """One rank, in a forked process; never returns."""
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=RUN_LIMIT_S),
        )
        train(settings, torch.device("cpu"))
        code = 0
    except BaseException as error:
        print(f"[Rank {rank}] {type(error).__name__}: {error}", flush=True)
        code = OUT_OF_MEMORY if is_out_of_memory(error) else 1
    finally:
        sys.stdout.flush()
        os._exit(code)


def run(settings: Settings, world: int) -> dict[str, Any]:
    """Runs all ranks; their exit codes (negative: a signal) and what they printed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started, busy, own = time.monotonic(), machine_busy_s(), children_s()
        sys.stdout.flush()
        children = []
        for rank in range(world):
            process = os.fork()
            if process == 0:
                child(settings, rank, world, folder)
            children.append(process)
        codes: dict[int, int] = {}
        while len(codes) < world:
            done, status = os.waitpid(-1, os.WNOHANG)
            if done:
                codes[children.index(done)] = os.waitstatus_to_exitcode(status)
            late = time.monotonic() - started > RUN_LIMIT_S
            if late or any(codes.values()):
                # A rank that failed leaves the others waiting.
                for rank, process in enumerate(children):
                    if rank not in codes:
                        os.kill(process, signal.SIGKILL)
                        codes[rank] = -signal.SIGKILL
                        os.waitpid(process, 0)
            time.sleep(0.005)
        text = "".join((folder / f"rank{rank}.log").read_text() for rank in range(world))
        return {
            "exit_codes": [codes[rank] for rank in range(world)],
            "wall_s": round(time.monotonic() - started, 3),
            "others_s": round(machine_busy_s() - busy - (children_s() - own), 3),
            "log": [line for line in text.splitlines() if _is_kept(line)],
        }


def machine_busy_s() -> float:
    """Seconds that the processors of this machine have worked, for whomever."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]
    user, nice, system, _idle, _wait, interrupt, soft, steal = map(int, fields)
    ticks = user + nice + system + interrupt + soft + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def children_s() -> float:
    """Seconds that ended children of this process have worked."""
    used = os.times()
    return used.children_user + used.children_system


def _is_kept(line: str) -> bool:
    """Lines that say what happened; the argument dump follows from the config."""
    return " iteration " in line or "memory (MB)" in line or line.startswith("[Rank ")


def peak_gib(row: dict[str, Any]) -> float:
    """Highest resident growth of the ranks of a run; 0 where it printed none."""
    found = re.findall(r"max reserved: ([\d.]+)", "\n".join(row["log"]))
    return max(map(float, found), default=0.0) / 1024


def wanted(rounds: int) -> Iterator[tuple[str, int, str, Settings, Job]]:
    """(study, round, config, settings, job), round after round."""
    jobs = {name: resolve(str(path)) for name, path in STUDIES.items()}
    for number in range(rounds):
        for name, job in jobs.items():
            for config in ground_truth(job):
                labels = json.dumps(config.as_labels())
                gpus = job.cluster.num_gpus
                settings = settings_of(config, job.experiment.workload, gpus, STEPS)
                yield name, number, labels, settings, job


def main() -> int:
    """Measures until the time is over; exit code 1 while something is left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=11.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--limit", action="store_true", help="make the memory limit real, two steps"
    )
    parser.add_argument("--most", type=int, default=10**9, help="runs at most")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    if options.out.exists():
        rows = [json.loads(line) for line in options.out.read_text().splitlines()]
    known = {(row["study"], row["round"], row["config"], row["limit_gib"] > 0) for row in rows}
    peaks = {(row["study"], row["config"]): peak_gib(row) for row in rows if row["round"] == 0}
    end, made = time.monotonic() + 60 * options.minutes, 0
    for study, number, labels, settings, job in wanted(options.rounds):
        if (study, number, labels, options.limit) in known:
            continue
        if time.monotonic() > end or made >= options.most:
            return 1
        limit_gib = job.cluster.gpu.hbm_gib.value if options.limit else 0.0
        if options.limit:
            runtime_gib = job.experiment.stack.runtime_gib or 0.0
            if peaks.get((study, labels), limit_gib) + runtime_gib < NEAR * limit_gib:
                continue
            settings = replace(settings, train_iters=2, memory_limit_gib=limit_gib)
        # The first round counts tensors in a step of its own; the others need not.
        settings = replace(settings, skip_memory_step=number > 0 or options.limit)
        row = {"study": study, "round": number, "config": labels, "limit_gib": limit_gib}
        row |= {"started": time.time(), **run(settings, job.cluster.num_gpus)}
        made += 1
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
