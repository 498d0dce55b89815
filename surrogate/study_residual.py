"""What measured runs say of the configs of one study, millions of them.

Likeness is a product over coordinates. Those that depend on the mesh and those that depend on
anything else take few values each: likeness to the facts is computed once for each value, and
multiplied for each config.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surrogate.cases import Cases, Column
from surrogate.features import FEATURES, MESH, MESH_AXES, STYLE, features, style_keys
from surrogate.likeness import likeness
from surrogate.pipeline.stages import distinct_rows
from surrogate.posterior import UNTHREADED, blocks, credited, explained, left_sd

Floats = NDArray[np.float64]

KEPT = 96
"""Facts of a study that its spread is computed from: covariances with them imply those with all
others, so that half widths are those from all facts to 0.6% (measured on six studies)."""
PAIRS = 512
"""Configs from which it is learned how covariances imply others; half as many are too few."""
RIDGE = 1e-8
"""Of the mean square of a covariance: keeps what covariances imply apart from rounding."""
POINTS_AT_ONCE = UNTHREADED // KEPT**2
"""Distinct configs computed at once."""
_MESH, _STYLE = ([FEATURES.index(name) for name in names] for names in (MESH, STYLE))
OF_STUDY = [i for i, name in enumerate(FEATURES) if name not in MESH + STYLE]
"""Coordinates that do not depend on the config."""


@dataclass(frozen=True)
class StudyFacts:
    """Facts of one study, those that its spread is computed from first.

    ``scale`` is their covariance with a config of the study that has their MESH and STYLE, shape
    (r,). ``weights``, shape (r, 2), make a mean of covariances, and the mean of the same config
    within a scale-up domain. ``whitening``, shape (m, m), makes of the covariances with the first m
    facts numbers whose squares sum up to the variance that all facts explain.
    """

    points: Floats
    scale: Floats
    weights: Floats
    whitening: Floats

    def predict(self, cases: Cases, own_sd: Floats, with_sd: bool) -> tuple[Floats, Floats, Floats]:
        """Mean, sd and bare mean of rows of the study; each gets the same in any company.

        Args:
            cases: n rows.
            own_sd: prior sd of each, all the same.
            with_sd: whether to compute the sd (NaN otherwise).
        """
        own_sd = own_sd[:1]
        first, mesh = distinct_rows(tuple(getattr(cases.config, axis) for axis in MESH_AXES))
        meshes = features(cases.take(first))[:, _MESH]
        first, style = distinct_rows(style_keys(cases))
        styles = features(cases.take(first))[:, _STYLE]
        bare = styles * (np.array(STYLE) != "recompute")
        styles, kind = np.unique(np.concatenate([styles, bare]), axis=0, return_inverse=True)
        by_mesh = likeness(meshes, self.points[:, _MESH])
        by_mesh *= self.scale
        by_style = likeness(styles, self.points[:, _STYLE])
        as_is, without = kind.reshape(2, -1)[:, style]
        mean, sd = self._of_pairs(by_mesh, by_style, mesh, as_is, own_sd, with_sd)
        again = np.flatnonzero(as_is != without)
        bare_mean = mean.copy()
        bare_mean[again], _ = self._of_pairs(
            by_mesh, by_style, mesh[again], without[again], own_sd, False
        )
        return mean, sd, bare_mean

    def _of_pairs(
        self,
        by_mesh: Floats,
        by_style: Floats,
        mesh: Column,
        style: Column,
        own_sd: Floats,
        with_sd: bool,
    ) -> tuple[Floats, Floats]:
        """Mean and sd of n configs from the tables of likeness and their rows in them, (n,)."""
        first, index = distinct_rows((mesh, style))

        def shared(some: slice) -> Floats:
            found: Floats = by_mesh.take(mesh[first[some]], axis=0)
            found *= by_style.take(style[first[some]], axis=0)
            return found

        sums, closest, known = explained(
            blocks(len(first), POINTS_AT_ONCE),
            shared,
            self.weights,
            self._whitened if with_sd else None,
        )
        mean = credited(sums[:, 0], sums[:, 1], closest, own_sd)
        return mean[index], left_sd(known, own_sd)[index]

    def _whitened(self, shared: Floats) -> Floats:
        """Covariance with the facts, shape (n, r), as that with few uncorrelated ones."""
        return self.whitening @ shared[:, : len(self.whitening)].T


def implied_by_few(points: Floats, scale: Floats) -> tuple[Column, Floats]:
    """(m of r facts, how covariances with them imply those with all, shape (m, r)).

    Covariances of a study's configs with its facts are products of few coordinates, so they lie
    close to a plane of few dimensions. It is spanned by the configs that have the mesh of one fact
    and the style of another; the facts are those on which the plane depends most (QR with pivoting:
    Golub, Van Loan 2013, section 5.4.2).

    Args:
        points: coordinates of the facts, shape (r, f).
        scale: see ``StudyFacts``.
    """
    from scipy.linalg import qr

    if len(points) <= KEPT:
        return np.arange(len(points)), np.eye(len(points))
    rng = np.random.default_rng(0)
    mesh, style = rng.integers(len(points), size=(2, PAIRS))
    mesh[: PAIRS // 4] = style[: PAIRS // 4]
    shared = likeness(points[mesh][:, _MESH], points[:, _MESH])
    shared *= likeness(points[style][:, _STYLE], points[:, _STYLE])
    shared *= scale
    kept = np.sort(qr(shared, mode="r", pivoting=True)[1][:KEPT])
    few = shared[:, kept]
    square = few.T @ few
    square += RIDGE * np.trace(square) / len(kept) * np.eye(len(kept))
    implied = np.asarray(np.linalg.solve(square, few.T @ shared), dtype=np.float64)
    return kept, implied
