"""The two ways in which a request can fail without a bug: bad input, or nothing feasible."""

from __future__ import annotations


class InputError(Exception):
    """The input cannot be used; the message is one sentence: what, where, what to do (exit 2)."""


class InfeasibleError(Exception):
    """The input is fine but no config satisfies it; the message says by how much (exit 3)."""
