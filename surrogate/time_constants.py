"""Constants of the time model: what each means, what is believed before any data, how it varies.

A constant is the product of a global value and of factors by GPU architecture, GPU, number format,
framework, release ...: ``gemm_utilisation`` times ``gemm_utilisation/hopper/fp8`` and so on. A
factor that no data has moved is 1, so a GPU or release never seen falls back to its kin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specs import catalog
from specs.choices import MoeDispatcher, Precision, Schedule
from specs.errors import InputError
from specs.stack import Framework
from surrogate.cases import Cases, Column
from surrogate.constants import Constant, ConstantFile, shipped_constants
from surrogate.time_rates import (
    ALIASES,
    BELIEFS,
    KNOWN_FACTORS,
    MEASURED_SD,
    RATE_COLUMNS,
    Known,
    TimeRates,
)


@dataclass(frozen=True)
class Level:
    """One way in which constants vary: the labels of ``codes``."""

    labels: tuple[str, ...]
    codes: Column

    def labels_seen(self) -> set[str]:
        """Labels that a row has."""
        counts = np.bincount(np.ravel(self.codes), minlength=len(self.labels))
        return {label for label, count in zip(self.labels, counts, strict=True) if count}


def _cross(first: Level, second: Level) -> Level:
    labels = tuple(f"{a}/{b}" for a in first.labels for b in second.labels)
    return Level(labels, first.codes * len(second.labels) + second.codes)


def levels_of(cases: Cases) -> dict[str, Level]:
    """Every level by name; codes have shape () or (n,)."""
    gpu = cases.cluster.gpu
    frameworks = tuple(Framework(stack.framework).name.lower() for stack in cases.stacks)
    releases = tuple(
        f"{_slug(stack.framework_name)}/{_slug(stack.version)}" for stack in cases.stacks
    )
    # fp16 and bf16 run at the same rate.
    precision = np.where(cases.config.precision == int(Precision.FP16), 0, cases.config.precision)
    # The host launches the same kernels for fp32 as for 16 bit; only fewer bits are cast to.
    launched = np.where(precision == int(Precision.FP32), 0, precision)
    kinds = tuple("moe" if model.is_moe else "dense" for model in cases.models)
    plain = {
        "vendor": Level(tuple(g.vendor for g in cases.gpus), gpu),
        "architecture": Level(tuple(g.architecture for g in cases.gpus), gpu),
        "gpu": Level(tuple(g.name for g in cases.gpus), gpu),
        "format": Level(Precision.labels(), precision),
        "rate": Level(_RATES, _RATE_OF[precision]),
        "launched_format": Level(Precision.labels(), launched),
        "launched_rate": Level(_RATES, _RATE_OF[launched]),
        "bf16": Level(_RATES, np.zeros_like(gpu)),
        "16bit": Level(Precision.labels(), np.zeros_like(gpu)),
        "framework": Level(frameworks, cases.stack_index),
        "release": Level(releases, cases.stack_index),
        "kind": Level(kinds, cases.model_index),
        "dispatcher": Level(MoeDispatcher.labels(), cases.config.moe_dispatcher),
        "schedule": Level(Schedule.labels(), cases.config.schedule),
    }
    crossed = {
        f"{a}/{b}": _cross(plain[a], plain[b])
        for a, b in (
            ("architecture", "rate"),
            ("gpu", "rate"),
            ("architecture", "bf16"),
            ("gpu", "bf16"),
            ("release", "kind"),
            ("framework", "architecture"),
        )
    }
    return plain | crossed


_RATES = ("bf16", "fp32", "fp8", "fp4")
_RATE_OF = np.array([_RATES.index(p.gemm_format) for p in Precision])
"""Precision code -> the rate at which the GPU multiplies."""


def _slug(text: str) -> str:
    """Text as part of a constant's name; "unstated" where empty."""
    words = "".join(c if c.isalnum() or c in ".-" else " " for c in text.lower()).split()
    return "-".join(words) or "unstated"


def prior_of(name: str) -> tuple[float, float, str, str]:
    """Prior, its sd in log space, unit and source of a constant such as ``host_layer/nemo``.

    Raises:
        KeyError: no constant of TimeRates has this name or varies over as many levels.
    """
    family, *labels = name.split("/")
    belief = BELIEFS[family]
    if not labels:
        return belief.prior, belief.sd, belief.unit, belief.source
    prior, source, sd = KNOWN_FACTORS.get(name, Known(1.0, "assumed: like its kin"))
    if sd is None:
        level = next(n for n in belief.levels if _belongs(labels, n))
        sd = belief.levels[level]
    if source.startswith("measured"):
        sd = min(sd, MEASURED_SD)
    return prior, sd, "factor", source


@lru_cache(maxsize=1)
def _architectures() -> frozenset[str]:
    """Architectures of the catalog."""
    return frozenset(catalog.gpu(name).architecture for name in catalog.gpu_names())


def _belongs(labels: Sequence[str], level: str) -> bool:
    """Whether labels such as (hopper, fp8) name an entry of this level."""
    known = {
        "architecture": _architectures(),
        "format": Precision.labels(),
        "rate": _RATES,
        "launched_format": Precision.labels(),
        "launched_rate": _RATES,
        "framework": tuple(f.name.lower() for f in Framework),
        "vendor": ("amd", "nvidia"),
        "kind": ("dense", "moe"),
        "schedule": Schedule.labels(),
        "dispatcher": MoeDispatcher.labels(),
    }
    parts = level.split("/")
    if "release" in parts:
        return len(labels) == 1 + len(parts) and (
            "kind" not in parts or labels[-1] in known["kind"]
        )
    return len(parts) == len(labels) and all(
        label in known.get(part, (label,)) for part, label in zip(parts, labels, strict=True)
    )


class RateDesign:
    """How the constants of some cases are made from a vector of logarithms.

    ``names`` are all constants that the cases can tell apart, ``rates(log_values)`` the columns.
    """

    def __init__(self, cases: Cases, only: Mapping[str, int] | None = None) -> None:
        """Sets up the design; ``only`` limits it to constants known at these positions."""
        levels = levels_of(cases)
        seen = {name: level.labels_seen() for name, level in levels.items()}
        self.names: list[str] = []
        self._position: dict[str, int] = {}
        self._factors: dict[str, list[tuple[NDArray[np.int64], Column]]] = {}
        for column in RATE_COLUMNS:
            family = ALIASES.get(column, column)
            self._factors[column] = []
            self._add(family)
            for level_name in BELIEFS[family].levels:
                name = level_name
                if family != column:
                    name = name.replace("rate", "bf16").replace("format", "16bit")
                level = levels[name]
                used = seen[name]
                if only is not None:
                    used = {label for label in used if f"{family}/{label}" in only}
                if not used:
                    continue
                positions = np.array(
                    [
                        self._add(f"{family}/{label}") if label in used else -1
                        for label in level.labels
                    ]
                )
                self._factors[column].append((positions, level.codes))

    def _add(self, name: str) -> int:
        if name not in self._position:
            self._position[name] = len(self.names)
            self.names.append(name)
        return self._position[name]

    def uses(self) -> list[tuple[str, int, Column]]:
        """(column of TimeRates, position of a constant in ``names``, rows that it acts on)."""
        used: list[tuple[str, int, Column]] = []
        for column, factors in self._factors.items():
            family = ALIASES.get(column, column)
            used.append((column, self._position[family], np.array(True)))
            for positions, codes in factors:
                constant = positions[codes]
                used.extend((column, int(p), constant == p) for p in np.unique(positions) if p >= 0)
        return used

    def rates(self, log_values: NDArray[np.float64]) -> TimeRates:
        """The constants of every row, from logarithms in the order of ``names``."""
        extended = np.append(log_values, 0.0)
        columns = {}
        for column, factors in self._factors.items():
            family = ALIASES.get(column, column)
            log: Any = extended[self._position[family]]
            for positions, codes in factors:
                log = log + extended[positions][codes]
            columns[column] = np.minimum(np.exp(log), BELIEFS[family].most)
        return TimeRates(**columns)


@dataclass(frozen=True)
class TimeConstants:
    """Values of the constants by name; what has no value of its own is at its prior."""

    log_values: Mapping[str, float]

    @classmethod
    def of_priors(cls) -> TimeConstants:
        """Nothing fitted: data sheets and general knowledge only."""
        names = [*BELIEFS, *KNOWN_FACTORS]
        return cls({name: float(np.log(prior_of(name)[0])) for name in names})

    @classmethod
    def shipped(cls) -> TimeConstants:
        """The constants fitted to public runs that ship with the package."""
        return cls.of_file(shipped_constants("time_constants"))

    @classmethod
    def of_file(cls, file: ConstantFile) -> TimeConstants:
        """Constants of a file on top of the priors.

        Raises:
            InputError: the file holds constants that this release does not know.
        """
        unknown = [name for name in file.constants if name.split("/")[0] not in BELIEFS]
        if unknown:
            raise InputError(
                f"the constants hold {unknown[0]}, which this release does not know; fit them "
                "again (python -m surrogate.learning)."
            )
        if any(not 1e-30 < value < 1e30 for value in file.values().values()):
            raise InputError("a constant is not positive; fit them again.")
        fitted = {name: float(np.log(value)) for name, value in file.values().items()}
        return cls({**cls.of_priors().log_values, **fitted})

    def changed(self, factors: Mapping[str, float]) -> TimeConstants:
        """A copy with some constants multiplied."""
        moved = {n: self.log_values.get(n, 0.0) + float(np.log(f)) for n, f in factors.items()}
        return TimeConstants({**self.log_values, **moved})

    def rates(self, cases: Cases) -> TimeRates:
        """The constants of every row."""
        design = RateDesign(cases, only=self.log_values)  # type: ignore[arg-type]
        return design.rates(np.array([self.log_values[name] for name in design.names]))

    def as_file(
        self, posterior_sd: Mapping[str, float], fitted_on: str, data_hash: str
    ) -> ConstantFile:
        """The constants with prior and provenance, to be written."""
        constants = {}
        for name, log in self.log_values.items():
            prior, sd, unit, source = prior_of(name)
            fitted = name in posterior_sd
            constants[name] = Constant(
                value=_written(float(np.exp(log))),
                unit=unit,
                kind="fitted" if fitted else "assumed",
                source=source,
                prior=prior,
                prior_sd=sd,
                posterior_sd=_written(posterior_sd[name]) if fitted else None,
            )
        return ConstantFile(fitted_on=fitted_on, data_hash=data_hash, constants=constants)


def _written(value: float) -> float:
    """Seven digits: more differ from one machine's linear algebra to another's."""
    return float(f"{value:.7g}")


def nudged(rates: TimeRates, column: str, factor: float) -> TimeRates:
    """The rates with one column multiplied, within its bound."""
    most = BELIEFS[ALIASES.get(column, column)].most
    return replace(rates, **{column: np.minimum(getattr(rates, column) * factor, most)})
