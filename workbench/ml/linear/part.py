"""The computations of a linear model on one block: sums of products of centered rows and targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.algebra.row_slices import Products, centered, rows_at_once, sample
from workbench.ml.algebra.sums import triangle
from workbench.ml.checks import FindsNonFinite

_Array = NDArray[np.float64]


class LinearPart(FindsNonFinite):
    """A block with its targets.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    y
        Shape (rows,) or (rows, targets).
    weight
        Shape (rows,): weights of the rows; None: all 1.
    start
        Number of the first row in all data.

    Notes
    -----
    All sums are in float64. Work space: 4 bytes times the square of the number of features (12 up to 1000 features), 80
    times that square for `triangle`, four slices of 1 MiB or 128 rows, and as much for many targets.
    """

    def __init__(self, X: Any, y: NDArray[Any], weight: NDArray[Any] | None, start: int) -> None:
        self._X, self._y, self._weight, self._start = X, y if y.ndim > 1 else y[:, None], weight, start

    def sample(self, rows: int) -> tuple[float, _Array, _Array]:
        """Return the number of rows of a sample, and the sums of rows and targets; `rows` counts rows of all parts."""
        X = sample(self._X, self._start, rows)
        y = self._y if sparse.issparse(X) else sample(self._y, self._start, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            return float(X.shape[0]), np.ravel(X.sum(axis=0, dtype=np.float64)), y.sum(axis=0, dtype=np.float64)

    def products(self, middle: _Array | None, target: _Array) -> tuple[float, _Array, _Array, _Array, _Array]:
        """Return the weighted sums of products of rows and rows, and of rows and targets.

        Parameters
        ----------
        middle
            Shape (features,): subtracted from each row; None: nothing is subtracted.
        target
            Shape (targets,): subtracted from the targets of each row.

        Returns
        -------
        weight : float
            The weight of all rows.
        packed : ndarray of shape (features * (features + 1) / 2,)
            `workbench.ml.algebra.row_slices.upper` unpacks the array.
        projection : ndarray of shape (features, targets)
        rows : ndarray of shape (features,)
            The weighted sum of the rows.
        targets : ndarray of shape (targets,)
        """
        width = self._X.shape[1]
        products, projection = Products(width), np.zeros((width, len(target)))
        weights, rows, targets = 0.0, np.zeros(width), np.zeros(len(target))
        with np.errstate(over="ignore", invalid="ignore"):
            for X, y, weight in self._slices(middle, target):
                weights += float(weight.sum())
                rows += weight @ X
                targets += weight @ y
                root = np.sqrt(weight)
                scaled = X * root[:, None] if self._weight is not None else X
                products.add(scaled)
                projection += scaled.T @ (root[:, None] * y)
        if not np.isfinite(rows).all():
            self.refuse_non_finite()
        return weights, products.packed, projection, rows, targets

    def triangle(self, middle: _Array | None, target: _Array, scale: _Array) -> _Array:
        """Return R of the QR decomposition of the weighted, scaled rows and their targets.

        Parameters
        ----------
        middle, target
            See `products`.
        scale
            Shape (features,): the factors of the features.

        Returns
        -------
        ndarray of shape (at most features + targets, features + targets)
        """
        width = len(scale) + len(target)
        rows = max(rows_at_once(width), 2 * width)
        space = np.empty((min(rows, self._X.shape[0]), width))

        def scaled() -> Iterator[_Array]:
            for X, y, weight in self._slices(middle, target, rows):
                both = space[: len(X)]
                np.multiply(X, scale, out=both[:, : len(scale)])
                both[:, len(scale) :] = y
                both *= np.sqrt(weight)[:, None]
                yield both

        return triangle(scaled(), width)

    def pull(self, middle: _Array | None, target: _Array, coef: _Array) -> _Array:
        """Return the weighted sums of products of rows and residuals of the targets."""
        pull = np.zeros(coef.shape)
        for X, y, weight in self._slices(middle, target):
            pull += X.T @ (weight[:, None] * (y - X @ coef))
        return pull

    def _slices(
        self, middle: _Array | None, target: _Array, rows: int | None = None
    ) -> Iterator[tuple[_Array, _Array, _Array]]:
        """Yield rows and targets, minus their middles, and weights."""
        for part, X in centered(self._X, middle, rows):
            weight = np.ones(len(X)) if self._weight is None else self._weight[part].astype(np.float64)
            yield X, self._y[part].astype(np.float64) - target, weight
