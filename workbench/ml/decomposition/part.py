"""What a decomposition needs of one block: products of its rows, and the triangle of their QR decomposition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.algebra.row_slices import Products, centred, is_copied, rows_at_once, sample
from workbench.ml.algebra.triangles import triangle
from workbench.ml.checks import FindsNonFinite

_Array = NDArray[np.float64]
_Middle = _Array | None

# So many slices at once, of rows that are not copied.
_MANY = 16


class DecompositionPart(FindsNonFinite):
    """A block.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format.
    y, weight
        Are not used.
    start
        Number of its first row in all of the data.

    Notes
    -----
    All methods but the first two take the middle of all rows, shape (features,), which is taken from each of them; None
    for nothing. All sums are of float64. Work space: 4 bytes times the square of the number of features (12 up to 1000
    features) for `gram`, 80 times that square for `triangle`, and with a basis thrice what it takes itself; beside
    these slices of a fixed size, three of 1 MiB or 128 rows. Sparse rows become dense by slices, but not where there is
    a basis.
    """

    def __init__(self, X: Any, y: None, weight: None, start: int) -> None:
        self._X, self._start = X, start

    def sums(self) -> _Array:
        """Return the sum of the rows, shape (features,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = np.ravel(self._X.sum(axis=0, dtype=np.float64))
        return self._finite(sums)

    def sample(self, rows: int) -> tuple[float, _Array]:
        """Return the number of some of so many rows of all parts, and their sum, shape (features,)."""
        some = sample(self._X, self._start, rows)
        with np.errstate(over="ignore", invalid="ignore"):
            return float(some.shape[0]), np.ravel(some.sum(axis=0, dtype=np.float64))

    def squares(self, middle: _Middle) -> float:
        """Return the sum of the squares of all numbers."""
        if not sparse.issparse(self._X):
            return sum(float(np.vdot(X, X)) for _, X in centred(self._X, middle))
        numbers = self._X.data.astype(np.float64, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(numbers @ numbers)
            if middle is not None:
                total += float(middle @ (self._X.shape[0] * middle - 2 * self.sums()))
        return total

    def gram(self, middle: _Middle) -> tuple[_Array, _Array]:
        """Return the product of the transposed rows and the rows, packed as by `Products`, and the sum of the rows."""
        width = self._X.shape[1]
        products, sums = Products(width), np.zeros(width)
        # Rows that are not copied come many at once: BLAS keeps in the cache what it needs there.
        rows = None if is_copied(self._X, middle) else _MANY * rows_at_once(width)
        with np.errstate(over="ignore", invalid="ignore"):
            for _, X in centred(self._X, middle, rows):
                products.add(X)
                sums += np.ones(len(X)) @ X
        return products.packed, self._finite(sums)

    def _finite(self, sums: _Array) -> _Array:
        """Return the sums of all rows; refuse rows that are not finite."""
        if not np.isfinite(sums).all():
            self.refuse_non_finite()
        return sums

    def normal(self, middle: _Middle, basis: _Array) -> _Array:
        """Return the product of the transposed rows, the rows and a basis, as `gram` times the basis.

        Parameters
        ----------
        middle
            See above.
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
            Columns are the features, or the vectors of the basis.
        """
        if basis is not None:
            products = (product for _, product in self._times(middle, basis))
            return triangle(products, basis.shape[1])
        width = self._X.shape[1]
        rows = max(rows_at_once(width), 4 * width)
        return triangle((X for _, X in centred(self._X, middle, rows)), width)

    def _times(self, middle: _Middle, basis: _Array) -> Iterator[tuple[Any, _Array]]:
        """Yield rows, and their products with a basis; of sparse rows the middle is taken from the products only."""
        if not sparse.issparse(self._X):
            for _, X in centred(self._X, middle):
                yield X, X @ basis
            return
        at_once = rows_at_once(basis.shape[1])
        away = 0.0 if middle is None else middle @ basis
        for start in range(0, self._X.shape[0], at_once):
            X = self._X[start : start + at_once]
            yield X, X @ basis - away
