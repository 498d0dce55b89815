"""Runs a plan: every pair once, over all cores, kept as soon as it is known."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from specs.errors import InfeasibleError, InputError
from specs.formats.plan import Plan
from studies.calibrating import calibrated_by
from studies.files import (
    checked_folder,
    name_from,
    study_folder,
    to_json,
    write_atomically,
)
from studies.plan.costs import Cost, Smallest, cost, power_source, price_of, smallest
from studies.plan.pair import Pair, PairResult, evaluate
from studies.progress import Progress, silent

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """A pair with what it costs; ``cost`` is None where no config runs or no tokens are named."""

    pair: PairResult
    cost: Cost | None
    deadline_days: float | None
    scaling: float | None
    """Tokens/s/GPU over that of the smallest size of the same cluster on which anything fits."""


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """A finished plan: one row a pair, in the order of the YAML, and the smallest clusters."""

    plan: Plan
    folder: Path
    rows: tuple[PlanRow, ...]
    smallest: tuple[Smallest, ...]
    resumed: int
    changed: int
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The result as ``foretune plan --json`` prints it."""
        return {
            "name": self.plan.name,
            "pairs": [
                {
                    **{k: v for k, v in asdict(row.pair).items() if k != "inputs_hash"},
                    "cost": None if row.cost is None else asdict(row.cost),
                    "deadline_days": row.deadline_days,
                    "scaling": row.scaling,
                }
                for row in self.rows
            ],
            "smallest": [asdict(found) for found in self.smallest],
            "resumed": self.resumed,
            "changed": self.changed,
            "notes": list(self.notes),
        }


CORE = (
    "core spaces keep number format, dispatcher, overlap and sharding of the baseline; --space "
    "full tries them too and may be much faster, above all for MoE models."
)


def run_plan(
    plan: Plan,
    out: Path,
    full: bool | None = None,
    jobs: int | None = None,
    progress: Progress = silent,
    calibration: Path | None = None,
) -> PlanResult:
    """Projects every pair that is not known yet; a killed plan goes on where it stopped.

    Args:
        plan: what to weigh.
        out: folder of results; finished pairs are kept in ``out/NAME/pairs``.
        full: vary every axis, or the core ones only; None: as the plan says.
        jobs: worker processes; None: one a core.
        progress: of the pairs.
        calibration: a file that ``foretune calibrate`` wrote.

    Raises:
        InputError: a folder cannot be written, the file is no calibration of this version, or a
            worker was killed.
        InfeasibleError: no config runs on any pair; says what is nearest.
    """
    checked_folder(out)
    if calibration is not None:
        calibrated_by(calibration)
    folder = study_folder(out, name_from(plan.name))
    form = plan.settings.space == "full" if full is None else full
    pairs = [Pair(w, c, form, calibration) for w in plan.workloads for c in plan.clusters]
    store = _Store(folder / "pairs")
    known, missing = store.known(pairs)
    with progress("pairs", len(pairs)) as advance:
        advance(len(known))
        for index, result in _evaluated(pairs, missing, jobs or os.cpu_count() or 1):
            store.keep(pairs[index], result)
            known[index] = result
            advance(1)
    results = [known[index] for index in range(len(pairs))]
    if not any(result.best for result in results):
        raise InfeasibleError(_nothing_runs(results))
    rows = _rows(plan, pairs, results)
    return PlanResult(
        plan=plan,
        folder=folder,
        rows=rows,
        smallest=smallest((row.pair, row.cost, row.deadline_days) for row in rows),
        resumed=len(pairs) - len(missing),
        changed=store.changed,
        notes=(*(() if form else (CORE,)), *_notes(plan, rows)),
    )


class _Store:
    """Finished pairs on disk: one file each, named after the pair and the hash of its inputs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._older: set[str] = set()
        self.changed = 0

    def known(self, pairs: Sequence[Pair]) -> tuple[dict[int, PairResult], dict[int, str]]:
        """(result of each pair that is kept, input hash of each that is to be projected)."""
        found: dict[int, PairResult] = {}
        missing: dict[int, str] = {}
        held = {path.name for path in self._folder.glob("*.json")}
        self._older = {name.rsplit(".", 2)[0] for name in held}
        for index, pair in enumerate(pairs):
            inputs_hash = pair.inputs_hash()
            path = self._path(pair, inputs_hash)
            result = _read(path) if path.name in held else None
            if result is None:
                missing[index] = inputs_hash
                self.changed += path.name.rsplit(".", 2)[0] in self._older
            else:
                found[index] = result
        return found, missing

    def keep(self, pair: Pair, result: PairResult) -> None:
        """Writes a result and forgets what was known of the pair with other inputs."""
        path = self._path(pair, result.inputs_hash)
        write_atomically(path, to_json(result.as_json()) + "\n")
        stem = path.name.rsplit(".", 2)[0]
        if stem in self._older:
            for old in self._folder.glob(f"{stem}.*.json"):
                if old != path:
                    old.unlink(missing_ok=True)

    def _path(self, pair: Pair, inputs_hash: str) -> Path:
        """The file of a pair: names that are made safe may collide, hence the hash of the label."""
        names = "-".join(name_from(n)[:40] for n in (pair.workload.name, pair.cluster.name))
        label = hashlib.sha256(pair.label.encode()).hexdigest()[:8]
        nodes = pair.cluster.cluster.num_nodes
        return self._folder / f"{names}-{nodes}-{label}.{inputs_hash}.json"


def _read(path: Path) -> PairResult | None:
    """A kept result; None where the file is of another version: the pair is then done again."""
    try:
        return PairResult.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _evaluated(
    pairs: Sequence[Pair], missing: Mapping[int, str], jobs: int
) -> Iterator[tuple[int, PairResult]]:
    """(pair, result) in the order in which they are known; a bug in one pair comes last."""
    if jobs == 1 or len(missing) <= 1:
        for index, inputs_hash in missing.items():
            yield index, evaluate(pairs[index], inputs_hash)
        return
    failure: BaseException | None = None
    with _pool(min(jobs, len(missing))) as pool:
        waiting = [*missing][::-1]
        running: dict[Future[PairResult], int] = {}
        while waiting or running:
            while waiting and len(running) < 2 * jobs:
                index = waiting.pop()
                running[pool.submit(evaluate, pairs[index], missing[index])] = index
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                index = running.pop(done)
                error = done.exception()
                if isinstance(error, BrokenProcessPool):
                    raise InputError(
                        "a worker process was killed, as happens when memory runs out; run the "
                        "same command again with --jobs 1: finished pairs are kept."
                    )
                if error is not None:
                    failure = failure or error
                else:
                    yield index, done.result()
    if failure is not None:
        raise failure


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes of one thread each; those that wait are dropped when the plan stops."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _rows(plan: Plan, pairs: Sequence[Pair], results: Sequence[PairResult]) -> tuple[PlanRow, ...]:
    """The rows with costs, deadlines and scaling."""
    settings = plan.settings
    reference: dict[tuple[str, str], PairResult] = {}
    for result in sorted(results, key=lambda r: r.num_gpus):
        if result.best:
            reference.setdefault((result.workload, result.cluster), result)
    rows = []
    for pair, result in zip(pairs, results, strict=True):
        tokens = pair.workload.tokens or result.target_tokens or settings.tokens
        deadline = pair.workload.deadline_days or settings.deadline_days
        spent = scaling = None
        if result.best and tokens:
            spent = cost(result, pair.cluster.cluster, settings, tokens, deadline)
        if result.best:
            first = reference[result.workload, result.cluster].best
            assert first is not None
            scaling = result.best.tokens_per_s_per_gpu / first.tokens_per_s_per_gpu
        rows.append(
            PlanRow(
                pair=result,
                cost=spent,
                deadline_days=deadline if tokens else None,
                scaling=scaling,
            )
        )
    return tuple(rows)


def _notes(plan: Plan, rows: Sequence[PlanRow]) -> tuple[str, ...]:
    """What costs rest on, one sentence each."""
    settings = plan.settings
    notes = []
    if not any(row.cost for row in rows):
        notes.append("no token count is named (tokens: 2e12), so nothing is said of cost and time.")
        return tuple(notes)
    gpus = {size.cluster.gpu.name: size.cluster.gpu for size in plan.clusters}
    watts = "; ".join(power_source(gpu) for gpu in gpus.values())
    notes.append(
        f"energy: what the board may draw, all the time, times a PUE of {settings.pue:g}: {watts}."
    )
    if settings.pue == 1.0:
        notes.append("no PUE is named (pue: 1.2): cooling and power supply are not counted.")
    if settings.goodput == 1.0:
        notes.append("no goodput is named (goodput: 0.9): no time is lost to failures or tests.")
    unpriced = [s.name for s in plan.clusters if price_of(s.cluster, settings) is None]
    if unpriced:
        names = ", ".join(dict.fromkeys(unpriced))
        notes.append(f"no price is named for {names} (price_usd_per_gpu_hour: 2.5).")
    return tuple(notes)


def _nothing_runs(results: Sequence[PairResult]) -> str:
    """Which pair is nearest to running, as one sentence."""
    near = [r for r in results if r.missing_gib is not None]
    nearest = min(near, key=lambda r: r.missing_gib or 0.0) if near else results[0]
    return (
        f"no config runs on any of the {len(results):,} pairs; the nearest is {nearest.workload} "
        f"on {nearest.cluster} ({nearest.num_gpus:,} GPUs): {nearest.why}"
    )
