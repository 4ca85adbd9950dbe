"""Nearest-neighbor search on ranks, with the interface of scikit-learn."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from dask.base import is_dask_collection
from scipy import sparse
from sklearn.neighbors import VALID_METRICS
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from workbench.ml.checks import FLOATS, Checks
from workbench.ml.data import Data, know_features, training
from workbench.ml.engine import fitting
from workbench.ml.engine.mpi_parts import Task
from workbench.ml.engine.progress import Callback, reporting
from workbench.ml.engine.select import chosen
from workbench.ml.estimator import Estimator, rows_together
from workbench.ml.neighbors.part import NeighborsPart, QueriesPart, QueryChecks, RowsPart
from workbench.ml.neighbors.search import RESULT, Nearest, Search, Within, count, find, find_each, graph
from workbench.ml.placed import as_array, beside, computed, counted, in_blocks, placed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workbench.placement.place import AlignedBlocks

# Rows within a radius that a first call expects for a query.
_WITHIN = 1024
# Metrics that need a statistic of all rows, and the name of the argument.
_OF_ALL = {"seuclidean": "V", "mahalanobis": "VI"}


class NearestNeighbors(Estimator):
    """Exact (brute-force) nearest-neighbor search.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbors.
    radius : float, default=1.0
        Radius of `radius_neighbors`, in the unit of the metric.
    metric : str or callable, default="minkowski"
        A metric of scikit-learn's estimator with ``algorithm="brute"``, except ``"precomputed"``; or a function of two
        rows, which is slow.
    p : float, default=2
        The exponent of ``"minkowski"``; 2 is the Euclidean metric.
    metric_params : dict, default=None
        Other arguments of the metric, by name. ``"seuclidean"`` needs ``V``, ``"mahalanobis"`` needs ``VI``.
    engine : {"auto", "mpi", "dask", "local"}, default="auto"
        See `workbench.ml.engine.fitting.fit`.
    verbose : int, default=0
        1: a progress bar; 2: one line per pass over the rows.
    callback : callable, default=None
        Called after each pass over the rows with its number and name: ``pass``, ``name``. A fit is one pass, and each
        call of all ranks in a search is another.

    Attributes
    ----------
    n_samples_fit_ : int
        Number of rows of the fit.
    n_features_in_ : int
        Number of features.
    engine_ : str
        The engine of the last fit or search: ``"mpi"``, ``"dask"``, or ``"local"``, this process.

    Notes
    -----
    A fit leaves the rows on their ranks: a Dask collection is placed, one block per rank (`workbench.place`). A search
    is a call of all ranks. Each rank finds the nearest of its rows, and the results are merged. An array stays in
    this process; with ``engine="dask"`` or ``"mpi"`` an array is placed, too. Blocks that need a conversion, such as
    dataframes, are converted once, in the fit. With ``engine="dask"`` the first search for an array of queries makes
    actors beside the blocks, of rows on a device with a copy of the rows on the host; later searches use these actors,
    which are released with the model.

    Euclidean distances are computed from differences of rows, in double precision, and have 15 digits; distances of
    scikit-learn have fewer if the rows are far from 0. For equal distances the rows with lower numbers come first, so
    that the result does not depend on the number of ranks. Other metrics are those of
    `sklearn.metrics.pairwise_distances`.

    A search needs up to 20 MiB of work space on each rank, or more with more than some ten thousand features, in
    addition to the queries and the results. Many queries are sent in messages of 64 MiB, and queries that are on ranks
    with ``engine="mpi"`` in messages of 8 MiB, from each rank to the next one until they have visited all ranks.

    A model that was fitted on an array can be pickled, with its rows. A model whose rows are on ranks cannot, since it
    only refers to the rows: pickling raises TypeError.

    Examples
    --------
    >>> from workbench.ml import NearestNeighbors
    >>> model = NearestNeighbors(n_neighbors=2).fit([[0.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> distances, rows = model.kneighbors([[0.0, 0.0, 1.3]])
    >>> distances.round(2)
    array([[0.3, 0.7]])
    >>> rows
    array([[2, 0]])
    """

    _sparse = True
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **Estimator._parameter_constraints,
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "radius": [Interval(Real, 0, None, closed="left")],
        "metric": [StrOptions(set(VALID_METRICS["brute"]) - {"precomputed"}), callable],
        "p": [Interval(Real, 0, None, closed="right")],
        "metric_params": [dict, None],
    }

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        radius: float = 1.0,
        metric: Any = "minkowski",
        p: float = 2,
        metric_params: Mapping[str, Any] | None = None,
        engine: str = "auto",
        verbose: int = 0,
        callback: Callback | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.engine = engine
        self.verbose = verbose
        self.callback = callback

    def __getstate__(self) -> Any:
        if "_rows" in vars(self) and self._rows.distributed:
            raise TypeError(
                "a NearestNeighbors whose rows are on ranks cannot be pickled or copied, because the estimator only "
                "refers to the rows. Save the rows and fit again, or fit on an array with engine='auto'."
            )
        return super().__getstate__()

    def fit(self, X: Any, y: Any = None) -> Self:
        """Keep the rows for searches.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (rows, features)
            The rows.
        y : None
            Not used.

        Returns
        -------
        NearestNeighbors
            The estimator itself.

        Raises
        ------
        ValueError, TypeError
            The error of scikit-learn if the rows are not valid, or the metric needs other `metric_params`.
        """
        data = training(self, self._checks(), X)
        self._metric()
        engine = chosen(self.engine, distributed=data.distributed)
        if engine != "local":
            data = Data(in_blocks(placed([data.X])[0]), None, None, distributed=True)
        # Blocks are checked now, and converted now if that takes a copy: a search does neither.
        task = Task(count, None, RowsPart, self._checks())
        if hasattr(X, "divisions") or not _is_searchable(data.X):
            shape, is_sparse = (0, data.X.shape[1]), sparse.issparse(data.X._meta)
            kept = sparse.csr_array(shape, dtype=data.dtype) if is_sparse else np.empty(shape, data.dtype)
            self.n_samples_fit_, (X,) = self._fit(replace(task, kept=(kept,)), data)
            data = replace(data, X=X)
        else:
            self.n_samples_fit_ = self._fit(task, data)
        self._rows, self._held = data, fitting.HeldParts()
        return self

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """Return the nearest rows.

        Parameters
        ----------
        X : array, CSR matrix, dataframe, or Dask array or dataframe of shape (queries, features), default=None
            The queries; None: the rows of the fit, of which none is its own neighbor.
        n_neighbors : int, default=None
            Number of neighbors; None: the parameter of the estimator.
        return_distance : bool, default=True
            Whether to return distances.

        Returns
        -------
        distances : array of shape (queries, n_neighbors), float64
            In the unit of the metric, the smallest first; only if `return_distance`.
        indices : array of shape (queries, n_neighbors), int64
            The numbers of the rows of the fit.

        Raises
        ------
        ValueError, TypeError
            If the fit has too few rows, or the error of scikit-learn if the queries are not valid.
        PlacementError
            If a rank with rows was lost.

        Notes
        -----
        The results for an array are arrays. The results for a Dask collection, and for rows of the fit on ranks, are
        Dask arrays. If the rows of the fit are on ranks, X is placed on the same ranks, one block of queries per rank,
        and the results stay with the queries. The queries of each rank are sent to the other ranks in turn; with
        ``"mpi"`` they do not pass through this process. The search is not lazy, since a task cannot call all ranks;
        fewer queries than ranks are searched for from this process. If the model was fitted on an array, the results
        are lazy: they have the chunks of X, and the array is part of the graph (compute both results together).
        """
        check_is_fitted(self)
        search = Nearest(n_neighbors=self._number(n_neighbors, X is None), **self._options())
        distances, indices = self._found(X, search, 16 * search.n_neighbors)
        return (distances, indices) if return_distance else indices

    def radius_neighbors(
        self, X: Any = None, radius: float | None = None, return_distance: bool = True, sort_results: bool = False
    ) -> Any:
        """Return all rows within a radius, rows at this distance included.

        Parameters
        ----------
        X
            See `kneighbors`.
        radius : float, default=None
            The radius, in the unit of the metric; None: the parameter of the estimator.
        return_distance : bool, default=True
            Whether to return distances.
        sort_results : bool, default=False
            True: the nearest row comes first; False: the row with the lowest number.

        Returns
        -------
        distances : array of shape (queries,), object
            For each query an array of distances, float64, in the unit of the metric; only if `return_distance`.
        indices : array of shape (queries,), object
            For each query an array of the numbers of the rows of the fit, int64.

        Raises
        ------
        ValueError
            If the radius is negative, if `sort_results` is true without distances, or the error of `kneighbors`.
        TypeError, PlacementError
            See `kneighbors`.

        Notes
        -----
        Results for Dask collections are those of `kneighbors`. The number of pairs within the radius has no limit but
        memory: results of a rank need 16 bytes per pair.
        """
        check_is_fitted(self)
        if sort_results and not return_distance:
            raise ValueError("return_distance must be True if sort_results is True.")
        search = Within(radius=self._radius(radius), sort=sort_results, **self._options())
        distances, indices = self._found(X, search, 16 * _WITHIN)
        return (distances, indices) if return_distance else indices

    def kneighbors_graph(self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity") -> Any:
        """Return the graph of the nearest rows.

        Parameters
        ----------
        X, n_neighbors
            See `kneighbors`.
        mode : {"connectivity", "distance"}, default="connectivity"
            Values at the neighbors: ``"connectivity"``: ones; ``"distance"``: distances.

        Returns
        -------
        scipy.sparse.csr_array of shape (queries, rows of the fit), float64
            For Dask collections a Dask array with chunks in this format, computed when `kneighbors` computes them.

        Raises
        ------
        ValueError
            If the mode is not valid, or the error of `kneighbors`.
        """
        check_is_fitted(self)
        _check_mode(mode)
        distances, indices = self.kneighbors(X, n_neighbors)
        return self._as_graph(distances, indices, mode)

    def radius_neighbors_graph(
        self, X: Any = None, radius: float | None = None, mode: str = "connectivity", sort_results: bool = False
    ) -> Any:
        """Return the graph of all rows within a radius.

        Parameters
        ----------
        X, radius
            See `radius_neighbors`.
        mode : {"connectivity", "distance"}, default="connectivity"
            See `kneighbors_graph`.
        sort_results : bool, default=False
            See `radius_neighbors`.

        Returns
        -------
        scipy.sparse.csr_array of shape (queries, rows of the fit), float64
            For Dask collections as with `kneighbors_graph`.

        Raises
        ------
        ValueError
            If the mode is not valid, or the error of `radius_neighbors`.
        """
        check_is_fitted(self)
        _check_mode(mode)
        distances, indices = self.radius_neighbors(X, radius, sort_results=sort_results)
        return self._as_graph(distances, indices, mode)

    def _as_graph(self, distances: Any, indices: Any, mode: str) -> Any:
        rows = self.n_samples_fit_
        if not is_dask_collection(indices):
            return graph(distances, indices, rows, mode)
        # Each block of a graph has all its columns.
        axes: dict[str, Any] = {"new_axis": 1} if indices.ndim == 1 else {}
        options = {"chunks": (indices.chunks[0], (rows,)), "meta": sparse.csr_array((0, rows)), **axes}
        return distances.map_blocks(graph, indices, columns=rows, mode=mode, **options)

    def _number(self, number: Any, own_rows: bool) -> int:
        number = self.n_neighbors if number is None else number
        if not isinstance(number, Integral):
            raise TypeError(f"n_neighbors does not take {type(number)} value, enter integer value")
        if number < 1:
            raise ValueError(f"Expected n_neighbors > 0. Got {number}")
        if number > self.n_samples_fit_ - own_rows:
            allowed = "n_neighbors < n_samples_fit, because no row is its own neighbor" if own_rows else ""
            raise ValueError(
                f"Expected {allowed or 'n_neighbors <= n_samples_fit'}, but n_neighbors = {number}, "
                f"n_samples_fit = {self.n_samples_fit_}"
            )
        return int(number)

    def _radius(self, radius: Any) -> float:
        radius = self.radius if radius is None else radius
        if not isinstance(radius, Real) or not float(radius) >= 0:
            raise ValueError(f"Expected radius >= 0, a number in the unit of the metric. Got {radius!r}")
        return float(radius)

    def _found(self, X: Any, search: Search, size: int) -> tuple[Any, Any]:
        """Return distances and numbers of rows for queries, or for the rows of the fit if there are none.

        Parameters
        ----------
        size
            Bytes of the result for a query, for the number of queries in a call.
        """
        search = replace(search, step=max(RESULT // (8 * self.n_features_in_ + size), 1))
        own_rows = X is None
        if own_rows:
            X = self._rows.X
        elif is_dask_collection(X):
            know_features(self, X, reset=False)
            X = rows_together(as_array(in_blocks(X)))
        else:
            X = self._checked(X, order="C")
        if not is_dask_collection(X):
            return self._local(X, search, 0 if own_rows else None)
        if own_rows:
            return self._on_ranks(search, None)
        return self._of_collection(X, search) if self._rows.distributed else self._lazily(X, search)

    def _local(self, queries: Any, search: Search, first: int | None) -> tuple[Any, Any]:
        """Return the result; without the queries themselves if these are rows, from number `first` on."""
        wanted = search if first is None else search.with_self()
        results = []
        for start in range(0, queries.shape[0], search.step):
            some = replace(wanted, queries=queries[start : start + search.step])
            result = self._fit(Task(find, some, NeighborsPart, self._query_checks()), self._rows, self._held)
            results.append(result if first is None else search.without_self(result, first + start))
        return search.arrays(results)

    def _on_ranks(self, search: Search, queries: AlignedBlocks | None) -> tuple[Any, Any]:
        """Return the result for queries on the ranks, or for all rows, on the same ranks."""
        kept, checks = search.empty(), self._query_checks()
        if queries is None:
            task = Task(find_each, search.with_self(), NeighborsPart, checks, kept)
        else:
            task = Task(find_each, search, QueriesPart, checks, kept)
        rows = replace(self._rows, y=queries)
        with reporting(type(self).__name__, None, self.verbose, self.callback) as report:
            (_, (distances, indices)), self.engine_ = fitting.fit(task, rows, self.engine, None)
            if report is not None:
                report({"pass": 1, "name": search.method})
        return distances, indices

    def _of_collection(self, X: Any, search: Search) -> tuple[Any, Any]:
        """Return the result on ranks for the queries of a Dask array."""
        [X] = counted([X])
        if X.shape[0] >= self._rows.X.numblocks[0]:
            return self._on_ranks(search, beside(self._rows.X, X))
        import dask.array as da

        results = self._of_block(computed(X)[0], search)
        chunks = X.chunks[0], *((size,) for size in results[0].shape[1:])
        distances, rows = (da.from_array(result, chunks=chunks) for result in results)
        return distances, rows

    def _lazily(self, X: Any, search: Search) -> tuple[Any, Any]:
        model = copy.copy(self)
        model._search = search
        # One array needs one search.
        empty = search.pack(search.empty())
        return search.unpack(model._map("_packed", X, empty.shape[1], empty.dtype))

    def _packed(self, block: Any) -> NDArray[Any]:
        search: Search = self._search
        return search.pack(self._of_block(block, search))

    def _of_block(self, block: Any, search: Search) -> tuple[Any, Any]:
        """Return the result for a block of queries, which may be empty."""
        if not block.shape[0]:
            return search.empty()
        return self._local(self._checks().apply(block, None, None)[0], search, None)

    def _options(self) -> dict[str, Any]:
        metric, keywords = self._metric()
        return {"metric": metric, "keywords": keywords}

    def _checks(self) -> Checks:
        return Checks(type(self).__name__, sparse=True, integers=True)

    def _query_checks(self) -> Checks:
        return QueryChecks(type(self).__name__, sparse=True, integers=True)

    def _metric(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the metric of the parts, and its other arguments."""
        keywords = dict(self.metric_params or {})
        needed = _OF_ALL.get(self.metric) if isinstance(self.metric, str) else None
        if needed and needed not in keywords:
            raise ValueError(
                f'metric="{self.metric}" needs {needed} of all rows. Pass metric_params={{"{needed}": ...}}.'
            )
        if self.metric == "minkowski":
            keywords = {"p": self.p} | keywords
            if keywords == {"p": 2}:
                return "euclidean", {}
        return "euclidean" if self.metric == "l2" else self.metric, keywords


def _check_mode(mode: str) -> None:
    if mode not in {"connectivity", "distance"}:
        raise ValueError(f'Unsupported mode, must be one of "connectivity", or "distance" but got "{mode}" instead')


def _is_searchable(X: Any) -> bool:
    """Return whether a search accepts the blocks as they are."""
    meta = getattr(X, "_meta", X)
    if sparse.issparse(meta):
        return meta.format == "csr" and meta.dtype in FLOATS
    return meta.dtype in FLOATS or meta.dtype.kind in "iub"
