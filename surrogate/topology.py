"""Where the ranks of a parallel group sit: in one scale-up domain, one node, or across nodes.

Ranks are ordered tp-cp-ep-dp-pp (Megatron ``parallel_state``): a group has a size and a stride, the
distance of neighbours in the global rank. Scale-up domains (NVLink or xGMI islands) are blocks of
consecutive ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.cases import Column


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: how many, how many of them in a domain, and in how many domains."""

    size: Column
    in_domain: Column
    domains: Column


def group(size: Any, stride: Any, domain_gpus: Any) -> Group:
    """The group of ``size`` ranks ``stride`` apart over domains of ``domain_gpus`` GPUs.

    All arguments broadcast. ``in_domain`` is at least 1 and at most ``size``; ``domains`` is their
    quotient, rounded up.
    """
    in_domain = np.clip(domain_gpus // stride, 1, size)
    return Group(size=size, in_domain=in_domain, domains=-(-size // in_domain))
