"""Learning from another study: its residuals carry over as far as both studies agree.

Both studies project with the same physics, so what is compared is the log of measured over
projected, at equal axis values. Another model or cluster is another task: the covariance between
tasks is that within a task times an agreement in (0, 1), found with the other hyperparameters by
marginal likelihood. A worthless source therefore gets an agreement near 0 and is ignored; as a
second guard its agreement is judged on this study's own points and the source is dropped where it
predicts them worse than the projection alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.gaussian_process import GaussianProcess, Points

if TYPE_CHECKING:
    from search.pool import Pool

Floats = NDArray[np.float64]

MOST_POINTS = 80
"""Points of one source that are used: the fastest half, the rest spread over the others."""
LEAST_JUDGED = 4
"""Own points from which a source can be judged."""


@dataclass(frozen=True)
class Source:
    """A finished study: parameters, log of projected and log of measured value of its k trials.

    ``name`` names it in notes. Values are higher-is-better.
    """

    name: str
    parameters: tuple[Mapping[str, Any], ...]
    log_projected: Floats
    log_measured: Floats

    def __len__(self) -> int:
        return len(self.parameters)

    def chosen(self) -> Source:
        """At most ``MOST_POINTS`` trials: the fastest half and an even spread of the others."""
        if len(self) <= MOST_POINTS:
            return self
        order = np.argsort(-self.log_measured, kind="stable")
        best, rest = order[: MOST_POINTS // 2], order[MOST_POINTS // 2 :]
        spread = rest[np.linspace(0, len(rest) - 1, MOST_POINTS - len(best)).astype(np.int64)]
        rows = np.concatenate([best, spread])
        return Source(
            self.name,
            tuple(self.parameters[row] for row in rows),
            self.log_projected[rows],
            self.log_measured[rows],
        )


def with_sources(
    pool: Pool, observed: Points, value: Floats, sources: Sequence[Source]
) -> tuple[Points, Floats]:
    """The evidence of this study followed by that of the sources, each its own task.

    Args:
        pool: the candidates of this study; projects throughput.
        observed, value: this study's own points.
        sources: studies to learn from.
    """
    points = Points(observed.coordinates, observed.trends, observed.tasks)
    values = value
    task = 0
    for source in sources:
        placed = source_points(pool, source.chosen(), task + 1)
        if placed is None or not is_worth(observed, value, *placed):
            continue
        task += 1
        points = points.joined(placed[0])
        values = np.concatenate([values, placed[1]])
    return (points, values) if task else (observed, value)


def source_points(pool: Pool, source: Source, task: int) -> tuple[Points, Floats] | None:
    """A source's trials in the coordinates of this pool; None where none can be placed.

    Values that the pool does not list count as the nearest that it does.
    """
    codes, kept = [], []
    for number, parameters in enumerate(source.parameters):
        code = pool.code_of(parameters, exactly=False)
        if code is not None and len(code) == len(pool.space):
            codes.append([code[position] for position in range(len(pool.space))])
            kept.append(number)
    if not kept:
        return None
    projected, measured = source.log_projected[kept], source.log_measured[kept]
    placed = np.array(codes, dtype=np.int64)
    centre = float(np.max(source.log_projected))
    trends = (projected - centre)[:, None]
    if pool.belief is not None and pool.belief.loadings is not None:
        # What a projection is unsure of elsewhere is that of the candidate most like it here.
        trends = np.column_stack([trends, pool.belief.loadings[nearest_rows(pool, placed)]])
    points = Points(pool.located(placed), trends, np.full(len(kept), task))
    return points, measured - centre


def nearest_rows(pool: Pool, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The candidates most like some points by their axes, shape (n,)."""
    plain, others = pool.coordinates, pool.located(codes)
    return np.asarray(np.argmax(plain.alike(others, np.ones(plain.axes)), axis=0))


def is_worth(observed: Points, value: Floats, points: Points, values: Floats) -> bool:
    """Whether a source makes this study's own values more likely, or there are too few to tell.

    Compares log p(own | source), the evidence of both together less that of the source, with
    log p(own).
    """
    from search.acquisition import projected_prior

    if len(value) < LEAST_JUDGED:
        return True
    prior = projected_prior(observed.trends.shape[1] - 1)
    own = Points(observed.coordinates, observed.trends, observed.tasks)
    both = own.joined(points)
    together = GaussianProcess.fit(both, np.concatenate([value, values]), prior)
    alone = Points(points.coordinates, points.trends)
    theirs = GaussianProcess.fit(alone, values, prior)
    apart = Points(observed.coordinates, observed.trends)
    ours = GaussianProcess.fit(apart, value, prior)
    gained = together.log_likelihood - theirs.log_likelihood - ours.log_likelihood
    return bool(gained > 0.0)


def nearest_legal(pool: Pool, parameters: Mapping[str, Any]) -> int | None:
    """The candidate most like a config of another study; None where it cannot be compared."""
    code = pool.code_of(parameters, exactly=False)
    if code is None or not code:
        return None
    columns = sorted(code)
    wanted = np.array([[code.get(position, 0) for position in range(len(pool.space))]])
    point, candidates = pool.located(wanted), pool.coordinates
    given = {list(pool.space)[column] for column in columns}
    weight = np.array([float(name in given) for name in candidates.names])
    return int(np.argmax(candidates.alike(point, weight)[:, 0]))
