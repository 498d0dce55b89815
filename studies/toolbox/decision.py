"""The keep rule: when measured times prove that a candidate is faster than its baseline.

Times are measured in blocks. A block starts fresh processes of the baseline, of a second copy of it
(the control) and of the candidate and interleaves their runs, so one run of each is a round. Both
copies are the baseline: the log ratio of a candidate is ``log(baseline time / candidate time)``
with the geometric mean of both in that round, which has three quarters of the variance of one copy
against another and, for arms of equal noise, is uncorrelated with what the control says. Above 0
the candidate is faster.

The unit of evidence is the centre of a block (Hodges and Lehmann 1963: as robust as needed, and
nearly as efficient as the mean), because two processes of one program differ from each other by
more than their runs scatter (3% on an MI300X for a setting that changes nothing), so runs within a
process are no replicates of it. The variance of block centres is a moderated one (Smyth 2004, Stat.
Appl. Genet. Mol. Biol. 3:3): what few blocks show is shrunk towards what the scatter of rounds and
the spread of instances imply, and the control, whose true log ratio is 0, counts as evidence on the
noise. Looking again after every block is paid for by spending alpha over the looks, most of it
late, so the chance to keep a copy stays below 5% whenever one stops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from specs.errors import InputError
from studies.toolbox.boundaries import look_levels
from studies.toolbox.verdicts import Verdict

Floats = NDArray[np.float64]

CENTRE_VARIANCE = math.pi / 3
"""Variance of the centre of a block of normal values over that of their mean (asymptotic)."""
CANDIDATE_SHARE = 0.75
"""Variance of candidate against the mean of two copies over that of copy against copy: 1.5 / 2."""
INSTANCE_SD = 0.01
"""Log sd between processes of one program. Measured: 0.5% among 7 copies on a CPU, 0.7% over the 6
operating points of ``data/mi300x_null_knob.csv``, 2% on a CPU that others use (the three pairs of
copies in ``data/factorial_cpu.jsonl`` differ by 4.9%, 0.8% and 2.2% of process time)."""
PRIOR_DF = 4.0
"""Degrees of freedom that the expected variance is worth (assumed; limma fits 3 to 5 as a rule)."""
HOPELESS = 1.5
"""A control that would still be this many times too wide after all blocks ends the comparison."""


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
    max_blocks: int = 16

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

    def look_alpha(self, blocks: int) -> float:
        """Share of alpha of the look after that many blocks."""
        levels = look_levels(self.min_blocks, self.max_blocks, 1 - self.confidence)
        return levels[max(blocks - self.min_blocks, 0)]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A log ratio, its standard error and the degrees of freedom behind it."""

    log_ratio: float
    standard_error: float
    df: float

    def quantile(self, probability: float) -> float:
        """Quantile of the t distribution around the estimate, as a log ratio."""
        return self.log_ratio + float(stdtrit(self.df, probability)) * self.standard_error


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


def contrasts(
    base_s: Sequence[float] | Floats,
    control_s: Sequence[float] | Floats,
    candidate_s: Sequence[float] | Floats,
) -> tuple[Floats, Floats]:
    """Log ratios of a block's rounds: both copies over the candidate, one copy over the other.

    Raises:
        ValueError: as ``log_ratios``.
    """
    control = log_ratios(base_s, control_s)
    return log_ratios(base_s, candidate_s) - control / 2, control


def centre(values: Floats) -> Floats:
    """Hodges-Lehmann centres along the last axis: medians of the means of all pairs of values."""
    first, second = _pairs_of(values.shape[-1])
    return np.asarray(np.median((values[..., first] + values[..., second]) / 2, axis=-1))


@lru_cache(maxsize=64)
def _pairs_of(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices of all pairs of values, each with itself too."""
    return np.triu_indices(size)


def round_variance(blocks: Sequence[Floats]) -> float:
    """Robust variance of rounds within their blocks: from the median absolute residual."""
    values = np.stack(blocks)
    residuals = np.abs(values - np.median(values, axis=1, keepdims=True))
    freedom = values.size / max(values.size - len(blocks), 1)
    return float((1.4826 * np.median(residuals)) ** 2 * freedom)


def expected_variance(blocks: Sequence[Floats], control: Sequence[Floats]) -> float:
    """Variance of a candidate's block centres that scatter and spread of instances imply."""
    scatter = round_variance(blocks)
    if control:
        scatter = (scatter + CANDIDATE_SHARE * round_variance(control)) / 2
    return CENTRE_VARIANCE * scatter / blocks[0].size + 2 * CANDIDATE_SHARE * INSTANCE_SD**2


def estimate(blocks: Sequence[Floats], control: Sequence[Floats] = ()) -> Estimate:
    """The log ratio of a candidate from its blocks, with the control as evidence on the noise."""
    squares = CANDIDATE_SHARE * float((centre(np.stack(control)) ** 2).sum()) if control else 0.0
    return _estimate(blocks, expected_variance(blocks, control), squares, len(control))


def _estimate(blocks: Sequence[Floats], prior: float, squares: float, more: int) -> Estimate:
    """Mean of block centres; ``squares`` of ``more`` other blocks count for the variance."""
    centres = centre(np.stack(blocks))
    mean = float(centres.mean())
    df = PRIOR_DF + centres.size - 1 + more
    variance = (PRIOR_DF * prior + float(((centres - mean) ** 2).sum()) + squares) / df
    return Estimate(mean, math.sqrt(variance / centres.size), df)


def judge(blocks: Sequence[Floats], control: Sequence[Floats], rule: Rule) -> Judgement:
    """What the rule says of a candidate after these blocks.

    Args:
        blocks: log ratios of both copies of the baseline over the candidate, one array a block, all
            of one length.
        control: log ratios of one copy over the other in the same blocks.
        rule: the rule.
    """
    if not blocks or len(blocks) != len(control):
        raise ValueError("every block needs its control")
    found = estimate(blocks, control)
    copies = _estimate(control, expected_variance(blocks, control) / CANDIDATE_SHARE, 0.0, 0)
    half_width = copies.quantile(0.95) - copies.log_ratio
    quiet = half_width <= rule.threshold and abs(copies.log_ratio) - half_width <= rule.threshold
    at_the_end = half_width * math.sqrt(len(blocks) / rule.max_blocks)
    hopeless = at_the_end > HOPELESS * rule.threshold
    lower = found.quantile(rule.look_alpha(len(blocks)))
    upper = found.quantile(rule.confidence)
    return Judgement(
        verdict=_verdict(len(blocks), lower, upper, quiet, hopeless, rule),
        estimate=found,
        ratio=math.exp(found.log_ratio),
        lower=math.exp(lower),
        upper=math.exp(upper),
        control=math.exp(copies.log_ratio),
        control_half_width=half_width,
    )


def _verdict(
    looks: int, lower: float, upper: float, quiet: bool, hopeless: bool, rule: Rule
) -> Verdict | None:
    """Drop when a gain is out of reach, keep when proven on a quiet machine, else go on."""
    if upper < rule.log_threshold:
        return Verdict.DROP
    if looks >= rule.min_blocks and lower > rule.log_threshold and quiet:
        return Verdict.KEEP
    if hopeless and looks > rule.min_blocks:
        return Verdict.NOISY
    if looks < rule.max_blocks:
        return None
    return Verdict.INCONCLUSIVE if quiet else Verdict.NOISY
