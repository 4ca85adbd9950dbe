"""Distances of queries and rows: fast for all pairs, and exact for the nearest pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from workbench.ml.checks import checked

_Array = NDArray[Any]

# Numbers in an array of differences, 2 MiB.
_NUMBERS = 1 << 18


class Measure(Protocol):
    """Distances from some queries, in any unit that increases with the distance."""

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """Return the distances of all pairs, shape (queries, rows), and their maximum error for each query."""

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """Return the distances of some pairs, given by the numbers of queries and rows."""

    def score(self, distance: float) -> float:
        """Return an upper bound of the exact score of pairs with this distance, in the unit of the metric."""

    def distances(self, exact: _Array) -> _Array:
        """Convert results of `exact` to the unit of the metric."""


def measure(queries: Any, metric: Any, keywords: Mapping[str, Any]) -> Measure:
    """Return the measure of a metric of `NearestNeighbors`."""
    return Euclidean(queries) if metric == "euclidean" and not keywords else Pairwise(queries, metric, keywords)


class Euclidean:
    """Squared Euclidean distances: from a matrix product for all pairs, from differences for the nearest pairs.

    Parameters
    ----------
    queries
        Shape (queries, features): an array, or a matrix in CSR format.

    Notes
    -----
    In double precision. The mean of the queries is subtracted from rows and queries: products lose digits only for rows
    far from the mean, which are not the nearest.
    """

    def __init__(self, queries: Any) -> None:
        self._queries = _dense(queries).astype(np.float64, copy=False)
        self._middle = self._queries.mean(axis=0)

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """See `Measure.scores`."""
        queries = self._queries
        if sparse.issparse(X):
            # Centered rows would not be sparse.
            X = X.astype(np.float64, copy=False)
            squares = np.asarray(X.multiply(X).sum(axis=1)).ravel()
        else:
            queries, X = queries - self._middle, X - self._middle
            squares = np.einsum("ij,ij->i", X, X)
        own = np.einsum("ij,ij->i", queries, queries)
        if not np.isfinite(own.max() + squares.max()):
            raise ValueError("Distances overflow, because the squares of the values are too large. Scale the data.")
        factors = -2.0 * queries
        scores = np.ascontiguousarray((X @ factors.T).T) if sparse.issparse(X) else factors @ X.T
        scores += squares
        scores += own[:, None]
        # Twice the bound of the rounding error of sums with one term per feature.
        precision = 4 * (queries.shape[1] + 4) * np.finfo(np.float64).eps
        return scores, precision * (own + squares.max())

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """See `Measure.exact`."""
        exact = np.empty(len(rows))
        step = max(_NUMBERS // X.shape[1], 1)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            difference = _dense(X[rows[part]]) - self._queries[queries[part]]
            exact[part] = np.einsum("ij,ij->i", difference, difference)
        return exact

    def score(self, distance: float) -> float:
        """See `Measure.score`."""
        return distance * distance * (1 + 4 * float(np.finfo(np.float64).eps))

    def distances(self, exact: _Array) -> _Array:
        """See `Measure.distances`."""
        return np.sqrt(exact)


class Pairwise:
    """Distances of `sklearn.metrics.pairwise_distances`.

    Parameters
    ----------
    queries
        Shape (queries, features): an array, or a matrix in CSR format.
    metric, keywords
        Arguments of `pairwise_distances`.
    """

    def __init__(self, queries: Any, metric: Any, keywords: Mapping[str, Any]) -> None:
        self._queries, self._metric, self._keywords = queries, metric, keywords

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """See `Measure.scores`."""
        from sklearn.metrics import pairwise_distances

        # A function of the user computes with floats: small integers would overflow.
        queries, X = (rows.astype(checked(rows.dtype), copy=False) for rows in (self._queries, X))
        scores = pairwise_distances(queries, X, metric=self._metric, **self._keywords).astype(np.float64)
        # A row whose distance is NaN is the last neighbor.
        return np.nan_to_num(scores, copy=False, nan=np.inf, posinf=np.inf), np.zeros(len(scores))

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """See `Measure.exact`."""
        exact: _Array = scores[queries, rows]
        return exact

    def score(self, distance: float) -> float:
        """See `Measure.score`."""
        return distance

    def distances(self, exact: _Array) -> _Array:
        """See `Measure.distances`."""
        return exact


def _dense(rows: Any) -> _Array:
    dense: _Array = rows.toarray() if sparse.issparse(rows) else rows
    return dense
