"""The computations of scaling on one block: the moments of the features."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.algebra.sums import Moments, join
from workbench.ml.checks import FLOATS, Checks, FindsNonFinite, distinct, weights
from workbench.ml.engine.parts import Parts, Passes

_Array = NDArray[Any]

# Numbers in a slice, half a MiB, which stays in the cache of a core.
_SLICE = 1 << 16
# Minimum number of rows of a slice: fewer rows would make joining expensive with many features.
_ROWS = 16


@dataclass(frozen=True)
class ScalerChecks(Checks):
    """The requirements for rows to scale: numbers may be missing (NaN), and sparse rows cannot be centered."""

    with_mean: bool = True

    def apply(self, X: Any, y: Any, weight: Any) -> tuple[Any, Any, Any]:
        """See `Checks.apply`."""
        if self._is_plain(X, None, weight):
            return X, None, weight
        from sklearn.utils import check_array

        X = check_array(
            X,
            accept_sparse="csr",
            dtype=FLOATS,
            order="C",
            ensure_all_finite="allow-nan",
            estimator=self.estimator,
            input_name="X",
        )
        refuse_to_center(X, self.with_mean)
        return distinct(X), None, weights(weight, X)


def refuse_to_center(X: Any, with_mean: bool) -> None:
    """Raise ValueError for sparse rows with `with_mean`."""
    if with_mean and sparse.issparse(X):
        raise ValueError("Cannot center sparse matrices, which would be dense: pass with_mean=False.")


def moments(parts: Parts, seen: Moments | None) -> Moments:
    """Return the moments of all rows and of earlier rows."""
    result: Moments = Passes(parts).fold(join, "moments")
    return result if seen is None else join(seen, result)


class ScalerPart(FindsNonFinite):
    """A block.

    Parameters
    ----------
    X
        Shape (rows, features): an array, or a matrix in CSR format; NaN for missing numbers.
    y
        Not used.
    weight
        Shape (rows,): weights of the rows; None: all 1.
    start
        Not used.

    Notes
    -----
    Work space: four slices of half a MiB, or of 16 rows if these are larger; for CSR some numbers per feature.
    """

    def __init__(self, X: Any, y: None, weight: _Array | None, start: int) -> None:
        self._X, self._weight = X, weight

    def moments(self) -> Moments:
        """Return the moments of the block, in one pass, with the weight of the rows per feature without NaNs."""
        if not self._X.shape[0]:
            nothing = np.zeros(self._X.shape[1])
            return nothing, nothing, nothing
        if not sparse.issparse(self._X):
            with np.errstate(over="ignore", invalid="ignore"):
                result = functools.reduce(join, self._slices())
            if not np.isfinite(result[1]).all():
                self.refuse_non_finite()
            return result
        from sklearn.utils.sparsefuncs import mean_variance_axis

        mean, variance, rows = (
            np.nan_to_num(result.astype(np.float64))
            for result in mean_variance_axis(self._X, axis=0, weights=self._weight, return_sum_weights=True)
        )
        return rows, mean, variance * rows

    def _slices(self) -> Iterator[Moments]:
        rows = max(_SLICE // self._X.shape[1], _ROWS)
        for start in range(0, self._X.shape[0], rows):
            part = slice(start, start + rows)
            X = self._X[part].astype(np.float64, copy=False)
            weight = np.ones(len(X)) if self._weight is None else self._weight[part].astype(np.float64)
            yield _moments(X, weight)


def _moments(X: _Array, weight: _Array) -> Moments:
    missing = np.isnan(X)
    is_incomplete = bool(missing.any())
    rows = weight @ ~missing if is_incomplete else np.full(X.shape[1], weight.sum())
    safe = np.where(rows > 0, rows, 1.0)
    mean = weight @ (np.where(missing, 0.0, X) if is_incomplete else X) / safe
    deviations = X - mean
    if is_incomplete:
        deviations[missing] = 0.0
    # The rounding error of the mean counts if the mean is much larger than the deviations.
    error = weight @ deviations / safe
    squares = weight @ np.square(deviations, out=deviations)
    return rows, mean + error, np.maximum(squares - np.square(error) * rows, 0.0)
