"""The two searches, for the nearest rows and within a radius: on parts, in a ring of ranks, and as a graph.

Some queries of each rank visit all ranks in turn, with their result so far. All ranks search at the same time, each for
the queries that visit it. So the memory and the messages of a rank do not depend on the number of ranks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from workbench.ml.engine.parts import ConnectedParts, Parts, Passes

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


_Array = NDArray[Any]

RESULT = 1 << 26
"""Bytes of the queries and results that one call of all ranks should have."""

Result = tuple[_Array, ...]
"""The arrays of a search; the first axis of the first array has the queries."""


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """Settings of a search."""

    queries: Any = None
    """Shape (queries, features): an array, or a matrix in CSR format; None: those of each part, for `find_each`."""
    metric: Any
    """Metric of scikit-learn's ``pairwise_distances``: a name or a function."""
    keywords: Mapping[str, Any]
    """Other arguments of the metric."""
    step: int = 0
    """Number of queries in one call of all ranks."""

    method: str = ""
    """Name of the method of a part."""

    def with_self(self) -> Self:
        """Return the search that finds as much without a query that is a row of the fit."""
        return self

    @abstractmethod
    def join(self, left: Result, right: Result) -> Result:
        """Return the result for the rows of two sets, of which the left one has the lower numbers."""

    @abstractmethod
    def without_self(self, result: Result, first: int) -> Result:
        """Return a result without the queries themselves, which are rows of the fit from number `first` on."""

    @abstractmethod
    def arrays(self, results: Sequence[Result]) -> tuple[_Array, _Array]:
        """Return distances and numbers of rows of several results, both with an element or a row for each query."""

    @abstractmethod
    def nothing(self) -> Result:
        """Return the result for no queries."""

    def empty(self) -> tuple[_Array, _Array]:
        """Return what `arrays` returns for no queries."""
        return self.arrays([self.nothing()])

    @abstractmethod
    def pack(self, arrays: tuple[_Array, _Array]) -> _Array:
        """Return one array with a row for each query, from which `unpack` takes distances and numbers of rows."""

    @abstractmethod
    def unpack(self, packed: Any) -> tuple[Any, Any]:
        """Return distances and numbers of rows of an array of `pack`, or of a Dask array of these."""


@dataclass(frozen=True, kw_only=True)
class Nearest(Search):
    """A search for the nearest rows.

    Notes
    -----
    The result is distances and numbers of rows, both of shape (queries, neighbors), the nearest first.
    """

    n_neighbors: int
    method: str = "nearest"

    def with_self(self) -> Self:
        """See `Search.with_self`."""
        return replace(self, n_neighbors=self.n_neighbors + 1)

    def join(self, left: Result, right: Result) -> Result:
        """Return the nearest of two sets of rows; for equal distances the rows of the left set first."""
        distances, rows = (np.concatenate(both, axis=1) for both in zip(left, right, strict=True))
        order = np.argsort(distances, axis=1, kind="stable")[:, : self.n_neighbors]
        return np.take_along_axis(distances, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def without_self(self, result: Result, first: int) -> Result:
        """See `Search.without_self`; where a query is not among its nearest rows, the last row goes."""
        distances, rows = result
        kept = rows != first + np.arange(len(rows))[:, None]
        kept[kept.all(axis=1), -1] = False
        shape = len(rows), rows.shape[1] - 1
        return distances[kept].reshape(shape), rows[kept].reshape(shape)

    def arrays(self, results: Sequence[Result]) -> tuple[_Array, _Array]:
        """See `Search.arrays`."""
        distances, rows = (np.concatenate(each) for each in zip(*results, strict=True))
        return distances, rows

    def nothing(self) -> Result:
        """See `Search.nothing`."""
        return np.empty((0, self.n_neighbors)), np.empty((0, self.n_neighbors), np.int64)

    def pack(self, arrays: tuple[_Array, _Array]) -> _Array:
        """See `Search.pack`: numbers of rows are exact up to 2**53."""
        return np.hstack(arrays)

    def unpack(self, packed: Any) -> tuple[Any, Any]:
        """See `Search.unpack`."""
        return packed[:, : self.n_neighbors], packed[:, self.n_neighbors :].astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Within(Search):
    """A search for all rows within a radius.

    Notes
    -----
    The result is the number of rows for each query, and the distances and numbers of these rows, query after query.
    """

    radius: float
    sort: bool = False
    """Whether the nearest row is the first; default: the row with the lowest number."""
    method: str = "within"

    def join(self, left: Result, right: Result) -> Result:
        """See `Search.join`."""
        counts = left[0] + right[0]
        owners = np.concatenate([np.repeat(np.arange(len(counts)), each[0]) for each in (left, right)])
        order = np.argsort(owners, kind="stable")
        distances, rows = (np.concatenate(both)[order] for both in zip(left[1:], right[1:], strict=True))
        return counts, distances, rows

    def without_self(self, result: Result, first: int) -> Result:
        """See `Search.without_self`."""
        counts, distances, rows = result
        owners = np.repeat(np.arange(len(counts)), counts)
        kept = rows != first + owners
        return np.bincount(owners[kept], minlength=len(counts)), distances[kept], rows[kept]

    def arrays(self, results: Sequence[Result]) -> tuple[_Array, _Array]:
        """See `Search.arrays`: arrays of objects, of which each is an array for one query."""
        counts, distances, rows = (np.concatenate(each) for each in zip(*results, strict=True))
        if self.sort:
            order = np.lexsort((rows, distances, np.repeat(np.arange(len(counts)), counts)))
            distances, rows = distances[order], rows[order]
        return _split(distances, counts), _split(rows, counts)

    def nothing(self) -> Result:
        """See `Search.nothing`."""
        return np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64)

    def pack(self, arrays: tuple[_Array, _Array]) -> _Array:
        """See `Search.pack`."""
        return np.stack(arrays, axis=1)

    def unpack(self, packed: Any) -> tuple[Any, Any]:
        """See `Search.unpack`."""
        return packed[:, 0], packed[:, 1]


def _split(numbers: _Array, counts: _Array) -> _Array:
    arrays = np.empty(len(counts), object)
    for query, (stop, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
        arrays[query] = numbers[stop - count : stop].copy()  # a view would keep the numbers of all queries
    return arrays


def count(parts: Parts, settings: None) -> int:  # noqa: ARG001  (algorithms have two arguments)
    """Return the number of all rows."""
    return int(Passes(parts).sum("rows"))


def find(parts: Parts, search: Search) -> Result:
    """Return the result for the queries of the search and the rows of all parts."""
    result: Result = Passes(parts).fold(search.join, search.method, search)
    return result


def find_each(parts: ConnectedParts, search: Search) -> None:
    """Find rows for the queries of each part, and keep the results in the part.

    Notes
    -----
    Parts with a communicator send their queries around (the ring above). Otherwise each request sends
    some queries of one part to all parts, and the results back.
    """
    if parts.direct:
        parts.together("ring", search)
        return
    for part, queries in parts.each("query_range"):
        start, step = 0, search.step
        if not queries:
            parts.each("keep", part, start, search, search.nothing())
        while start < queries:
            request = replace(search, queries=parts.fold(_either, "queries", part, start, start + step))
            result = parts.fold(search.join, search.method, request)
            parts.each("keep", part, start, search, result)
            start += step
            # The number of rows within a radius is not known before.
            step = min(step, max(1, step * RESULT // max(1, sum(array.nbytes for array in result))))


def _either(left: Any, right: Any) -> Any:
    return right if left is None else left


def graph(distances: NDArray[Any], indices: NDArray[Any], columns: int, mode: str) -> Any:
    """Return a matrix in CSR format with a column for each row of the fit.

    Parameters
    ----------
    distances, indices
        Results of a search: shape (queries, neighbors), or shape (queries,) with an array for each query.
    columns
        Number of rows of the fit.
    mode
        ``"connectivity"``: ones; ``"distance"``: the distances.
    """
    # The scheduler loads this module, and does not need SciPy.
    from scipy import sparse

    ends = np.cumsum([0, *map(len, indices)])
    rows = _flat(indices).astype(np.int64, copy=False)
    numbers = _flat(distances).astype(np.float64, copy=False) if mode == "distance" else np.ones(len(rows))
    return sparse.csr_array((numbers, rows, ends), shape=(len(indices), columns))


def _flat(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers.ravel() if numbers.ndim > 1 or not len(numbers) else np.concatenate(numbers)


# A message has this part of `RESULT`, since a rank holds two of them, each also as a pickle.
_SHARE = 8


def find_in_ring(part: Any, search: Search, comm: Intracomm, _report: Any = None) -> None:
    """Find rows for the queries of the part of each rank, and keep the results in the part; runs on all ranks.

    Parameters
    ----------
    part
        The part of this rank, a `workbench.ml.neighbors.part.NeighborsPart`.
    search
        The search, without queries.
    comm
        The communicator of all parts, in the order of their rows.
    """
    total = part.query_range()[1]
    start, step, nbytes = 0, max(search.step // _SHARE, 1), RESULT // _SHARE
    if not total:
        part.add(start, search, search.nothing())
    # A rank without more queries still searches for those of the others.
    while comm.allreduce(start < total):
        result = _around(comm, part, search, part.own_queries(start, start + step))
        if start < total:
            part.add(start, search, result)
        start += step
        # The number of rows within a radius is not known before.
        step = min(step, max(1, step * nbytes // max(1, sum(array.nbytes for array in result))))


def _around(comm: Intracomm, part: Any, search: Search, queries: Any) -> Result:
    """Return the result for some queries of this rank, which visit all ranks."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    # The results of the ranks from that of the queries on, and of the ranks before: `Search.join` needs their order.
    later, earlier = search.nothing(), None
    for hop in range(comm.size):
        if queries.shape[0]:
            found = part.find(replace(search, queries=queries))
            if hop == 0:
                later = found
            elif hop <= comm.rank:
                later = search.join(later, found)
            else:
                earlier = found if earlier is None else search.join(earlier, found)
        # The last rank passes on only the result.
        message = queries if hop < comm.size - 1 else None, later, earlier
        queries, later, earlier = comm.sendrecv(message, right, source=left)
    return later if earlier is None else search.join(earlier, later)
