"""Carries fitted kernel constants to GPUs without profiles.

Constants are dimensionless or latencies, so that peak, bandwidth and SM count come from the data
sheet of the target. What remains differs little inside an architecture and more across; utilisation
under a power limit follows peak per watt.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from surrogate.kernels.laws import Law, format_of
from surrogate.kernels.sheets import KernelSheet

THROTTLE_EXPONENT = 0.6
"""Sustained FLOP/s grow with (power / peak)**0.6 once power limits the clock. Measured: MI300X 708
TFLOP/s at 750 W and MI325X 843 at 1000 W, the same peak (rocm-blogs measuring-max-achievable-flops
part 2), give 0.61; B200 at 1000 W and GB300 at 1400 W give 0.6 to 0.7."""

ONSET_PRIOR = (1.75, 0.2)
"""Peak per watt (TFLOP/s/W in bf16) at which throttling sets in, and its log sd: assumed, between
H100 (1.41, not limited) and GB200 (2.08, limited)."""

SAME_FAMILY_WEIGHT = 0.5
SAME_VENDOR_WEIGHT = 0.15
"""Weight of a profiled GPU against one of the same architecture, by how near of kin it is; another
vendor's counts only if there is nothing of one's own."""

Fitted = Mapping[str, dict[str, float]]
"""GPU name -> fitted values of one law and key."""


def throttle(density: float, onset: float) -> float:
    """Factor in (0, 1] by which a power limit lowers the utilisation of the peak."""
    return min(1.0, float((onset / density) ** THROTTLE_EXPONENT))


def fit_onset(gemm: Mapping[str, Fitted], sheets: Mapping[str, KernelSheet]) -> float:
    """The onset of throttling at which unthrottled utilisation differs least between GPUs."""
    grid = np.exp(np.linspace(np.log(1.0), np.log(3.0), 111))
    costs = []
    for onset in grid:
        cost = ((np.log(onset) - np.log(ONSET_PRIOR[0])) / ONSET_PRIOR[1]) ** 2
        for key, fitted in gemm.items():
            logs = [
                np.log(values["utilisation_max"])
                - np.log(throttle(sheets[name].power_density(format_of(key)), float(onset)))
                for name, values in fitted.items()
            ]
            cost += float(np.sum((np.asarray(logs) - np.mean(logs)) ** 2)) / 0.05**2
        costs.append(cost)
    return float(grid[int(np.argmin(costs))])


def kinship(one: KernelSheet, other: KernelSheet) -> float:
    """Weight of what is known of one GPU for another; blackwell-ultra is a blackwell."""
    if one.vendor != other.vendor:
        return 0.0
    if one.architecture == other.architecture:
        return 1.0
    if one.architecture.split("-")[0] == other.architecture.split("-")[0]:
        return SAME_FAMILY_WEIGHT
    return SAME_VENDOR_WEIGHT


def carried(
    law: Law,
    key: str,
    fitted: Fitted,
    sheets: Mapping[str, KernelSheet],
    to: KernelSheet,
    onset: float,
) -> dict[str, float]:
    """Constants of ``law`` for a GPU from its data sheet and what other GPUs were fitted to.

    Args:
        fitted: GPU -> values; weights follow architecture and vendor. Must not be empty.
    """
    weights, logs = [], []
    for name, values in sorted(fitted.items()):
        sheet = sheets[name]
        weights.append(kinship(sheet, to))
        row = {p.name: float(np.log(values[p.name])) for p in law.parameters}
        if law.throttled:
            density = sheet.power_density(format_of(key))
            row[law.throttled] -= float(np.log(throttle(density, onset)))
        logs.append([row[p.name] for p in law.parameters])
    kin = np.asarray(weights) if any(weights) else np.ones(len(weights))
    mean = np.average(np.asarray(logs), axis=0, weights=kin)
    result = {p.name: float(np.exp(value)) for p, value in zip(law.parameters, mean, strict=True)}
    if law.throttled:
        result[law.throttled] *= throttle(to.power_density(format_of(key)), onset)
    return {p.name: float(np.clip(result[p.name], p.low, p.high)) for p in law.parameters}
