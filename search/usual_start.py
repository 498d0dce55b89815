"""The usual start: the config that a competent engineer would begin with where nobody states one.

The guidelines are published ones:

- Narayanan et al. 2021 (arXiv:2104.04473), takeaways 1 and 2: the smallest model-parallel size
  TP * PP with which the model fits, TP up to the GPUs of a node, then PP.
- Megatron-Core, megatron/core/transformer/moe/README.md, "Performance Best Practice": least model
  parallelism, EP (and TP) within the NVLink domain, PP beyond it, EP rather than TP for experts,
  CP from sequences of 8K on, distributed optimizer.
- Huang et al. 2019 (arXiv:1811.06965): the bubble is small from four microbatches a stage on.

What the framework switches on in its own recipes is on; everything else is at its default. Of
recomputation there is as little as fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from search.axes import Axes, Setting, divisors, layout_values
from search.companions import with_companions
from specs.choices import Precision, Recompute, RecomputeMethod, RecomputeModules, Sharding
from specs.config import ConfigTable, TrainingConfig
from specs.legality_scope import MEGATRON_FAMILY, Column
from specs.run_words import default_dispatcher, default_overlap
from specs.stack import Framework, Stack

LAYOUT_AXES = ("tp", "pp", "vpp", "layout", "cp", "ep", "etp")
"""Whoever states one of these has chosen how to lay the model out."""
SURE = 0.9
"""Fit probability from which on a start has margin (chosen)."""
TOKENS_PER_RANK = 8192
"""Tokens of a sequence on a rank beyond which it is split by CP (Megatron-Core, as above)."""
MICROBATCHES_PER_STAGE = 4
"""Microbatches a pipeline stage that keep the bubble small (Huang et al. 2019, section 2.3)."""


@dataclass(frozen=True, slots=True)
class UsualStart:
    """A config to begin with, and why it is this one, as the end of a sentence with "because"."""

    config: TrainingConfig
    why: str


def usual_start(
    setting: Setting, allowed: Axes, memory: Callable[[ConfigTable], tuple[Column, Column]]
) -> UsualStart | None:
    """The first legal config, in the order of the guidelines, that surely fits.

    Where none does it is the one that fits most likely, of several the leanest; None where no
    candidate is legal.

    Args:
        setting: what is trained, where and with what; axes not chosen here stay at its baseline.
        allowed: axis -> the values it may take, where they were stated or narrowed.
        memory: fit probability and peak in GiB of every row of a table, each of shape (n,).
    """
    likeliest: tuple[float, float, UsualStart] | None = None
    for by_the_book in (True, False):
        configs = _legal(setting, allowed, by_the_book)
        if not configs:
            continue
        chance, peak_gib = memory(ConfigTable.from_configs(configs))
        sure = np.flatnonzero(chance >= SURE)
        if len(sure):
            row = int(sure[0])
            return UsualStart(configs[row], _why(setting, configs[row], chance[row], by_the_book))
        row = int(np.lexsort((peak_gib, -chance))[0])
        held = float(chance[row]), -float(peak_gib[row])
        if likeliest is None or held > likeliest[:2]:
            why = f"no usual start surely fits, and this one likeliest ({chance[row]:.0%})"
            likeliest = *held, UsualStart(configs[row], why)
    return likeliest[2] if likeliest else None


def _why(setting: Setting, config: TrainingConfig, chance: float, by_the_book: bool) -> str:
    """Which guidelines lead to a config."""
    moe = setting.workload.model.is_moe
    order = "EP in the scale-up domain, then PP, then TP" if moe else "TP within a node, then PP"
    words = f"it is the least model parallelism that surely fits ({chance:.0%}): {order}"
    if config.recompute is not Recompute.NONE:
        words += f"; without {config.recompute.label} recomputation none does"
    if not by_the_book:
        domain = ", EP in that domain" if moe else ""
        words += (
            f"; with at most {TOKENS_PER_RANK:,} tokens of a sequence a rank{domain} and at least "
            f"{MICROBATCHES_PER_STAGE} microbatches a stage none does"
        )
    return words


def _legal(setting: Setting, allowed: Axes, by_the_book: bool) -> list[TrainingConfig]:
    """Legal candidates that keep to ``allowed``, in the order of the guidelines."""
    found = dict.fromkeys(_candidates(setting, allowed, by_the_book))
    configs = [config for config in found if _keeps_to(config, allowed)]
    if not configs:
        return []
    table = ConfigTable.from_configs(configs)
    legal = setting.legal(table)
    if by_the_book:
        gpus, batch = setting.cluster.num_gpus, setting.workload.global_batch_size
        filled = table.microbatches(gpus, batch) >= MICROBATCHES_PER_STAGE * table.pp
        legal = legal & ((table.pp == 1) | filled)
    kept = [config for config, good in zip(configs, legal, strict=True) if good]
    moe = setting.workload.model.is_moe
    return sorted(kept, key=lambda config: _rank(config, moe))


def _rank(config: TrainingConfig, moe: bool) -> tuple[int, ...]:
    """Place in the order of the guidelines: less recomputation, then less model parallelism."""
    size = config.cp * config.tp * config.pp
    within = config.tp if moe else -config.tp
    return int(config.recompute), config.cp, size, within, -config.ep


def _keeps_to(config: TrainingConfig, allowed: Axes) -> bool:
    return all(getattr(config, name) in values for name, values in allowed.items())


def _candidates(setting: Setting, allowed: Axes, by_the_book: bool) -> Iterator[TrainingConfig]:
    """Meshes and ways of recomputation around what the framework does by default."""
    held = _held(setting, allowed)
    sizes = _sizes(setting, allowed, by_the_book)
    for tp, pp, cp, ep in product(*(sizes[name] for name in ("tp", "pp", "cp", "ep"))):
        mesh = {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
        for layout in allowed.get("layout", layout_values(setting, (pp,))):
            placed = with_companions(held, mesh | {"layout": layout})
            placed = with_companions(placed, _overlap(setting.stack, placed, allowed))
            for changes in _recomputations(setting, placed, allowed):
                yield with_companions(placed, changes)


def _sizes(setting: Setting, allowed: Axes, by_the_book: bool) -> Axes:
    """Sizes of the mesh: as stated or narrowed, else those that the guidelines speak of."""
    model, cluster = setting.workload.model, setting.cluster
    world, node = divisors(cluster.num_gpus), divisors(cluster.gpus_per_node)
    longest = setting.workload.seq_len
    enough = next((n for n in world if longest <= n * TOKENS_PER_RANK), world[-1])
    experts = divisors(model.num_experts) if model.is_moe else [1]
    sizes: Axes = {
        "tp": tuple(node),
        "pp": tuple(n for n in world if n <= model.num_layers),
        "cp": (enough,) if by_the_book else tuple(n for n in world if longest >= n * 128),
        "ep": tuple(n for n in experts if not by_the_book or n <= cluster.scale_up_gpus),
    }
    return {name: allowed.get(name, values) for name, values in sizes.items()}


def _held(setting: Setting, allowed: Axes) -> TrainingConfig:
    """What does not depend on the mesh: the framework's habits where nothing else is stated."""
    gpu, stack = setting.cluster.gpu, setting.stack
    usual: Mapping[str, Any] = {
        "precision": next(p for p in _FORMATS if gpu.supports(p)),
        "sharding": default_sharding(stack),
        "moe_dispatcher": default_dispatcher(stack, gpu)
        if setting.workload.model.is_moe
        else setting.baseline.moe_dispatcher,
    }
    values = {name: allowed_value(value, allowed.get(name)) for name, value in usual.items()}
    base = setting.baseline
    for name, choices in allowed.items():
        if name not in values and not name.startswith("recompute"):
            values[name] = allowed_value(getattr(base, name), choices)
    return with_companions(base, values)


_FORMATS = (Precision.BF16, Precision.FP16, Precision.FP32)


def default_sharding(stack: Stack) -> Sharding:
    """The distributed optimizer where the framework has one, else FSDP."""
    zero = (*MEGATRON_FAMILY, Framework.DEEPSPEED, Framework.MEGATRON_DEEPSPEED, Framework.OTHER)
    return Sharding.ZERO1 if stack.framework in zero else Sharding.FSDP


def allowed_value(usual: Any, choices: tuple[Any, ...] | None) -> Any:
    """The usual value where it is allowed, else the first that is."""
    return usual if choices is None or usual in choices else choices[0]


def _overlap(stack: Stack, config: TrainingConfig, allowed: Axes) -> dict[str, Any]:
    """What the recipes of the framework overlap in a config."""
    usual = default_overlap(stack, config.sharding, config.tp, config.sequence_parallel)
    return {"overlap": allowed_value(usual, allowed.get("overlap"))}


def _recomputations(
    setting: Setting, config: TrainingConfig, allowed: Axes
) -> Iterator[dict[str, Any]]:
    """Ways of recomputation: none, then selective, then of every layer."""
    chunk = -(-setting.workload.model.num_layers // (config.pp * config.vpp))
    modules = [m for m in allowed.get("recompute_modules", (RecomputeModules.CORE_ATTN,)) if m]
    yield {"recompute": Recompute.NONE}
    yield from ({"recompute_modules": module} for module in modules[:1])
    for method, layers in ((RecomputeMethod.UNIFORM, 1), (RecomputeMethod.BLOCK, chunk)):
        counts = allowed.get("recompute_layers", (layers,))
        if method in allowed.get("recompute_method", (RecomputeMethod.UNIFORM,)) and any(counts):
            fewest = allowed_value(layers, tuple(n for n in counts if n))
            yield {
                "recompute": Recompute.FULL,
                "recompute_method": method,
                "recompute_layers": fewest,
            }
