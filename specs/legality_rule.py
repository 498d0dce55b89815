"""What a legality rule is, and the registry in which the rules are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specs.legality_scope import MEGATRON_FAMILY, Mask, Scope
from specs.stack import Framework

Check = Callable[[Scope], Mask]
AppliesTo = Callable[[Scope], bool]


@dataclass(frozen=True)
class Rule:
    """One rule: what breaks it, how that is said and where it comes from.

    ``message`` is a format string over ``Scope.facts``. ``applies`` is False for stacks and models
    that do not have the rule.
    """

    name: str
    message: str
    source: str
    check: Check
    applies: AppliesTo


RULES: dict[str, Rule] = {}


def everywhere(_: Scope) -> bool:
    """Applies to every stack."""
    return True


def megatron(scope: Scope) -> bool:
    """Applies to Megatron core and what is built on it."""
    return scope.stack.framework in MEGATRON_FAMILY


def primus(scope: Scope) -> bool:
    """Applies to Primus."""
    return scope.stack.framework is Framework.PRIMUS


def moe(scope: Scope) -> bool:
    """Applies to MoE models."""
    return scope.is_moe


def megatron_moe(scope: Scope) -> bool:
    """Applies to MoE models on Megatron core."""
    return megatron(scope) and scope.is_moe


def rule(message: str, source: str, applies: AppliesTo = everywhere) -> Callable[[Check], Check]:
    """Registers a check as the rule of its name."""

    def register(check: Check) -> Check:
        name = check.__name__
        RULES[name] = Rule(name, message, source, check, applies)
        return check

    return register
