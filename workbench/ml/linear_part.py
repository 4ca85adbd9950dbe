"""What a linear model computes on one block: sums of products of rows and targets, less their means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.ml.slices import Products, centred

_Array = NDArray[np.float64]


class LinearPart:
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
        Is not used.

    Notes
    -----
    All sums are of float64. Work space: 16 bytes times the square of the number of features, and slices of a fixed
    size, four of 1 MiB or 128 rows; with many targets as much for them.
    """

    def __init__(self, X: Any, y: NDArray[Any], weight: NDArray[Any] | None, start: int) -> None:
        self._X, self._y, self._weight = X, y.reshape(len(y), -1), weight

    def sums(self) -> tuple[float, _Array, _Array]:
        """Return the weight of all rows, and the weighted sums of rows, shape (features,), and targets, (targets,)."""
        weights, rows, targets = 0.0, np.zeros(self._X.shape[1]), np.zeros(self._y.shape[1])
        for X, y, weight in self._slices(None, targets.copy()):
            weights += float(weight.sum())
            rows += weight @ X
            targets += weight @ y
        return weights, rows, targets

    def products(self, middle: _Array | None, target: _Array) -> tuple[_Array, _Array]:
        """Return the weighted sums of products of rows and rows, and of rows and targets.

        Parameters
        ----------
        middle
            Shape (features,): is taken from each row; None for nothing.
        target
            Shape (targets,): is taken from the targets of each row.

        Returns
        -------
        gram : ndarray of shape (features, features)
        projection : ndarray of shape (features, targets)
        """
        width = self._X.shape[1]
        products, projection = Products(width), np.zeros((width, len(target)))
        for X, y, weight in self._slices(middle, target):
            root = np.sqrt(weight)
            scaled = X * root[:, None] if self._weight is not None else X
            products.add(scaled)
            projection += scaled.T @ (root[:, None] * y)
        return products.whole(), projection

    def pull(self, middle: _Array | None, target: _Array, coef: _Array) -> _Array:
        """Return the weighted sums of products of rows and of what coefficients leave of the targets."""
        pull = np.zeros(coef.shape)
        for X, y, weight in self._slices(middle, target):
            pull += X.T @ (weight[:, None] * (y - X @ coef))
        return pull

    def _slices(self, middle: _Array | None, target: _Array) -> Iterator[tuple[_Array, _Array, _Array]]:
        """Yield rows and targets, less their middles, and weights."""
        for here, X in centred(self._X, middle):
            weight = np.ones(len(X)) if self._weight is None else self._weight[here].astype(np.float64)
            yield X, self._y[here].astype(np.float64) - target, weight
