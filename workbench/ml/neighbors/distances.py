"""Distances of queries and rows: quickly for all pairs, and exactly for those that count."""

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
    """Distances from some queries, in a unit of its own, in which they are sorted as the distances are."""

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """Return the distances of all pairs, shape (queries, rows), and how far they may be off, for each query."""

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """Return the distances of some pairs, by the numbers of query and row."""

    def distances(self, exact: _Array) -> _Array:
        """Return what a user is told, in place of what `exact` returned."""


def measure(queries: Any, metric: Any, keywords: Mapping[str, Any]) -> Measure:
    """Return what measures by a metric, as `NearestNeighbors` has it."""
    return Euclidean(queries) if metric == "euclidean" and not keywords else Pairwise(queries, metric, keywords)


class Euclidean:
    """Squared Euclidean distances: by one product of matrices for all pairs, by differences for those that count.

    Parameters
    ----------
    queries
        Shape (queries, features): an array, or a matrix in CSR format.

    Notes
    -----
    In double precision. Rows are looked at from the mean of the queries: far from it products lose digits, but what is
    near to a query is near to them.
    """

    def __init__(self, queries: Any) -> None:
        self._queries = _dense(queries).astype(np.float64, copy=False)
        self._middle = self._queries.mean(axis=0)

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """See `Measure.scores`."""
        queries = self._queries
        if sparse.issparse(X):
            # It stays sparse if it stays where it is.
            X = X.astype(np.float64, copy=False)
            squares = np.asarray(X.multiply(X).sum(axis=1)).ravel()
        else:
            queries, X = queries - self._middle, X - self._middle
            squares = np.einsum("ij,ij->i", X, X)
        own = np.einsum("ij,ij->i", queries, queries)
        if not np.isfinite(own.max() + squares.max()):
            raise ValueError("Distances overflow: the squares of these numbers are too large, scale the data.")
        factors = -2.0 * queries
        scores = np.ascontiguousarray((X @ factors.T).T) if sparse.issparse(X) else factors @ X.T
        scores += squares
        scores += own[:, None]
        # Twice the bound of rounding for these sums, of as many terms as there are features.
        off = 4 * (queries.shape[1] + 4) * np.finfo(np.float64).eps
        return scores, off * (own + squares.max())

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """See `Measure.exact`."""
        exact = np.empty(len(rows))
        step = max(_NUMBERS // X.shape[1], 1)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            difference = _dense(X[rows[part]]) - self._queries[queries[part]]
            exact[part] = np.einsum("ij,ij->i", difference, difference)
        return exact

    def distances(self, exact: _Array) -> _Array:
        """See `Measure.distances`."""
        return np.sqrt(exact)


class Pairwise:
    """Distances as `sklearn.metrics.pairwise_distances` computes them.

    Parameters
    ----------
    queries
        Shape (queries, features): an array, or a matrix in CSR format.
    metric, keywords
        What `pairwise_distances` is told.
    """

    def __init__(self, queries: Any, metric: Any, keywords: Mapping[str, Any]) -> None:
        self._queries, self._metric, self._keywords = queries, metric, keywords

    def scores(self, X: Any) -> tuple[_Array, Any]:
        """See `Measure.scores`."""
        from sklearn.metrics import pairwise_distances

        # A function of the user computes with floats: small integers would overflow.
        queries, X = (rows.astype(checked(rows.dtype), copy=False) for rows in (self._queries, X))
        scores = pairwise_distances(queries, X, metric=self._metric, **self._keywords).astype(np.float64)
        # Where a distance is no number, the row is the last that is wanted.
        return np.nan_to_num(scores, copy=False, nan=np.inf, posinf=np.inf), np.zeros(len(scores))

    def exact(self, X: Any, scores: _Array, queries: _Array, rows: _Array) -> _Array:
        """See `Measure.exact`."""
        exact: _Array = scores[queries, rows]
        return exact

    def distances(self, exact: _Array) -> _Array:
        """See `Measure.distances`."""
        return exact


def _dense(rows: Any) -> _Array:
    dense: _Array = rows.toarray() if sparse.issparse(rows) else rows
    return dense
