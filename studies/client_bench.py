"""Many clients on one storage, measured: trials claimed and told a second, and none twice."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from search.space import Space
from specs.errors import InputError
from studies.durability import AXES, PRELOADED, durability_job
from studies.ledger import Ledger
from studies.oracles import Evaluation
from studies.queue import OPEN, Queue, worker_name
from studies.storage import StorageAddress, open_storage, patiently
from studies.worker import PATIENCE_S

WIDER = {"cp": [1, 2, 4], "recompute_layers": list(range(17)), "precision": ["bf16", "fp8"]}
"""More configs than trials are wanted."""


@dataclass(frozen=True)
class Clients:
    """What was measured; ``doubled``, ``lost`` and ``gave_up`` must be 0.

    ``gave_up`` are clients that the storage did not answer for ``PATIENCE_S``.

    Times are seconds; ``claim_s`` and ``tell_s`` are the medians and 95th percentiles that a client
    saw, waiting for the server and for its own share of this machine included.
    """

    clients: int
    trials: int
    wall_s: float
    trials_per_s: float
    claim_s: tuple[float, float]
    tell_s: tuple[float, float]
    refused_connections: int
    gave_up: int
    lost: int
    doubled: int
    late: int

    def as_json(self) -> dict[str, Any]:
        """The findings as JSON."""
        return asdict(self)


def measure_clients(address: StorageAddress, clients: int, trials: int) -> Clients:
    """Lets ``clients`` processes empty a queue of ``trials`` as fast as they can.

    The study is deleted at the end. Evaluations take no time: real ones make far fewer demands.

    Raises:
        InputError: the storage cannot be used, or the study has fewer configs than ``trials``.
    """
    import optuna

    name = f"clients-{time.time_ns():x}"
    job = durability_job(name, AXES | WIDER)
    space = Space.of(job.experiment, job.cluster)
    if trials > len(space):
        raise InputError(f"--trials {trials}: the study of the bench has {len(space):,} configs.")
    configs = [config for chunk in space.chunks() for config in chunk.configs()]
    ledger = Ledger.open(address, name, {"clients": clients})
    for config in configs[:trials]:
        ledger.enqueue(config, "bench", "a benchmark")
    Queue(address, name).describe(OPEN, True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["studies.client_bench", *PRELOADED])
    start, answers = context.Barrier(clients + 1), context.SimpleQueue()
    processes = [
        context.Process(target=_client, args=(address, name, start, answers))
        for _ in range(clients)
    ]
    for process in processes:
        process.start()
    start.wait()
    began = time.monotonic()
    spent = [answers.get() for _ in processes]
    wall_s = time.monotonic() - began
    for process in processes:
        process.join()
    held = ledger.refresh()
    told = Counter(number for answer in spent for number in answer["told"])
    found = Clients(
        clients=clients,
        trials=len(held),
        wall_s=wall_s,
        trials_per_s=len(told) / wall_s,
        claim_s=_percentiles([s for answer in spent for s in answer["claim_s"]]),
        tell_s=_percentiles([s for answer in spent for s in answer["tell_s"]]),
        refused_connections=sum(answer["refused"] for answer in spent),
        gave_up=sum(answer["gave_up"] for answer in spent),
        lost=sum(not trial.state.is_finished() for trial in held),
        doubled=sum(count - 1 for count in told.values()),
        late=len(Queue(address, name).late()),
    )
    optuna.delete_study(study_name=name, storage=open_storage(address))
    return found


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    return float(np.median(seconds)), float(np.quantile(seconds, 0.95))


def _client(address: StorageAddress, name: str, start: Any, answers: Any) -> None:
    """Claims and tells until the queue is empty."""
    worker, refused = worker_name(), Counter[str]()
    queue = patiently(lambda: Queue(address, name), PATIENCE_S)
    queue.disconnect()
    claim_s: list[float] = []
    tell_s: list[float] = []
    told: list[int] = []

    def heard(sentence: str) -> None:
        refused[sentence] += 1

    start.wait()
    gave_up = False
    try:
        while True:
            began = time.monotonic()
            task = queue.patiently(lambda: queue.claim(worker), PATIENCE_S, heard)
            if task is None:
                break
            claim_s.append(time.monotonic() - began)
            outcome = Evaluation(float(task.number), -1.0, 1.0, {"trust": "none"}, 0.0)
            began = time.monotonic()
            queue.patiently(partial(queue.finish, task, outcome, worker), PATIENCE_S, heard)
            tell_s.append(time.monotonic() - began)
            told.append(task.number)
            queue.disconnect()
    except InputError:
        gave_up = True
    answers.put(
        {
            "claim_s": claim_s,
            "tell_s": tell_s,
            "told": told,
            "refused": refused.total(),
            "gave_up": gave_up,
        }
    )
