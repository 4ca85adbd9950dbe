"""Linear models fitted on parts: the sums that all ranks are asked for, and the equations solved here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh, eigvalsh, lstsq, svd, svdvals
from scipy.linalg.lapack import dpocon

from workbench.ml.gram import about_mean
from workbench.ml.parts import Parts, weighed
from workbench.ml.passes import Passes
from workbench.ml.slices import upper
from workbench.ml.triangles import join_triangles

_Array = NDArray[np.float64]
_Solve = Callable[[_Array], _Array]
"""Returns coefficients, shape (features, targets), of a projection of this shape."""

_EPS = float(np.finfo(np.float64).eps)
# Eigenvalues of products of rows above this times the largest are known to as many digits as the correction needs.
_KNOWN = 1e-10
# A direction of columns depends on those columns that have more than this part in it.
_PART = 0.01


@dataclass(frozen=True)
class Fitted:
    """What a fit has found."""

    coef: _Array
    """Shape (targets, features)."""
    intercept: _Array
    """Shape (targets,)."""
    rank: int
    """How many singular values count."""
    singular: _Array
    """The singular values of the rows, less their mean, shape (min(rows, features),), falling."""
    dependent: NDArray[np.intp]
    """The columns that depend on others, or on the intercept."""


@dataclass(frozen=True)
class Settings:
    """How a fit is made; the names are those of the estimators."""

    alpha: float | _Array
    """The penalty, or that of each target."""
    fit_intercept: bool
    tol: float
    rows: int
    targets: int = 1


@dataclass(frozen=True)
class _Sums:
    """What is known of all rows, weighted, after a pass."""

    gram: _Array
    """Products of features, less their mean, shape (features, features): the upper half."""
    projection: _Array
    """Products of features and targets, shape (features, targets)."""
    middle: _Array | None
    """The mean of the rows; None without an intercept."""
    target: _Array
    """The mean of the targets, 0 without an intercept."""
    constant: NDArray[np.bool_]
    """Which columns are constant, beside the intercept or 0."""


@dataclass(frozen=True)
class _Free:
    """What is found without a penalty."""

    singular: _Array
    rank: int
    dependent: NDArray[np.intp]
    solve: _Solve | None
    """Solves the equations; None where they lack digits."""
    coef: _Array | None = None
    """Shape (features, targets), where there is no `solve`: with all digits, so that nothing is to be corrected."""


def needs(features: int) -> int:
    """Return the bytes of the matrices of rank 0, while it solves the equations."""
    return 16 * features**2


def fit(parts: Parts, settings: Settings) -> Fitted:
    """Fit a model.

    Parameters
    ----------
    parts
        `LinearPart` objects.
    settings
        How.

    Raises
    ------
    ValueError
        If all weights are 0.

    Notes
    -----
    Two passes: sums of products, and a correction. The equations of sums of products, the normal equations, lose as
    many digits as the square of the condition of the rows has; the correction, made of what is left of the targets,
    brings them back: Björck, Linear Algebra and its Applications 88/89 (1987), where these are called the corrected
    seminormal equations. All equations are in units in which each column has length 1: van der Sluis, Numerische
    Mathematik 14 (1969), so that the units of the features cost no digits.

    Without a penalty a third pass, by QR decompositions, finds what sums of products do not know: whether a singular
    value counts that is near `tol`, or a condition above 1e5. Of all coefficients that fit best the shortest are taken.
    """
    passes = Passes(parts)
    sums = _sums(passes, settings)
    penalties = np.broadcast_to(settings.alpha, len(sums.target))
    free = None if penalties.all() else _free(passes, sums, settings)
    exact = penalties == 0 if free and free.solve is None else np.zeros(len(penalties), dtype=bool)

    def solved(projection: _Array) -> _Array:
        coef = np.zeros_like(projection)
        for penalty in np.unique(penalties[~exact]):
            its = penalties == penalty
            # Factors are as large as the matrix: none is kept for the correction.
            solve = free.solve if free and free.solve and not penalty else _with_penalty(sums.gram, float(penalty))
            coef[:, its] = solve(projection[:, its])
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
    """Return the sums of products of rows less their mean, which are added as rows less the mean of a sample."""
    middle, target = None, np.zeros(settings.targets)
    if settings.fit_intercept:
        seen, rows, targets = parts.sum("sample", settings.rows)
        middle, target = rows / seen, targets / seen
    while True:
        weight, packed, projection, rows, targets = parts.sum("products", middle, target)
        weighed(weight)
        if middle is None:
            matrix = upper(packed, len(rows))
            return _Sums(matrix, projection.copy(), None, target, np.diag(matrix) <= 0)
        gram = about_mean(packed, rows, weight, middle)
        # Copied, as it is a view of the message, which is large.
        projection = projection - np.outer(rows, targets / weight)
        near, middle, target = not gram.far or (middle == gram.mean).all(), gram.mean, target + targets / weight
        if near:
            return _Sums(gram.matrix, projection, middle, target, gram.constant)


def _with_penalty(gram: _Array, penalty: float) -> _Solve:
    """Return what solves the equations of sums of products with a penalty."""
    scale = 1 / np.sqrt(np.clip(np.diag(gram), 0, None) + penalty)
    factor, known = _cholesky(_scaled(gram, scale))
    if factor is not None and known > _rounding(gram):
        return _by_factor(factor, scale)
    values, vectors = eigh(_scaled(gram, scale), lower=False, overwrite_a=True, check_finite=False)
    return _shortest(scale, values, vectors, int((values > _rounding(gram) * values[-1]).sum()))


def _free(parts: Passes, sums: _Sums, settings: Settings) -> _Free:
    """Return what solves the equations without a penalty, and which columns depend on others."""
    gram, width = sums.gram, len(sums.gram)
    scale = np.zeros(width)
    np.divide(1.0, np.sqrt(np.diag(gram), where=~sums.constant, out=np.ones(width)), out=scale, where=~sums.constant)
    singular = _singular(gram, settings)
    factor, known = (None, 0.0) if sums.constant.any() else _cholesky(_scaled(gram, scale))
    if factor is not None and known > max(settings.tol**2, _KNOWN):
        return _Free(singular, width, np.empty(0, dtype=np.intp), _by_factor(factor, scale))
    values, vectors = eigh(_scaled(gram, scale), lower=False, overwrite_a=True, check_finite=False)
    shares, rounding = values / (values[-1] or 1.0), _rounding(gram)
    least = max(settings.tol**2, rounding)
    # A constant column is known to be one.
    doubtful = (shares < _KNOWN) & (shares > settings.tol**2 - rounding)
    if doubtful.sum() > (sums.constant.sum() if settings.tol**2 <= rounding else 0):
        return _decomposed(parts, sums, scale, settings)
    rank = int((shares > least).sum())
    return _Free(singular, rank, _dependent(vectors[:, : width - rank]), _shortest(scale, values, vectors, rank))


def _decomposed(parts: Passes, sums: _Sums, scale: _Array, settings: Settings) -> _Free:
    """Return the same of the QR decomposition of rows and targets, which has all digits of the rows."""
    width = len(scale)
    triangle = parts.fold(join_triangles, "triangle", sums.middle, sums.target, scale)[:width]
    rows, targets = triangle[:, :width], triangle[:, width:]
    left, values, right = svd(rows, check_finite=False)
    rank = int((values > max(settings.tol, _rounding(rows)) * values.max(initial=0.0)).sum())
    along = (left.T @ targets)[:rank] / values[:rank, None]
    coef = _less_null(scale, right[rank:].T, scale[:, None] * (right[:rank].T @ along))
    singular = np.zeros(min(settings.rows, width))
    found = svdvals(rows / _units(scale), check_finite=False)[: len(singular)]
    singular[: len(found)] = found
    return _Free(singular, rank, _dependent(right[rank:].T), None, coef)


def _by_factor(factor: _Array, scale: _Array) -> _Solve:
    """Return what solves equations by the Cholesky factor of their matrix in other units."""

    def solve(projection: _Array) -> _Array:
        solution: _Array = cho_solve((factor, False), scale[:, None] * projection, check_finite=False)
        return scale[:, None] * solution

    return solve


def _shortest(scale: _Array, values: _Array, vectors: _Array, rank: int) -> _Solve:
    """Return what solves equations by the last eigenvectors of their matrix, so many, by the shortest coefficients."""
    first = len(values) - rank
    null, kept = vectors[:, :first], vectors[:, first:]

    def solve(projection: _Array) -> _Array:
        along = (kept.T @ (scale[:, None] * projection)) / values[first:, None]
        return _less_null(scale, null, scale[:, None] * (kept @ along))

    return solve


def _less_null(scale: _Array, null: _Array, coef: _Array) -> _Array:
    """Return the shortest coefficients that fit as these do.

    Parameters
    ----------
    scale
        Shape (features,): the features were multiplied by these.
    null
        Shape (features, directions): along these the features that were multiplied do not change.
    coef
        Shape (features, targets), of the features as they are.
    """
    if not null.size:
        return coef
    directions = null * _units(scale)[:, None]
    share = lstsq(directions, coef, check_finite=False, lapack_driver="gelsy")[0]
    shortest: _Array = coef - directions @ share
    return shortest


def _units(scale: _Array) -> _Array:
    """Return the factors of features; 1 for those that are constant."""
    units: _Array = np.where(scale > 0, scale, 1.0)
    return units


def _dependent(null: _Array) -> NDArray[np.intp]:
    return np.flatnonzero(np.linalg.norm(null, axis=1) > _PART)


def _singular(gram: _Array, settings: Settings) -> _Array:
    values = eigvalsh(gram, lower=False, check_finite=False)[::-1]
    singular: _Array = np.sqrt(np.clip(values, 0, None))[: settings.rows]
    return singular


def _scaled(gram: _Array, scale: _Array) -> _Array:
    """Return a matrix in other units; its diagonal is 1, or 0."""
    scaled = gram * scale
    scaled *= scale[:, None]
    np.fill_diagonal(scaled, scale > 0)
    return scaled


def _cholesky(scaled: _Array) -> tuple[_Array | None, float]:
    """Return the factor of a matrix, in its place, and 1 over its condition or less; None if there is no factor."""
    # Of the whole matrix, of which there is the upper half.
    norm = float(np.sqrt(2 * np.einsum("ij,ij->", scaled, scaled)))
    try:
        factor: _Array = cho_factor(scaled, overwrite_a=True, check_finite=False)[0]
    except LinAlgError:
        return None, 0.0
    return factor, float(dpocon(factor, norm)[0])


def _rounding(matrix: _Array) -> float:
    """Return what is rounding, relative to the largest eigenvalue."""
    return _EPS * (10 + len(matrix))
