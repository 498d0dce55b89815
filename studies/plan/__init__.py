"""Capacity planning: many workloads on many clusters, what each costs and which is big enough."""
