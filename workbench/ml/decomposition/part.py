"""The computations of a decomposition on one block: products of rows, and the triangle of the QR decomposition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.algebra.row_slices import Products, centered, is_copied, rows_at_once, sample
from workbench.ml.algebra.sums import triangle
from workbench.ml.checks import FindsNonFinite

_Array = NDArray[np.float64]
_Middle = _Array | None

# Number of slices in one product, for rows that are not copied.
_MANY = 16


class DecompositionPart(FindsNonFinite):
    """A block.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    y, weight
        Not used.
    start
        Number of the first row in all data.

    Notes
    -----
    The argument `middle`, shape (features,), is subtracted from each row; None: nothing is subtracted. All sums are in
    float64. Work space: 4 bytes times the square of the number of features (12 up to 1000 features) for `gram`, 80
    times that square for `triangle`, three times the size of a basis, and three slices of 1 MiB or 128 rows. Slices of
    sparse rows become dense, except with a basis.
    """

    def __init__(self, X: Any, y: None, weight: None, start: int) -> None:
        self._X, self._start = X, start

    def sums(self) -> _Array:
        """Return the sum of the rows, shape (features,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.ravel(self._X.sum(axis=0, dtype=np.float64))
        return self._finite(sums)

    def sample(self, rows: int) -> tuple[float, _Array]:
        """Return the number of rows of a sample, and their sum, shape (features,); `rows` counts rows of all parts."""
        sampled = sample(self._X, self._start, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            return float(sampled.shape[0]), np.ravel(sampled.sum(axis=0, dtype=np.float64))

    def squares(self, middle: _Middle) -> float:
        """Return the sum of the squares of all numbers."""
        if not sparse.issparse(self._X):
            return sum(float(np.vdot(X, X)) for _, X in centered(self._X, middle))
        numbers = self._X.data.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(numbers @ numbers)
            if middle is not None:
                total += float(middle @ (self._X.shape[0] * middle - 2 * self.sums()))
        return total

    def gram(self, middle: _Middle) -> tuple[_Array, _Array]:
        """Return the product of transposed rows and rows, in the format of `Products`, and the sum of the rows."""
        width = self._X.shape[1]
        products, sums = Products(width), np.zeros(width)
        # BLAS itself blocks for the cache, so that slices that are not copied have many rows.
        rows = None if is_copied(self._X, middle) else _MANY * rows_at_once(width)
        with np.errstate(over="ignore", invalid="ignore"):
            for _, X in centered(self._X, middle, rows):
                products.add(X)
                sums += np.ones(len(X)) @ X
        return products.packed, self._finite(sums)

    def _finite(self, sums: _Array) -> _Array:
        """Return the sums of all rows; raise ValueError for rows that are not finite."""
        if not np.isfinite(sums).all():
            self.refuse_non_finite()
        return sums

    def normal(self, middle: _Middle, basis: _Array) -> _Array:
        """Return the product of the transposed rows, the rows and a basis.

        Parameters
        ----------
        middle
            See the notes of the class.
        basis
            Shape (features, vectors).
        """
        total, sums = np.zeros(basis.shape), np.zeros(basis.shape[1])
        for X, product in self._times(middle, basis):
            total += X.T @ product
            sums += product.sum(axis=0)
        if middle is not None and sparse.issparse(self._X):
            total -= np.outer(middle, sums)
        return total

    def triangle(self, middle: _Middle, basis: _Array | None) -> _Array:
        """Return R of the QR decomposition of the rows, or of their product with a basis.

        Returns
        -------
        ndarray of shape (at most columns, columns)
            The columns are the features, or the vectors of the basis.
        """
        if basis is not None:
            products = (product for _, product in self._times(middle, basis))
            return triangle(products, basis.shape[1])
        width = self._X.shape[1]
        rows = max(rows_at_once(width), 4 * width)
        return triangle((X for _, X in centered(self._X, middle, rows)), width)

    def _times(self, middle: _Middle, basis: _Array) -> Iterator[tuple[Any, _Array]]:
        """Yield rows, and their products with a basis; the middle is subtracted from products of sparse rows only."""
        if not sparse.issparse(self._X):
            for _, X in centered(self._X, middle):
                yield X, X @ basis
            return
        at_once = rows_at_once(basis.shape[1])
        shift = 0.0 if middle is None else middle @ basis
        for start in range(0, self._X.shape[0], at_once):
            X = self._X[start : start + at_once]
            yield X, X @ basis - shift
