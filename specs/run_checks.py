"""What a row of the measured-runs format must satisfy to be projected, beyond well-formed values.

Rows come from many frameworks, so only the rules of legality that bind all of them are theirs: what
the GPU cannot multiply and what cannot be split. Not one of 3,113 public runs breaks these.
"""

from __future__ import annotations

from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.errors import InputError
from specs.layout import virtual_stages
from specs.legality import RULES, Violations
from specs.legality_scope import Scope
from specs.stack import Stack
from specs.workload import Workload

ROW_RULES = (
    "precision_by_gpu",
    "heads_divide",
    "groups_divide",
    "mlp_width_divides",
    "experts_divide",
    "expert_width_divides",
)
"""Names of the rules of legality that rows obey."""

_LAYERS_AT_THE_ENDS = 2
"""Embedding and loss may count as layers of a pipeline of their own (Megatron-LM)."""


def check_projectable(
    config: TrainingConfig, workload: Workload, cluster: Cluster, stack: Stack
) -> None:
    """Refuses a layout that does not hold the model, a format whose peak is not known and what
    breaks one of ROW_RULES.

    Raises:
        InputError: one of them.
    """
    model = workload.model
    stages = config.pp * config.vpp
    if stages > model.num_layers + _LAYERS_AT_THE_ENDS:
        raise InputError(
            f"pp*vpp {stages} is more than the {model.num_layers} layers of {model.name}: some "
            "stages would be empty."
        )
    virtual_stages(
        config.layout,
        model.num_layers,
        model.mtp_layers,
        config.pp,
        config.vpp,
        config.schedule.is_v_shaped,
    )
    scope = Scope(ConfigTable.from_configs([config]), workload, cluster, stack)
    rules = [RULES[name] for name in ROW_RULES]
    masks = {rule.name: rule.check(scope) for rule in rules if rule.applies(scope)}
    broken = Violations(masks, scope).sentences(0)
    if broken:
        raise InputError(" ".join(broken))
    multiplied = config.precision.gemm_format
    if multiplied != "fp32" and multiplied not in cluster.gpu.peak_flops:
        raise InputError(
            f"{cluster.gpu.name} has no peak_flops of {multiplied}, in which "
            f"{config.precision.label} multiplies."
        )


def check_batch(gbs: int, mbs: int, dp: int) -> None:
    """Refuses a batch that does not fall on the data-parallel ranks in whole microbatches.

    Raises:
        InputError: it does not; the projected step would be one of fewer samples than are counted.
    """
    if gbs % (mbs * dp):
        raise InputError(
            f"gbs {gbs} is not a multiple of mbs*dp {mbs * dp} ({mbs}*{dp}); gbs counts the "
            "sequences of a step on all GPUs: correct it, mbs or the sizes that dp follows from."
        )
