"""Planners: who chooses the next bundle."""

from __future__ import annotations

from studies.toolbox.planners.acquisition import AcquisitionPlanner
from studies.toolbox.planners.exhaustive import ExhaustivePlanner
from studies.toolbox.planners.fixed_order import FixedOrderPlanner
from studies.toolbox.planners.random_order import RandomPlanner
from studies.toolbox.planners.tpe import TpePlanner
from studies.toolbox.search import Planner

PLANNERS = ("acquisition", "greedy", "random", "tpe", "exhaustive", "llm")


def make_planner(name: str, seed: int, threshold: float) -> Planner:
    """The planner of a name; that of a model (``planners.llm``) asks in a study only, and is the
    acquisition, its fallback, here.

    Raises:
        InputError: there is no such planner.
    """
    from specs.errors import InputError

    if name in ("acquisition", "llm"):
        return AcquisitionPlanner()
    if name == "greedy":
        return FixedOrderPlanner(threshold)
    if name == "random":
        return RandomPlanner(seed)
    if name == "tpe":
        return TpePlanner(seed)
    if name == "exhaustive":
        return ExhaustivePlanner()
    raise InputError(f"there is no planner {name!r}; there are {', '.join(PLANNERS)}.")
