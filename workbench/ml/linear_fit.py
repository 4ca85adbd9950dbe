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
    """Shape (features,)."""
    intercept: float
    rank: int
    """How many singular values count."""
    singular: _Array
    """The singular values of the rows, less their mean, shape (min(rows, features),), falling."""


@dataclass(frozen=True)
class Settings:
    """How a fit is made; the names are those of the estimators."""

    alpha: float
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
    middle, target = (rows / weight, targets / weight) if settings.fit_intercept else (None, 0.0)
    gram, projection = parts.sum("products", middle, target)
    equations = _Equations(gram, settings)
    coef = equations.solve(projection)
    coef += equations.solve(parts.sum("pull", middle, target, coef) - settings.alpha * coef)
    intercept = 0.0 if middle is None else target - float(middle @ coef)
    return Fitted(coef, intercept, equations.rank, equations.singular)


class _Equations:
    """The normal equations, by the eigenvectors of their matrix."""

    def __init__(self, gram: _Array, settings: Settings) -> None:
        self._scale = np.ones(len(gram))
        if settings.alpha:
            # With a penalty there is one solution, which may be found in units of each feature's own size. Without one
            # units decide which of many is the shortest.
            gram = gram + settings.alpha * np.eye(len(gram))
            self._scale = 1 / np.sqrt(np.diag(gram))
        values, vectors = eigh(gram * self._scale * self._scale[:, None])
        values, self._vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
        self.singular: _Array = np.sqrt(values[: min(settings.rows, len(values))])
        counts = values > max(settings.tol**2, _ROUNDING) * values.max(initial=0.0)
        self.rank = int(counts.sum())
        self._inverse = np.divide(1.0, values, out=np.zeros(len(values)), where=counts)

    def solve(self, projection: _Array) -> _Array:
        """Return the shortest coefficients of those that fit best."""
        along = self._vectors.T @ (self._scale * projection)
        solution: _Array = self._scale * (self._vectors @ (self._inverse * along))
        return solution
