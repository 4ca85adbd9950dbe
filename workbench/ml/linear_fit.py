"""Linear models fitted on parts: the sums that all ranks are asked for, and the equations solved here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from workbench.ml.parts import Parts, weighed
from workbench.ml.passes import Passes

_Array = NDArray[np.float64]

# Eigenvalues of a Gram matrix below this times the largest are rounding.
_ROUNDING = 1e-14


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


@dataclass(frozen=True)
class Settings:
    """How a fit is made; the names are those of the estimators."""

    alpha: float | _Array
    """The penalty, or that of each target."""
    fit_intercept: bool
    tol: float
    rows: int


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
    Three passes: means, sums of products of what is left of them, and a correction. The equations of sums of products,
    the normal equations, lose as many digits as the square of the condition of the rows has; the correction, made of
    what is left of the targets, brings them back: Björck, Linear Algebra and its Applications 88/89 (1987), where these
    are called the corrected seminormal equations.
    """
    parts = Passes(parts)
    weight, rows, targets = parts.sum("sums")
    weighed(weight)
    middle, target = (rows / weight, targets / weight) if settings.fit_intercept else (None, np.zeros(len(targets)))
    gram, projection = parts.sum("products", middle, target)
    penalties = np.broadcast_to(settings.alpha, len(target))
    equations = {penalty: _Equations(gram, float(penalty), settings) for penalty in np.unique(penalties)}

    def solved(projection: _Array) -> _Array:
        coef = np.empty_like(projection)
        for penalty, its in equations.items():
            coef[:, penalties == penalty] = its.solve(projection[:, penalties == penalty])
        return coef

    coef = solved(projection)
    coef += solved(parts.sum("pull", middle, target, coef) - penalties * coef)
    intercept = target if middle is None else target - middle @ coef
    first = equations[penalties[0]]
    return Fitted(coef.T, intercept, first.rank, first.singular)


class _Equations:
    """The normal equations, by the eigenvectors of their matrix."""

    def __init__(self, gram: _Array, penalty: float, settings: Settings) -> None:
        self._scale = np.ones(len(gram))
        if penalty:
            # With a penalty there is one solution, which may be found in units of each feature's own size. Without one
            # units decide which of many is the shortest.
            gram = gram + penalty * np.eye(len(gram))
            self._scale = 1 / np.sqrt(np.diag(gram))
        values, vectors = eigh(gram * self._scale * self._scale[:, None])
        values, self._vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
        self.singular: _Array = np.sqrt(values[: min(settings.rows, len(values))])
        counts = values > max(settings.tol**2, _ROUNDING) * values.max(initial=0.0)
        self.rank = int(counts.sum())
        self._inverse = np.divide(1.0, values, out=np.zeros(len(values)), where=counts)

    def solve(self, projection: _Array) -> _Array:
        """Return the shortest coefficients of those that fit best, shape (features, targets), as the projection."""
        along = self._vectors.T @ (self._scale[:, None] * projection)
        solution: _Array = self._scale[:, None] * (self._vectors @ (self._inverse[:, None] * along))
        return solution
