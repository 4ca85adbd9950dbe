"""Symmetric systems of equations, solved from half of the matrix, in units in which the diagonal is 1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh, lstsq
from scipy.linalg.lapack import dpocon

_Array = NDArray[np.float64]
Solve = Callable[[_Array], _Array]
"""Returns the solution for a right side, both of shape (features, targets)."""

_EPS = float(np.finfo(np.float64).eps)


def solver(gram: _Array, penalty: float = 0.0) -> Solve:
    """Return the function that solves equations; of several solutions the shortest.

    Parameters
    ----------
    gram
        The positive semidefinite matrix, shape (features, features), of which the upper half is read.
    penalty
        Added to the diagonal.
    """
    scale = units_of(np.clip(np.diag(gram), 0, None) + penalty)
    factor, known = cholesky(in_units(gram, scale))
    if factor is not None and known > rounding_of(gram):
        return by_factor(factor, scale)
    # The factor has the size of the matrix.
    del factor
    values, vectors = eigh(in_units(gram, scale), lower=False, overwrite_a=True, check_finite=False)
    return by_vectors(scale, values, vectors, int((values > rounding_of(gram) * values[-1]).sum()))


def by_factor(factor: _Array, scale: _Array) -> Solve:
    """Return the function that solves equations from the Cholesky factor of the scaled matrix."""

    def solve(projection: _Array) -> _Array:
        solution: _Array = cho_solve((factor, False), scale[:, None] * projection, check_finite=False)
        return scale[:, None] * solution

    return solve


def by_vectors(scale: _Array, values: _Array, vectors: _Array, rank: int) -> Solve:
    """Return the function that solves equations from the last `rank` eigenvectors, with the shortest coefficients."""
    first = len(values) - rank
    null, kept = vectors[:, :first], vectors[:, first:]

    def solve(projection: _Array) -> _Array:
        along = (kept.T @ (scale[:, None] * projection)) / values[first:, None]
        return less_null(scale, null, scale[:, None] * (kept @ along))

    return solve


def less_null(scale: _Array, null: _Array, coef: _Array) -> _Array:
    """Return the shortest coefficients with the same predictions.

    Parameters
    ----------
    scale
        Shape (features,): the factors of the scaled features.
    null
        Shape (features, directions): the null space of the scaled features.
    coef
        Shape (features, targets): coefficients of the unscaled features.
    """
    if not null.size:
        return coef
    directions = null * np.where(scale > 0, scale, 1.0)[:, None]
    share = lstsq(directions, coef, check_finite=False, lapack_driver="gelsy")[0]
    shortest: _Array = coef - directions @ share
    return shortest


def units_of(squares: _Array) -> _Array:
    """Return the factors that scale columns of these squared lengths to length 1; 0 for length 0."""
    return np.sqrt(np.divide(1.0, squares, out=np.zeros(len(squares)), where=squares > 0))


def in_units(gram: _Array, scale: _Array) -> _Array:
    """Return the scaled matrix, whose diagonal is 1, or 0."""
    scaled = gram * scale
    scaled *= scale[:, None]
    np.fill_diagonal(scaled, scale > 0)
    return scaled


def cholesky(scaled: _Array) -> tuple[_Array | None, float]:
    """Return the factor of a matrix, computed in place, and a lower bound of 1 / condition; None without a factor."""
    # The norm of the whole matrix, from the upper half.
    norm = float(np.sqrt(2 * np.einsum("ij,ij->", scaled, scaled)))
    try:
        factor: _Array = cho_factor(scaled, overwrite_a=True, check_finite=False)[0]
    except LinAlgError:
        return None, 0.0
    return factor, float(dpocon(factor, norm)[0])


def rounding_of(matrix: _Array) -> float:
    """Return the rounding error of eigenvalues, relative to the largest."""
    return _EPS * (10 + len(matrix))
