"""Fit of linear models on parts: sums of all ranks, and the solution of the equations in this process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, eigvalsh, svd, svdvals

from workbench.errors import InvalidRequest
from workbench.ml.algebra.equations import (
    Solve,
    by_factor,
    by_vectors,
    cholesky,
    in_units,
    less_null,
    rounding_of,
    solver,
    units_of,
)
from workbench.ml.algebra.memory_limits import UNASKED, Limit
from workbench.ml.algebra.row_slices import upper
from workbench.ml.algebra.sums import about_mean, join_triangles
from workbench.ml.engine.parts import Parts, Passes, weighed

_Array = NDArray[np.float64]

# Eigenvalues of products of rows above this fraction of the largest have enough digits for the correction.
_KNOWN = 1e-10
# Maximum number of columns in an error.
_NAMED = 10
# Columns with a larger component of a dependent direction are dependent.
_PART = 0.01


@dataclass(frozen=True)
class Fitted:
    """The result of a fit."""

    coef: _Array
    """Shape (targets, features)."""
    intercept: _Array
    """Shape (targets,)."""
    rank: int
    """Number of singular values above the tolerance."""
    singular: _Array
    """The singular values of the centered rows, shape (min(rows, features),), in descending order."""
    dependent: NDArray[np.intp]
    """The columns that depend on others, or on the intercept."""


@dataclass(frozen=True)
class Settings:
    """Settings of a fit, with the names of the parameters."""

    alpha: float | _Array
    """The penalty, or one penalty per target."""
    fit_intercept: bool
    tol: float
    rows: int
    targets: int = 1
    limit: Limit = UNASKED

    def for_triangles(self, features: int) -> int:
        """Return the maximum bytes of matrices of QR decompositions for a number of features."""
        return max(24 * features * min(self.rows, 2 * features) + 32 * features**2, 66 * features**2)


@dataclass(frozen=True)
class _Sums:
    """Weighted sums of all rows after a pass."""

    gram: _Array
    """Products of centered features, shape (features, features): the upper half."""
    projection: _Array
    """Products of features and targets, shape (features, targets)."""
    middle: _Array | None
    """The mean of the rows; None without an intercept."""
    target: _Array
    """The mean of the targets, 0 without an intercept."""
    constant: NDArray[np.bool_]
    """Which columns are constant: 0, or the multiple of an intercept."""


@dataclass(frozen=True)
class _Free:
    """The result of a fit without a penalty."""

    singular: _Array
    rank: int
    dependent: NDArray[np.intp]
    solve: Solve | None
    """Solves the equations; None if the sums have too few digits."""
    coef: _Array | None = None
    """Shape (features, targets), if `solve` is None: with all digits, so that no correction is needed."""


def needs(features: int) -> int:
    """Return the bytes of the matrices of rank 0 during the solution, a third less without dependent columns."""
    return 24 * features**2


def fit(parts: Parts, settings: Settings) -> Fitted:
    """Fit a model.

    Parameters
    ----------
    parts
        `LinearPart` objects.
    settings
        The settings.

    Raises
    ------
    ValueError
        If all weights are 0.
    InvalidRequest
        If the matrices of the third pass exceed the memory limit.

    Notes
    -----
    Two passes: sums of products, and a correction. The normal equations of the sums lose digits with the square of the
    condition of the rows. The correction, from the residuals of the targets, restores these digits: the corrected
    seminormal equations of Björck, Linear Algebra and its Applications 88/89 (1987). All equations are in units in
    which each column has length 1, so that the units of the features cost no digits: van der Sluis, Numerische
    Mathematik 14 (1969).

    Without a penalty, a third pass with QR decompositions follows if the sums have too few digits: if a singular value
    is near `tol`, or the condition is above 1e5. If several coefficients fit best, the result is the shortest.
    """
    passes = Passes(parts)
    sums = _sums(passes, settings)
    penalties = np.broadcast_to(settings.alpha, len(sums.target))
    free = None if penalties.all() else _free(passes, sums, settings)
    exact = penalties == 0 if free and free.solve is None else np.zeros(len(penalties), dtype=bool)

    def solve_for(penalty: float) -> Solve:
        return free.solve if free and free.solve and not penalty else solver(sums.gram, penalty)

    def solved(projection: _Array) -> _Array:
        coef = np.zeros_like(projection)
        for penalty in np.unique(penalties[~exact]):
            targets = penalties == penalty
            # A factor has the size of the matrix, so that none is kept for the next penalty, or for the correction.
            coef[:, targets] = solve_for(float(penalty))(projection[:, targets])
        return coef

    coef = solved(sums.projection)
    if free and free.coef is not None:
        coef[:, exact] = free.coef[:, exact]
    if not exact.all():
        coef += solved(passes.sum("pull", sums.middle, sums.target, coef) - penalties * coef)
    intercept = sums.target if sums.middle is None else sums.target - sums.middle @ coef
    if free is None:
        return Fitted(coef.T, intercept, len(coef), np.empty(0), np.empty(0, dtype=np.intp))
    return Fitted(coef.T, intercept, free.rank, free.singular, free.dependent)


def _sums(parts: Passes, settings: Settings) -> _Sums:
    """Return the sums of products of centered rows, from rows minus the mean of a sample."""
    middle, target = None, np.zeros(settings.targets)
    if settings.fit_intercept:
        number, rows, targets = parts.sum("sample", settings.rows)
        middle, target = rows / number, targets / number
    while True:
        weight, packed, projection, rows, targets = parts.sum("products", middle, target)
        weighed(weight)
        if middle is None:
            matrix = upper(packed, len(rows))
            return _Sums(matrix, projection.copy(), None, target, np.diag(matrix) <= 0)
        gram = about_mean(packed, rows, weight, middle)
        # The projection is a view of the large message, which the subtraction releases.
        projection = projection - np.outer(rows, targets / weight)
        near, middle, target = not gram.far or (middle == gram.mean).all(), gram.mean, target + targets / weight
        if near:
            return _Sums(gram.matrix, projection, middle, target, gram.constant)


def _free(parts: Passes, sums: _Sums, settings: Settings) -> _Free:
    """Return the solution without a penalty, and the dependent columns."""
    gram, width = sums.gram, len(sums.gram)
    scale = units_of(np.where(sums.constant, 0.0, np.diag(gram)))
    singular = _singular(gram, settings)
    factor, reciprocal = (None, 0.0) if sums.constant.any() else cholesky(in_units(gram, scale))
    if factor is not None and reciprocal > max(settings.tol**2, _KNOWN):
        return _Free(singular, width, np.empty(0, dtype=np.intp), by_factor(factor, scale))
    # The factor has the size of the matrix, and so have the vectors.
    del factor
    values, vectors = eigh(in_units(gram, scale), lower=False, overwrite_a=True, check_finite=False)
    shares, rounding = values / (values[-1] or 1.0), rounding_of(gram)
    least = max(settings.tol**2, rounding)
    # Constant columns are known, and not doubtful.
    doubtful = (shares < _KNOWN) & (shares > settings.tol**2 - rounding)
    if doubtful.sum() > (sums.constant.sum() if settings.tol**2 <= rounding else 0):
        if over := settings.limit.over(settings.for_triangles(width)):
            columns = ", ".join(map(str, _dependent(vectors[:, doubtful])[:_NAMED]))
            raise InvalidRequest(
                f"the columns {columns} of {width} features nearly depend on others, and the QR decomposition that "
                f"decides this needs {over}. Remove dependent columns, use Ridge, or use ranks with more memory."
            )
        del vectors
        return _decomposed(parts, sums, scale, settings)
    rank = int((shares > least).sum())
    return _Free(singular, rank, _dependent(vectors[:, : width - rank]), by_vectors(scale, values, vectors, rank))


def _decomposed(parts: Passes, sums: _Sums, scale: _Array, settings: Settings) -> _Free:
    """Return the result of `_free` from the QR decomposition of rows and targets, which has all digits."""
    width = len(scale)
    triangle = parts.fold(join_triangles, "triangle", sums.middle, sums.target, scale)[:width]
    rows, targets = triangle[:, :width], triangle[:, width:]
    left, values, right = svd(rows, check_finite=False)
    rank = int((values > max(settings.tol, rounding_of(rows)) * values.max(initial=0.0)).sum())
    along = (left.T @ targets)[:rank] / values[:rank, None]
    coef = less_null(scale, right[rank:].T, scale[:, None] * (right[:rank].T @ along))
    singular = np.zeros(min(settings.rows, width))
    unscaled = svdvals(rows / np.where(scale > 0, scale, 1.0), check_finite=False)[: len(singular)]
    singular[: len(unscaled)] = unscaled
    return _Free(singular, rank, _dependent(right[rank:].T), None, coef)


def _dependent(null: _Array) -> NDArray[np.intp]:
    return np.flatnonzero(np.linalg.norm(null, axis=1) > _PART)


def _singular(gram: _Array, settings: Settings) -> _Array:
    values = eigvalsh(gram, lower=False, check_finite=False)[::-1]
    singular: _Array = np.sqrt(np.clip(values, 0, None))[: settings.rows]
    return singular
