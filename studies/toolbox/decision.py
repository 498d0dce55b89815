"""The keep rule: when measured times prove that a candidate is faster than its baseline.

Times are measured in blocks. A block starts fresh processes of the baseline, of a second copy of it
(the control) and of the candidate and interleaves their runs, so one run of each is a pair. The
log ratio of a pair is ``log(baseline time / other time)``: above 0 the other is faster.

The unit of evidence is the median of a block, because two processes of one program differ from each
other by more than their runs scatter (3% on an MI300X for a setting that changes nothing), so runs
within a process are no replicates of it. The variance of block medians is a moderated one (Smyth
2004, Stat. Appl. Genet. Mol. Biol. 3:3): what few blocks show is shrunk towards what the scatter of
pairs and the spread of instances imply, and the control, whose true log ratio is 0, counts as
evidence on the noise. Looking again after every block is paid for by splitting alpha over the looks
(Bonferroni), so the chance to keep a copy stays below 5% whenever one stops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specs.errors import InputError
from studies.toolbox.verdicts import Verdict

Floats = NDArray[np.float64]

MEDIAN_VARIANCE = math.pi / 2
"""Variance of a median of normal values over that of their mean (asymptotic)."""
INSTANCE_SD = 0.005
"""Log sd between processes of one program. Measured: 7 identical copies on a CPU, 14 rounds."""
PRIOR_DF = 4.0
"""Degrees of freedom that the expected variance is worth (assumed; limma fits 3 to 5 as a rule)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When to keep, drop or go on.

    Attributes:
        threshold: gain worth keeping, as a fraction (0.02: 2%).
        confidence: of the one-sided lower bound over all looks together.
        pairs: runs of each arm in a block.
        min_blocks, max_blocks: restarts before a keep, and at most.
    """

    threshold: float = 0.02
    confidence: float = 0.95
    pairs: int = 8
    min_blocks: int = 2
    max_blocks: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.threshold < 1:
            raise InputError(f"the threshold {self.threshold} is not a fraction from 0 to below 1.")
        if not 0.5 < self.confidence < 1:
            raise InputError(f"the confidence {self.confidence} is not between 0.5 and 1.")
        if self.pairs < 3 or self.min_blocks < 2 or self.max_blocks < self.min_blocks:
            raise InputError(
                "a rule needs 3 pairs or more, 2 blocks or more, and max_blocks >= min_blocks; it "
                f"has {self.pairs}, {self.min_blocks} and {self.max_blocks}."
            )

    @property
    def log_threshold(self) -> float:
        """The threshold as a log ratio."""
        return math.log1p(self.threshold)

    @property
    def patient(self) -> Rule:
        """The same rule with twice the restarts: for the few comparisons that a claim rests on."""
        return replace(self, max_blocks=2 * self.max_blocks)

    @property
    def look_alpha(self) -> float:
        """Share of alpha of each look at which a candidate may be kept."""
        return (1 - self.confidence) / (self.max_blocks - self.min_blocks + 1)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A log ratio, its standard error and the degrees of freedom behind it."""

    log_ratio: float
    standard_error: float
    df: float

    def quantile(self, probability: float) -> float:
        """Quantile of the t distribution around the estimate, as a log ratio."""
        t = float(stats.t.ppf(probability, self.df))
        return self.log_ratio + t * self.standard_error


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rule says after some blocks; ratios, where 1.05 is 5% faster.

    ``verdict`` is None while more blocks are needed. ``lower`` holds with the rule's confidence
    over all looks, ``upper`` with the same at this look; ``control`` is the ratio of the two copies
    of the baseline and ``control_half_width`` how wide its 90% interval is.
    """

    verdict: Verdict | None
    estimate: Estimate
    ratio: float
    lower: float
    upper: float
    control: float
    control_half_width: float


def log_ratios(baseline_s: Sequence[float] | Floats, other_s: Sequence[float] | Floats) -> Floats:
    """Log ratios of paired times, above 0 where the other is faster; shape (pairs,).

    Raises:
        ValueError: the two differ in length, are empty, or hold a time that is not above 0.
    """
    base, other = np.asarray(baseline_s, float), np.asarray(other_s, float)
    if base.shape != other.shape or base.size == 0:
        raise ValueError("paired times must be equally many and not none")
    if not (np.isfinite(base).all() and np.isfinite(other).all()):
        raise ValueError("a time is not a number")
    if base.min() <= 0 or other.min() <= 0:
        raise ValueError("a time is not above 0")
    return np.asarray(np.log(base / other))


def pair_variance(blocks: Sequence[Floats]) -> float:
    """Robust variance of pairs within their blocks: from the median absolute residual."""
    residuals = np.concatenate([block - np.median(block) for block in blocks])
    freedom = residuals.size / max(residuals.size - len(blocks), 1)
    return float((1.4826 * np.median(np.abs(residuals))) ** 2 * freedom)


def expected_variance(blocks: Sequence[Floats]) -> float:
    """Variance of block medians that scatter of pairs and spread of instances imply."""
    pairs = float(np.mean([block.size for block in blocks]))
    return MEDIAN_VARIANCE * pair_variance(blocks) / pairs + 2 * INSTANCE_SD**2


def estimate(blocks: Sequence[Floats], control: Sequence[Floats] = ()) -> Estimate:
    """The log ratio of a candidate from its blocks, with the control as evidence on the noise."""
    medians = np.array([np.median(block) for block in blocks])
    zeros = np.array([np.median(block) for block in control])
    centre = float(medians.mean())
    squares = float(((medians - centre) ** 2).sum() + (zeros**2).sum())
    df = PRIOR_DF + medians.size - 1 + zeros.size
    prior = expected_variance([*blocks, *control])
    variance = (PRIOR_DF * prior + squares) / df
    return Estimate(centre, math.sqrt(variance / medians.size), df)


def judge(blocks: Sequence[Floats], control: Sequence[Floats], rule: Rule) -> Judgement:
    """What the rule says of a candidate after these blocks.

    Args:
        blocks: log ratios of baseline over candidate, one array a block.
        control: log ratios of baseline over its copy in the same blocks.
        rule: the rule.
    """
    if not blocks or len(blocks) != len(control):
        raise ValueError("every block needs its control")
    found = estimate(blocks, control)
    copies = estimate(control)
    half_width = copies.quantile(0.95) - copies.log_ratio
    quiet = half_width <= rule.threshold and abs(copies.log_ratio) - half_width <= rule.threshold
    lower = found.quantile(rule.look_alpha)
    upper = found.quantile(rule.confidence)
    return Judgement(
        verdict=_verdict(len(blocks), lower, upper, quiet, rule),
        estimate=found,
        ratio=math.exp(found.log_ratio),
        lower=math.exp(lower),
        upper=math.exp(upper),
        control=math.exp(copies.log_ratio),
        control_half_width=half_width,
    )


def _verdict(looks: int, lower: float, upper: float, quiet: bool, rule: Rule) -> Verdict | None:
    """Drop when a gain is out of reach, keep when proven on a quiet machine, else go on."""
    if upper < rule.log_threshold:
        return Verdict.DROP
    if looks >= rule.min_blocks and lower > rule.log_threshold and quiet:
        return Verdict.KEEP
    if looks < rule.max_blocks:
        return None
    return Verdict.INCONCLUSIVE if quiet else Verdict.NOISY
