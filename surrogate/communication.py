"""Times of collectives: latency plus traffic over the rate of the slowest domain that it crosses.

Traffic inside a scale-up domain runs over the links of each GPU, traffic between domains over the
NICs of all members that the group has in a domain. Groups that run at once (one a TP rank, one a
pipeline stage) use disjoint GPUs and thereby disjoint NICs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from surrogate.cases import ClusterColumns, Column
from surrogate.time_rates import TimeRates
from surrogate.topology import Group


@dataclass(frozen=True)
class Network:
    """Achieved rates in bytes/s and latencies in s of the two domains."""

    link: Column
    nic: Column
    alltoall_link: Column
    alltoall_nic: Column
    dispatch_link: Column
    dispatch_nic: Column
    link_latency: Column
    nic_latency: Column

    @classmethod
    def of(cls, cluster: ClusterColumns, rates: TimeRates) -> Network:
        """The network of each row."""
        return cls(
            link=cluster.link_bytes_per_s * rates.link_utilisation,
            nic=cluster.nic_bytes_per_s * rates.nic_utilisation,
            alltoall_link=cluster.link_bytes_per_s * rates.alltoall_link_utilisation,
            alltoall_nic=cluster.nic_bytes_per_s * rates.alltoall_nic_utilisation,
            dispatch_link=cluster.link_bytes_per_s * rates.dispatch_link_utilisation,
            dispatch_nic=cluster.nic_bytes_per_s * rates.dispatch_nic_utilisation,
            link_latency=rates.link_latency,
            nic_latency=rates.nic_latency,
        )


def _latency_s(members: Group, network: Network) -> Column:
    """Latency of one ring or tree collective, 0 for a single rank."""
    across = network.nic_latency * np.log2(members.domains)
    return np.where(members.size > 1, network.link_latency + across, 0.0)


def _ring_rate(members: Group, network: Network) -> Column:
    """Bytes/s at which each rank sees the gathered tensor pass."""
    rails = network.nic * members.in_domain
    return np.where(members.domains > 1, np.minimum(network.link, rails), network.link)


def all_gather_s(total_bytes: Any, members: Group, network: Network) -> Column:
    """Time to gather a tensor of ``total_bytes``; reduce-scatter is its mirror.

    A ring passes (size - 1)/size of the tensor through every rank (NCCL busbw convention).
    """
    share = (members.size - 1) / members.size
    passing = total_bytes * share / _ring_rate(members, network)
    result: Column = passing + _latency_s(members, network)
    return result


def all_reduce_s(total_bytes: Any, members: Group, network: Network) -> Column:
    """Reduce-scatter and all-gather."""
    return 2.0 * all_gather_s(total_bytes, members, network)


def all_to_all_s(rank_bytes: Any, members: Group, network: Network, turns: Any = 1.0) -> Column:
    """Time of an all-to-all in which each rank holds ``rank_bytes``, spread evenly over all ranks.

    Inside a domain over the links and between domains over one NIC a rank, both at once.

    Args:
        turns: parts into which the exchange inside a domain falls, one after another, each over
            its share of the links.
    """
    inside = rank_bytes * (members.in_domain - 1) / members.size / network.alltoall_link * turns
    outside = rank_bytes * (members.size - members.in_domain) / members.size
    result: Column = np.maximum(inside, outside / network.alltoall_nic)
    return result + _latency_s(members, network)


def dispatch_s(token_bytes: Any, topk: Any, members: Group, network: Network) -> Column:
    """Time to send tokens to the ranks of their experts, once per rank and once per domain.

    DeepEP and HybridEP forward inside the domain: a token crosses the NIC once for every remote
    domain that holds one of its ``topk`` experts, and a link once for every rank that does.

    Args:
        token_bytes: the tokens of one rank, one copy each.
    """
    ranks = members.size * (1.0 - (1.0 - 1.0 / members.size) ** topk)
    inside = token_bytes * ranks * (members.in_domain - 1) / members.in_domain
    remote = (members.domains - 1) * (1.0 - (1.0 - 1.0 / members.domains) ** topk)
    outside = token_bytes * remote / network.dispatch_nic
    result: Column = np.maximum(inside / network.dispatch_link, outside)
    return result + _latency_s(members, network)


def ring_step_s(step_bytes: Any, members: Group, network: Network) -> Column:
    """Time to pass ``step_bytes`` to the next rank of a ring; a ring over domains waits for a NIC.

    Each rank sends one message, so one NIC carries it where the next rank is in another domain.
    """
    rate = np.where(members.domains > 1, np.minimum(network.link, network.nic), network.link)
    result: Column = step_bytes / rate + _latency_s(members, network)
    return result
