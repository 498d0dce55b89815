"""The Pareto front of a study: what throughput costs in memory headroom, money and energy."""

from __future__ import annotations

from typing import Any

import numpy as np

from search.pareto import DIRECTIONS, OBJECTIVES, TradeOff, pareto_front
from studies.training import Study

MOST = 20


def front_of(study: Study, most: int = MOST) -> list[dict[str, Any]]:
    """The best configs that trade throughput for headroom, fastest first, as JSON.

    Money and energy of a token follow throughput within one cluster, so they add no dimension to
    the front; they are stated for each config. A longer front is thinned evenly.
    """
    ranking = study.ranking
    trade = TradeOff.of(ranking, study.job.cluster)
    rows = pareto_front(trade.columns(OBJECTIVES[:2]), DIRECTIONS[:2])
    rows = rows[np.argsort(-trade.tokens_per_s_per_gpu[rows], kind="stable")]
    if len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
    return [
        {
            "config": ranking.table.config(int(row)).as_labels(),
            **{name: float(getattr(trade, name)[row]) for name in OBJECTIVES},
        }
        for row in rows
    ]
