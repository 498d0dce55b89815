"""How runs are interleaved, restarted and judged, with processes that are played."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studies.toolbox.bundle import BASELINE, Bundle
from studies.toolbox.decision import Rule
from studies.toolbox.measurement import ARMS, Series
from studies.toolbox.process import Launch, WorkerError
from studies.toolbox.verdicts import Verdict

FAST = Bundle.of({"dtype_cast": "bfloat16"})
GAIN = {BASELINE: 1.0, FAST: 1.5}


class Machine:
    """Plays workers whose times are drawn; counts what was started and ended."""

    def __init__(self, wall_sd: float = 0.004, cpu_sd: float = 0.004) -> None:
        self.generator = np.random.default_rng(1)
        self.sds = {"wall_s": wall_sd, "cpu_s": cpu_sd}
        self.started: list[Bundle] = []
        self.alive = 0
        self.fails = False

    def make(self, _launch: Launch, bundle: Bundle) -> Arm:
        return Arm(self, bundle)


class Arm:
    """One played process."""

    def __init__(self, machine: Machine, bundle: Bundle) -> None:
        self.machine, self.bundle = machine, bundle
        self.facts: dict[str, Any] = {}

    def start(self) -> dict[str, Any]:
        self.machine.started.append(self.bundle)
        self.machine.alive += 1
        return self.facts

    def ask(self, name: str, **_: Any) -> dict[str, Any]:
        if name == "warm_up":
            return {"times_s": [1.0, 1.0, 1.0], "compile_s": 0.0}
        if self.machine.fails and self.bundle == FAST:
            raise WorkerError("died", "the worker died.")
        clocks = {
            clock: float(np.exp(self.machine.generator.normal(0, sd)) / GAIN[self.bundle])
            for clock, sd in self.machine.sds.items()
        }
        parts = {
            f"{p}_{c}": value / 2 for p in ("prefill", "decode") for c, value in clocks.items()
        }
        return clocks | parts | {"late_graphs": 0, "load_average": 1.0}

    def close(self) -> None:
        self.machine.alive -= 1


def launch(threads: int = 1) -> Launch:
    return Launch(
        source={}, dtype="checkpoint", device="cpu", work={}, threads=threads, seed=0,
        timeout_s=1, folder=Path("nowhere"),
    )  # fmt: skip


def series(machine: Machine, log: Any = lambda _event, _content: None, **fields: Any) -> Series:
    return Series(launch(), BASELINE, Rule(), log, make=machine.make, **fields)


def test_a_gain_is_kept_after_a_restart_of_every_arm() -> None:
    machine, events = Machine(), []
    measured = series(machine, lambda event, content: events.append((event, content))).compare(FAST)
    assert measured.judgement.verdict is Verdict.KEEP
    assert measured.judgement.ratio == pytest.approx(1.5, rel=0.01)
    assert len(measured.blocks) == 2
    assert Counter(machine.started) == {BASELINE: 4, FAST: 2}
    assert [event for event, _ in events] == ["block", "block"]


def test_every_round_runs_every_arm_once_and_the_order_changes() -> None:
    measured = series(Machine()).compare(FAST)
    order = measured.blocks[0].order
    rounds = [tuple(order[i : i + 3]) for i in range(0, len(order), 3)]
    assert all(sorted(one) == sorted(ARMS) for one in rounds)
    assert len(set(rounds)) > 1


def test_base_processes_serve_the_next_candidate_and_end_with_the_series() -> None:
    machine = Machine()
    same = Bundle.of({"sdpa_attention": "math"})
    GAIN[same] = 0.8
    chosen = series(machine)
    assert chosen.compare(same).judgement.verdict is Verdict.DROP
    chosen.compare(same)
    assert Counter(machine.started) == {BASELINE: 2, same: 2}
    chosen.close()
    assert machine.alive == 0


def test_process_time_decides_where_only_wall_time_is_noisy() -> None:
    measured = series(Machine(wall_sd=0.3)).compare(FAST)
    assert measured.metric == "cpu_s"
    assert measured.judgement.verdict is Verdict.KEEP


def test_wall_time_is_preferred_where_it_is_quiet() -> None:
    assert series(Machine()).compare(FAST).metric == "wall_s"


def test_a_noisy_machine_gives_no_claim() -> None:
    measured = series(Machine(wall_sd=0.3, cpu_sd=0.3)).compare(FAST)
    assert measured.judgement.verdict is Verdict.NOISY
    assert len(measured.blocks) == Rule().min_blocks + 1, "hopeless noise is not measured on"


def test_process_time_is_never_used_with_several_threads() -> None:
    chosen = Series(
        launch(threads=2), BASELINE, Rule(), lambda _e, _c: None, make=Machine(0.3).make
    )
    assert chosen.compare(FAST).metric == "wall_s"


def test_no_process_is_left_when_one_fails() -> None:
    machine = Machine()
    machine.fails = True
    with pytest.raises(WorkerError):
        series(machine).compare(FAST)
    assert machine.alive == 0
