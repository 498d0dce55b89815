"""A candidate against a base: fresh processes, interleaved runs, a control in every block."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from studies.toolbox.bundle import Bundle
from studies.toolbox.decision import Floats, Judgement, Rule, contrasts, judge
from studies.toolbox.process import Launch, Worker

ARMS = ("base", "control", "candidate")
Log = Callable[[str, Mapping[str, Any]], None]


class ArmProcess(Protocol):
    """What a measurement needs of a worker."""

    facts: dict[str, Any]

    def start(self) -> dict[str, Any]: ...
    def ask(self, name: str, **arguments: Any) -> dict[str, Any]: ...
    def close(self) -> None: ...


MakeArm = Callable[[Launch, Bundle], ArmProcess]


@dataclass(frozen=True, kw_only=True)
class Block:
    """The runs of one block by arm, in the order in which they ran."""

    runs: Mapping[str, list[dict[str, Any]]]
    order: list[str]
    warm_up_s: Mapping[str, list[float]]

    def times(self, arm: str, metric: str) -> list[float]:
        """Seconds of an arm's runs under a metric."""
        return [run[metric] for run in self.runs[arm]]

    def contrasts(self, metric: str) -> tuple[Floats, Floats]:
        """Log ratios of the candidate and of the control under a metric."""
        base, control, candidate = (self.times(arm, metric) for arm in ARMS)
        return contrasts(base, control, candidate)

    def as_json(self) -> dict[str, Any]:
        """Everything raw."""
        return {
            "order": self.order,
            "runs": {arm: list(runs) for arm, runs in self.runs.items()},
            "warm_up_s": dict(self.warm_up_s),
        }


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a comparison found: the judgement under the metric that decided, and all blocks."""

    judgement: Judgement
    metric: str
    blocks: list[Block]
    seconds: dict[str, dict[str, float]]
    recompiled: int
    cost_s: float

    def tokens_per_s(self, arm: str, useful_tokens: int) -> float:
        """Tokens/s of an arm under the metric that decided, from the median run."""
        return useful_tokens / self.seconds[arm][self.metric]


@dataclass
class Series:
    """Comparisons against one base. Its processes serve several candidates in their first block.

    Later blocks restart all three arms: the restart is the replicate.
    """

    launch: Launch
    base: Bundle
    rule: Rule
    log: Log
    metric: str = "auto"
    seed: int = 0
    make: MakeArm = Worker
    _warm: dict[str, ArmProcess] = field(default_factory=dict)
    _warm_up_s: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng([self.seed, 10])

    def compare(self, candidate: Bundle) -> Measured:
        """Adds blocks until the rule decides.

        Raises:
            WorkerError: a process failed, hung or died; the base is started anew the next time.
        """
        started = time.perf_counter()
        blocks: list[Block] = []
        try:
            while True:
                blocks.append(self._block(candidate, fresh=bool(blocks)))
                self.log(
                    "block",
                    {"candidate": str(candidate), "base": str(self.base)} | blocks[-1].as_json(),
                )
                metric, judgement = self._judge(blocks)
                if judgement.verdict is not None:
                    break
        except BaseException:
            self.close()
            raise
        late = sum(run["late_graphs"] for block in blocks for run in block.runs["candidate"])
        return Measured(
            judgement=judgement,
            metric=metric,
            blocks=blocks,
            seconds={arm: _medians(blocks, arm) for arm in ARMS},
            recompiled=int(late),
            cost_s=time.perf_counter() - started,
        )

    def close(self) -> None:
        """Ends the processes of the base."""
        for worker in self._warm.values():
            worker.close()
        self._warm.clear()

    def _block(self, candidate: Bundle, fresh: bool) -> Block:
        """Starts what is not running, then rounds in which every arm runs once in random order."""
        if fresh:
            self.close()
        missing = [arm for arm in ("base", "control") if arm not in self._warm]
        *bases, worker = self._started([self.base] * len(missing) + [candidate])
        self._warm |= dict(zip(missing, bases, strict=True))
        try:
            for arm in missing:
                self._warm_up_s[arm] = self._warm[arm].ask("warm_up")["times_s"]
            warm_up_s = self._warm_up_s | {"candidate": worker.ask("warm_up")["times_s"]}
            arms = {**self._warm, "candidate": worker}
            runs, order = interleaved(arms, self.rule.pairs, self._generator)
        finally:
            worker.close()
        return Block(runs=runs, order=order, warm_up_s=warm_up_s)

    def _started(self, bundles: list[Bundle]) -> list[ArmProcess]:
        """Processes of these bundles, started side by side; none where one fails."""
        arms = [self.make(self.launch, bundle) for bundle in bundles]
        with ThreadPoolExecutor(len(arms)) as pool:
            starts = [pool.submit(arm.start) for arm in arms]
        try:
            for start in starts:
                start.result()
        except BaseException:
            for arm in arms:
                arm.close()
            raise
        return arms

    def _judge(self, blocks: list[Block]) -> tuple[str, Judgement]:
        """The judgement under the first metric whose control is quiet; else under the quietest.

        Only the control chooses, never the candidate, so the choice cannot favour a verdict.
        """
        judged = {}
        for metric in self._metrics(blocks[0]):
            found = [block.contrasts(metric) for block in blocks]
            judged[metric] = judge(
                [ratios for ratios, _ in found], [control for _, control in found], self.rule
            )
        for metric, judgement in judged.items():
            if judgement.control_half_width <= self.rule.threshold:
                return metric, judgement
        quietest = min(judged, key=lambda metric: judged[metric].control_half_width)
        return quietest, judged[quietest]

    def _metrics(self, block: Block) -> list[str]:
        """Metrics to judge by. Process time counts waiting threads, so it needs a single one."""
        if self.metric != "auto":
            return [self.metric]
        on_gpu = "device_s" in block.runs["base"][0]
        return ["wall_s"] if on_gpu or self.launch.threads > 1 else ["wall_s", "cpu_s"]


def interleaved(
    arms: Mapping[str, ArmProcess], rounds: int, generator: np.random.Generator
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Rounds in which every arm runs once, in random order; gives runs by arm, and the order."""
    runs: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    order: list[str] = []
    for _ in range(rounds):
        for index in generator.permutation(len(ARMS)):
            arm = ARMS[index]
            runs[arm].append(arms[arm].ask("run"))
            order.append(arm)
    return runs, order


def _medians(blocks: list[Block], arm: str) -> dict[str, float]:
    """Median seconds of every clock over all runs of an arm."""
    runs = [run for block in blocks for run in block.runs[arm]]
    clocks = [name for name in runs[0] if name.endswith("_s")]
    return {name: float(np.median([run[name] for run in runs])) for name in clocks}
