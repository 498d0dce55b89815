"""Savings: what a token count costs with a config, in GPU-hours, days and money."""

from __future__ import annotations

from dataclasses import dataclass

from studies.job import Job
from studies.reference import Reference
from studies.report.facts import StudyFacts

ASSUMED_TOKENS = 1e12
"""Tokens that costs are told for where neither the study nor the reader names a count."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD a GPU-hour and where the price comes from."""

    usd_per_gpu_hour: float
    source: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What training on ``tokens`` tokens takes; ``usd`` is None where no price is known."""

    tokens: float
    gpu_hours: float
    days: float
    usd: float | None


def tokens_of(job: Job, asked: float | None) -> tuple[float, str]:
    """The token count, and where it comes from."""
    if asked is not None:
        return asked, "as asked"
    if job.experiment.workload.target_tokens:
        return job.experiment.workload.target_tokens, "the study's target_tokens"
    return ASSUMED_TOKENS, "assumed; --tokens names another count"


def price_of(job: Job, asked: float | None) -> Price | None:
    """The price of a GPU-hour; None where nobody names one."""
    if asked is not None:
        return Price(asked, "as asked")
    if job.cluster.price_usd_per_gpu_hour is not None:
        return Price(job.cluster.price_usd_per_gpu_hour, "the study or its cluster")
    known = job.cluster.gpu.usd_per_gpu_hour
    return Price(known.value, f"{known.kind}: {known.source}") if known else None


def cost(tokens_per_s_per_gpu: float, tokens: float, num_gpus: int, price: Price | None) -> Cost:
    """What ``tokens`` tokens take at a throughput."""
    gpu_hours = tokens / tokens_per_s_per_gpu / 3600
    usd = gpu_hours * price.usd_per_gpu_hour if price else None
    return Cost(tokens, gpu_hours, gpu_hours / num_gpus / 24, usd)


def reference_of(facts: StudyFacts) -> Reference | None:
    """What the best config is compared with; None where there is nothing to compare with."""
    held = facts.result.get("reference")
    if not held:
        return None
    return Reference(held["tokens_per_s_per_gpu"], held["words"], held["is_baseline"])
