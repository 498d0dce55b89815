"""Which configs are legal, and why the others are not.

The rules are in ``legality_mesh`` and ``legality_features``. They follow Megatron semantics:
world = tp*pp*cp*dp and etp*ep*pp*edp exactly, no idle GPUs; expert parallelism folds over tp, cp
and dp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specs import legality_features, legality_mesh
from specs.cluster import Cluster
from specs.config import ConfigTable, TrainingConfig
from specs.legality_rule import RULES, Rule
from specs.legality_scope import Mask, Scope
from specs.stack import Stack
from specs.workload import Workload

__all__ = ["RULES", "Violations", "applying_rules", "legal_mask", "violations", "why_illegal"]

_RULE_BOOKS = (legality_mesh, legality_features)
"""Importing a module of rules registers them."""

CHUNK_ROWS = 1 << 15
"""Rows judged at a time: columns of a chunk stay in the cache."""


@dataclass(frozen=True)
class Violations:
    """Which rows break which rule: one mask of shape (n,) a rule that applies to the job."""

    masks: dict[str, Mask]
    scope: Scope

    @property
    def legal(self) -> Mask:
        """Rows that break no rule, shape (n,)."""
        legal = np.ones(len(self.scope.table), dtype=bool)
        for mask in self.masks.values():
            legal &= ~mask
        return legal

    def counts(self) -> dict[str, int]:
        """Rule -> how many rows break it, for rules that any row breaks."""
        found = {name: int(mask.sum()) for name, mask in self.masks.items()}
        return {name: count for name, count in found.items() if count}

    def sentences(self, row: int) -> list[str]:
        """Why a row is illegal, one sentence a broken rule; empty where it is legal."""
        broken = [RULES[name] for name, mask in self.masks.items() if mask[row]]
        facts = self.scope.facts(row) if broken else {}
        return [_sentence(rule, facts) for rule in broken]


def violations(
    table: ConfigTable, workload: Workload, cluster: Cluster, stack: Stack
) -> Violations:
    """Judges every row of a table by every rule that applies to the job."""
    scope = Scope(table, workload, cluster, stack)
    masks = {rule.name: rule.check(scope) for rule in applying_rules(scope)}
    return Violations(masks, scope)


def legal_mask(table: ConfigTable, workload: Workload, cluster: Cluster, stack: Stack) -> Mask:
    """Which rows are legal, shape (n,)."""
    if len(table) <= CHUNK_ROWS:
        return violations(table, workload, cluster, stack).legal
    chunks = table.chunks(CHUNK_ROWS)
    return np.concatenate([violations(c, workload, cluster, stack).legal for c in chunks])


def why_illegal(
    config: TrainingConfig, workload: Workload, cluster: Cluster, stack: Stack
) -> list[str]:
    """Why a config is illegal, one sentence a broken rule; empty where it is legal."""
    table = ConfigTable.from_configs([config])
    return violations(table, workload, cluster, stack).sentences(0)


def applying_rules(scope: Scope) -> list[Rule]:
    """The rules of this job's stack and model."""
    return [rule for rule in RULES.values() if rule.applies(scope)]


def _sentence(rule: Rule, facts: dict[str, object]) -> str:
    text = rule.message.format(**facts).rstrip(".")
    return f"{text} ({rule.source})."
