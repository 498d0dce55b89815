"""Spends the trials of a plan: in this process, or shared among workers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from search.proposals import Proposal
from studies.driving import Driver, LocalWorkers
from studies.ledger import Ledger
from studies.oracles import Oracle
from studies.progress import Progress
from studies.storage import patiently
from studies.worker import PATIENCE_S, Worker, WorkerOptions


def spend(
    plan: Iterator[Proposal], oracle: Oracle, ledger: Ledger, trials: int, progress: Progress
) -> None:
    """Evaluates proposals that the ledger does not hold until it holds ``trials``."""
    with progress("trials", trials) as advance:
        advance(min(len(ledger), trials))
        for proposal in plan:
            if len(ledger) >= trials:
                return
            if proposal.config in ledger:
                continue
            outcome = oracle.evaluate(proposal.config)
            record = partial(
                ledger.record, proposal.config, outcome, proposal.proposer, proposal.reason
            )
            patiently(record, PATIENCE_S)
            advance(1)


def share(
    plan: Iterator[Proposal], driver: Driver, oracle: Oracle, folder: Path, progress: Progress
) -> None:
    """Lets workers evaluate the plan; where none are wanted, this process is one.

    Args:
        plan: proposals in the order in which they are queued.
        driver: of the study.
        oracle: what this process evaluates with, where it does.
        folder: where workers that are started here print.
        progress: shows how many trials are told.
    """
    crew, local = driver.crew, None
    driver.open()
    if crew.workers is None:
        driver.own = Worker(driver.queue, oracle, WorkerOptions(), crew.told)
    elif crew.workers:
        driver.local = local = LocalWorkers(crew, driver.queue, folder)
    try:
        with progress("trials", driver.trials) as advance:
            shown = 0
            for told in driver.drive(plan):
                advance(told - shown)
                shown = told
    finally:
        if local is not None:
            local.end()
